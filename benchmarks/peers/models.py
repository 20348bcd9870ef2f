"""The models of the benchmark, and the files of each that engines read (in the project's own Python).

module.pt       the pickled torch module in evaluation mode
exported.pt2    its torch.export program
model.onnx      opset 17, all dims known, input ``x``, output ``y`` where it is made here
data.npz        x: the input; reference: PyTorch's result in float32
facts.json      multiply-accumulates of one run, bytes of weights
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0


@dataclass(frozen=True)
class Model:
    """``example`` makes the input; ``module`` the torch module, or ``onnx`` a file where there is no PyTorch source."""

    name: str
    note: str
    example: Callable[[], np.ndarray]
    module: Callable[[], Any] | None = None
    onnx: Callable[[], Path] | None = None


def _image(side: int) -> Callable[[], np.ndarray]:
    return lambda: np.random.default_rng(SEED).standard_normal((1, 3, side, side), dtype=np.float32)


def _classifier(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from tests.zoo import classifiers

        return classifiers.module(name)

    return make


def _network(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        from benchmarks.peers import networks
        from tests.models.case import settle

        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            module = getattr(networks, name)()
            if name == "Detector":
                settle(module, [{"image": torch.randn(4, 3, DETECTOR_SIDE, DETECTOR_SIDE)} for _ in range(2)])
        return module.eval()

    return make


def _ocr() -> Path:
    from tests.zoo import ocr

    return ocr.onnx_path("recognition")


def _words() -> np.ndarray:
    from tests.zoo import ocr

    return ocr.example((1, 3, 48, 320))


DETECTOR_SIDE = 320
_CLASSIFIER_NOTE = "1x3x224x224, seeded random weights"
MODELS = {
    model.name: model
    for model in (
        *(Model(name, _CLASSIFIER_NOTE, _image(224), _classifier(name)) for name in ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0")),
        Model(
            "bert6", "6 layers of 384 with 12 heads, 1 x 128 tokens, seeded random weights",
            lambda: np.random.default_rng(SEED).integers(0, 30522, (1, 128)), _network("Bert"),
        ),
        Model(
            "lstm2", "2 layers of 256 units, 1 x 50 steps of 128, seeded random weights",
            lambda: np.random.default_rng(SEED).standard_normal((1, 50, 128), dtype=np.float32), _network("Lstm"),
        ),
        Model("ocr", "PP-OCRv4 recognition, 1x3x48x320, its own weights", _words, onnx=_ocr),
        Model("detector", "YOLO-like, 1x3x320x320, 80 classes, seeded random weights", _image(DETECTOR_SIDE), _network("Detector")),
    )
}  # fmt: skip


def prepare(model: Model, folder: Path) -> Path:
    """The folder with the model's files, made unless they exist."""
    digest = hashlib.sha256()
    for source in ("models.py", "networks.py"):
        digest.update((Path(__file__).parent / source).read_bytes())
    files = folder / f"{model.name}-{digest.hexdigest()[:12]}"
    if (files / "facts.json").exists():
        return files
    partial = files.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    x = model.example()
    reference = _from_torch(model, x, partial) if model.module else _from_onnx(model, x, partial)
    np.savez(partial / "data.npz", x=x, reference=reference)
    facts = {"note": model.note, **work(partial / "model.onnx", {"x": x})}
    (partial / "facts.json").write_text(json.dumps(facts))
    shutil.rmtree(files, ignore_errors=True)
    partial.rename(files)
    return files


def _from_torch(model: Model, x: np.ndarray, folder: Path) -> np.ndarray:
    import torch

    from tests.zoo.export import export_onnx

    assert model.module is not None
    module = model.module()
    args = (torch.from_numpy(x),)
    with torch.no_grad():
        reference: np.ndarray = module(*args).numpy()
    torch.save(module, folder / "module.pt")
    torch.export.save(torch.export.export(module, args), folder / "exported.pt2")
    export_onnx(module, args, folder / "model.onnx", ["x"], ["y"])
    return reference


def _from_onnx(model: Model, x: np.ndarray, folder: Path) -> np.ndarray:
    """The file with the dims of ``x``; the reference is ONNX Runtime's without any optimisation."""
    import onnx
    import onnxruntime
    from onnx.tools import update_model_dims

    assert model.onnx is not None
    source = onnx.load(model.onnx())
    (given,) = source.graph.input
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (reference,) = session.run(None, {given.name: x})
    (result,) = source.graph.output
    del source.graph.value_info[:]  # they name dims that are numbers from here on
    fixed = update_model_dims.update_inputs_outputs_dims(source, {given.name: list(x.shape)}, {result.name: list(reference.shape)})
    if given.name != "x":
        raise ValueError(f"the input of {model.name} is called {given.name!r}; engines are given 'x'")
    onnx.save(onnx.shape_inference.infer_shapes(fixed, data_prop=True), folder / "model.onnx")
    return np.asarray(reference)


def work(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, int]:
    """Multiply-accumulates of one run of a model's convolutions, products and recurrent layers, computed directly as their
    definitions say; and bytes of its weights."""
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    model = onnx.load(path)
    names = {name for node in model.graph.node if node.op_type in COUNTS for name in (*node.input, *node.output) if name}
    weights = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in model.graph.initializer}
    sizes = sum(len(tensor.raw_data) or 4 * len(tensor.float_data) for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            sizes += len(value.raw_data) if value is not None else 0
    present = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names - present - set(weights) - set(feeds)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(outputs, feeds), strict=True))
    shapes = {name: tuple(array.shape) for name, array in (found | feeds).items()} | weights
    total = 0
    for node in model.graph.node:
        if node.op_type in COUNTS:
            total += COUNTS[node.op_type]([shapes[name] for name in node.input if name], shapes[next(name for name in node.output if name)])
    return {"multiply_accumulates": total, "weights": sizes}


Shape = tuple[int, ...]


def _product(dims: Shape) -> int:
    return int(np.prod(dims, dtype=np.int64))


def _recurrent(inputs: list[Shape], output: Shape) -> int:
    """X [steps, batch, size], W [directions, gates * hidden, size], R [directions, gates * hidden, hidden]."""
    steps, batch, _ = inputs[0]
    return steps * batch * (_product(inputs[1]) + _product(inputs[2]))


COUNTS: dict[str, Callable[[list[Shape], Shape], int]] = {
    "Conv": lambda inputs, output: _product(output) * _product(inputs[1][1:]),
    "ConvTranspose": lambda inputs, output: _product(inputs[0]) * _product(inputs[1][1:]),
    "MatMul": lambda inputs, output: _product(output) * inputs[0][-1],
    "Gemm": lambda inputs, output: _product(output) * (_product(inputs[1]) // output[-1]),
    "LSTM": _recurrent,
    "GRU": _recurrent,
}
