"""The networks, ours beside others: right values by ONNX Runtime on the CPU, times on the GPU.

A network is an ONNX file in the folder. Large ones lie there without their weights, which are made anew from a seed, with the mean and
deviation of each tensor: so the folder is small enough to be carried, and needs neither the networks' packages nor PyTorch's exporter.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import aotc
from aotc.compiler import BuildReport
from benchmarks.gpu.machine import TARGET, onnxruntime_has_cuda
from benchmarks.gpu.timing import microseconds
from tests.agreement import Distance, distance
from tests.cuda.real_networks import FIGURES, figure
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import classifiers, detector, efficientnet, minilm, ocr, silero

LEAST_SEEDED = 4096
"""Elements of a tensor that is made from a seed."""

Feeds = Mapping[str, np.ndarray]
Result = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """``chosen`` are outputs that comparisons decide, in which halves may differ. ``torch``: the same as a module, if there is one."""

    path: Callable[[], Path]
    feeds: Callable[[], Feeds]
    inputs: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    seeded: bool = False
    chosen: tuple[str, ...] = ()
    torch: Callable[[], Any] | None = None


def _noise(name: str, *shape: int) -> Callable[[], Feeds]:
    return lambda: {name: np.random.default_rng(5).standard_normal(shape).astype(np.float32)}


def _sound() -> Feeds:
    noise = np.random.default_rng(6).standard_normal((1, 576)).astype(np.float32) * 0.1
    return {"input": noise, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}


_PICTURE = (1, 3, 224, 224)
NETWORKS = {
    "efficientnet_lite0": Network(efficientnet.onnx_path, _noise("x", *_PICTURE), torch=efficientnet.module),
    "resnet50": Network(
        lambda: classifiers.onnx_path("resnet50"), _noise("x", *_PICTURE), seeded=True, torch=lambda: classifiers.module("resnet50")
    ),
    "minilm": Network(minilm.onnx_path, lambda: minilm.example(1, 128), seeded=True, torch=lambda: minilm.MiniLM().eval()),
    "ocr_recognition": Network(lambda: ocr.onnx_path("recognition"), lambda: {"x": ocr.example((1, 3, 48, 320))}, {"x": (1, 3, 48, 320)}),
    "detector": Network(detector.onnx_path, detector.example, chosen=("chosen",)),
    "silero": Network(lambda: silero.onnx_path("both"), _sound),
}


def names() -> list[str]:
    return [f"{name} {precision}" for name in NETWORKS for precision in FIGURES]


def source(name: str, folder: Path) -> onnx.ModelProto:
    """The network with its weights. Raises FileNotFoundError or ImportError where the folder has not it and it cannot be made here."""
    path = folder / "models" / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if NETWORKS[name].seeded:
            path.write_bytes(_without_weights(onnx.load(NETWORKS[name].path())).SerializeToString())
        else:
            shutil.copyfile(NETWORKS[name].path(), path)
    return _with_weights(onnx.load(path))


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size >= LEAST_SEEDED:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
            tensor.doc_string = f"seeded {values.mean()} {values.std()}"
    return model


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.doc_string.startswith("seeded "):
            mean, deviation = map(float, tensor.doc_string.split()[1:])
            values = np.random.default_rng(zlib.crc32(tensor.name.encode())).standard_normal(tuple(tensor.dims), np.float32)
            tensor.raw_data = (values * np.float32(deviation) + np.float32(mean)).tobytes()
    return model


def build(key: str, folder: Path) -> BuildReport:
    name, precision = key.split()
    (folder / "built").mkdir(parents=True, exist_ok=True)
    output = folder / "built" / f"{name}-{precision}.so"
    return aotc.compile(source(name, folder), TARGET, output, NETWORKS[name].inputs, device="cuda", precision=precision)


def run(key: str, folder: Path) -> Result:
    """Agreement with ONNX Runtime, and times: of inputs and outputs in host memory, and on the GPU where PyTorch can hold them there."""
    name, precision = key.split()
    network, report = NETWORKS[name], build(key, folder)
    feeds, model = dict(network.feeds()), aotc.load(report.output)
    right = onnxruntime_outputs(source(name, folder), feeds)
    results: dict[str, np.ndarray] = {}
    for _ in range(3):  # the second is captured, the third a graph
        results = {output: np.array(value) for output, value in model.run(feeds).items()}
    compared = {output for output in right if precision == "fp32" or output not in network.chosen}
    far = {output: distance(results[output], right[output]) for output in sorted(compared)}
    allowed = figure(name, precision)
    told: Result = {"error": max(each.largest for each in far.values()), "allowed": allowed, "kernels": len(report.cuda_kernels)}
    told["on_cpu"] = sum(not placed.on_device for placed in report.placement.values())
    told["host_us"] = microseconds(lambda: model.run(feeds))
    if arrays := _on_gpu(feeds, {output: results[output] for output in results if output not in network.chosen}):
        inputs, outputs = arrays
        told["gpu_us"] = microseconds(lambda: model.run(inputs, copy=False, out=outputs))
    return told | ({"failed": f"results are off: {far}"} if any(_too_far(each, allowed) for each in far.values()) else {})


def _too_far(found: Distance, allowed: float) -> bool:
    return not (found.largest <= allowed and found.l2 <= allowed / 3)


def _on_gpu(feeds: Feeds, results: Feeds) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Inputs and places for outputs in memory of the GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    inputs = {name: torch.from_numpy(value).cuda() for name, value in feeds.items()}
    outputs = {name: torch.from_numpy(value).cuda() for name, value in results.items()}
    torch.cuda.synchronize()
    return inputs, outputs


def onnxruntime_run(name: str, folder: Path) -> Result:
    """Times of ONNX Runtime's CUDA provider in float32, inputs and outputs on the GPU."""
    if not onnxruntime_has_cuda():
        return {"missing": "onnxruntime-gpu"}
    import onnxruntime

    session = onnxruntime.InferenceSession(source(name, folder).SerializeToString(), providers=["CUDAExecutionProvider"])
    binding = session.io_binding()
    for input_name, value in NETWORKS[name].feeds().items():
        binding.bind_ortvalue_input(input_name, onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")

    def once() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return {"gpu_us": microseconds(once)}
