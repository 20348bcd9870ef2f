"""LSTM, GRU and RNN in all their forms, built and run, beside ONNX Runtime and PyTorch. (Case 30.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import aotc
from aotc.errors import InvalidModel
from aotc.frontends import import_onnx
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.reference import onnxruntime_outputs

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, ROWS, FEATURES = 6, 3, 5


@dataclass
class Form:
    """One node. ``lengths``: sequence_lens; ``units`` do not divide into vectors unless they are few."""

    op: str
    units: int = 21
    direction: str = "forward"
    bias: bool = True
    lengths: Sequence[int] | None = None
    states: bool = False
    peepholes: bool = False
    outputs: Sequence[str] = ("Y", "Y_h", "Y_c")
    attributes: dict[str, Any] = field(default_factory=dict)

    def arrays(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        directions, gates = 2 if self.direction == "bidirectional" else 1, GATES[self.op]

        def normal(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) * 0.4).astype(np.float32)

        found = {"X": normal(STEPS, ROWS, FEATURES), "W": normal(directions, gates * self.units, FEATURES)}
        found["R"] = normal(directions, gates * self.units, self.units)
        if self.bias:
            found["B"] = normal(directions, 2 * gates * self.units)
        if self.lengths is not None:
            found["lens"] = np.array(self.lengths, np.int32)
        if self.states:
            found["h0"] = normal(directions, ROWS, self.units)
            if self.op == "LSTM":
                found["c0"] = normal(directions, ROWS, self.units)
        if self.peepholes:
            found["P"] = normal(directions, 3 * self.units)
        return found

    def node(self, prefix: str, arrays: dict[str, np.ndarray]) -> onnx.NodeProto:
        names = [prefix + name if name in arrays else "" for name in ("X", "W", "R", "B", "lens", "h0", "c0", "P")]
        while not names[-1]:
            names.pop()
        outputs = [prefix + name if name in self.outputs else "" for name in ("Y", "Y_h", "Y_c")][: 3 if self.op == "LSTM" else 2]
        options = {"direction": self.direction, **self.attributes}
        return helper.make_node(self.op, names, outputs, name=f"{prefix}cell", hidden_size=self.units, **options)


def activations(*names: str, alpha: Sequence[float] = (), beta: Sequence[float] = ()) -> dict[str, Any]:
    given = {"activation_alpha": list(alpha), "activation_beta": list(beta)}
    return {"activations": list(names), **{name: values for name, values in given.items() if values}}


FORMS: dict[str, list[Form]] = {
    "LSTM": [
        Form("LSTM"),
        Form("LSTM", 16, "reverse", states=True, outputs=("Y",)),
        Form("LSTM", direction="bidirectional", states=True, lengths=(6, 1, 4), peepholes=True),
        Form("LSTM", 3, bias=False, outputs=("Y_c",)),
        Form("LSTM", 7, "reverse", lengths=(6, 0, 2), states=True),
        Form("LSTM", peepholes=True, attributes={"clip": 0.25}),
        Form("LSTM", 9, attributes={"input_forget": 1}),
        Form("LSTM", 9, "bidirectional", attributes=activations(
            "Sigmoid", "Tanh", "Relu", "HardSigmoid", "Affine", "LeakyRelu", alpha=(0.3, 0.8, 0.05), beta=(0.4, 0.1))),
        Form("LSTM", 9, attributes=activations("HardSigmoid", "Softsign", "ScaledTanh", alpha=(0.3, 1.2), beta=(0.4, 0.7))),
    ],
    "GRU": [
        Form("GRU", states=True),
        Form("GRU", states=True, lengths=(3, 6, 2), attributes={"linear_before_reset": 1}),
        Form("GRU", 16, "reverse", bias=False, attributes={"linear_before_reset": 1}),
        Form("GRU", 6, "reverse", bias=False, outputs=("Y_h",)),
        Form("GRU", direction="bidirectional", lengths=(3, 6, 2), states=True, attributes={"clip": 0.3}),
        Form("GRU", 9, attributes=activations("HardSigmoid", "Elu")),
        Form("GRU", 9, lengths=(0, 6, 1), states=True, attributes={"linear_before_reset": 1, "clip": 0.3}),
    ],
    "RNN": [
        Form("RNN", states=True, lengths=(0, 6, 2)),
        Form("RNN", 16, "reverse", bias=False),
        Form("RNN", direction="bidirectional", attributes=activations("Relu", "Affine", alpha=(0.5,), beta=(0.1,))),
        Form("RNN", 1, lengths=(2, 6, 3)),
        Form("RNN", 9, attributes={"clip": 0.3}),
        *(Form("RNN", 5, attributes=activations(name)) for name in ("LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus", "Sigmoid")),
        Form("RNN", 5, attributes=activations("ThresholdedRelu", alpha=(0.2,))),
        Form("RNN", 5, attributes=activations("ScaledTanh", alpha=(1.2,), beta=(0.5,))),
    ],
}  # fmt: skip


def model_of(forms: Sequence[Form], frozen: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One model with all forms side by side, steps and rows dynamic, and its inputs; weights are initialisers if ``frozen``."""
    random = np.random.default_rng(0)
    nodes, inputs, weights, outputs = [], {}, {}, {}
    axes: dict[str, list[Any]] = {"X": ["steps", "rows", None], "h0": [None, "rows", None], "c0": [None, "rows", None], "lens": ["rows"]}
    shapes: dict[str, tuple[str, Any]] = {}
    for number, form in enumerate(forms):
        prefix, arrays = f"n{number}_", form.arrays(random)
        nodes.append(form.node(prefix, arrays))
        for name, array in arrays.items():
            if frozen and name in "WRBP":
                weights[prefix + name] = array
                continue
            inputs[prefix + name] = array
            dims = axes.get(name, [None] * array.ndim)
            shapes[prefix + name] = str(array.dtype), [dim or size for dim, size in zip(dims, array.shape, strict=True)]
        outputs.update({name: ("float32", None) for name in nodes[-1].output if name})
    return small.model(nodes, shapes, outputs, weights, opset=14), inputs


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize("frozen", [True, False], ids=["weights", "inputs"])
def test_onnx(op: str, frozen: bool, tmp_path: Path) -> None:
    forms = FORMS[op] if frozen else FORMS[op][:3]
    model, feeds = model_of(forms, frozen)
    got, want = small.run(model, feeds, tmp_path, jobs=0), onnxruntime_outputs(model, feeds)
    for name, value in want.items():
        assert value.std() > 0.01
        assert_agrees(got[name], value, 1e-5, f"{name} of {forms[int(name[1:].partition('_')[0])]}")


def test_batch_first(tmp_path: Path) -> None:
    """ONNX Runtime refuses layout 1: it runs the same with layout 0 and axes swapped."""
    for op in GATES:
        form = Form(op, direction="bidirectional", states=True, lengths=(6, 2, 3))
        model, feeds = model_of([form], True)
        want = onnxruntime_outputs(model, feeds)
        swapped = onnx.ModelProto.FromString(model.SerializeToString())
        swapped.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
        feeds = {name: array if array.ndim == 1 else array.swapaxes(0, 1).copy() for name, array in feeds.items()}
        for info in swapped.graph.input:
            first, second = (onnx.TensorShapeProto.Dimension() for _ in range(2))
            dims = info.type.tensor_type.shape.dim
            if len(dims) == 3:
                first.CopyFrom(dims[0])
                second.CopyFrom(dims[1])
                dims[0].CopyFrom(second)
                dims[1].CopyFrom(first)
        got = small.run(swapped, feeds, tmp_path, jobs=0)
        for name, value in want.items():
            moved = value.transpose(2, 0, 1, 3) if name.endswith("_Y") else value.swapaxes(0, 1)
            assert_agrees(got[name], moved, 1e-5, f"{op} {name}")


@pytest.mark.parametrize(("rows", "dtype", "per_channel"), [(1, "int8", False), (3, "int8", True), (8, "uint8", False)])
def test_dynamic_quantize_lstm(rows: int, dtype: str, per_channel: bool, tmp_path: Path) -> None:
    """Data and states are rounded to 8 bits where ONNX Runtime rounds them. Its own sums of int8 saturate without VNNI: 6 bits do not."""
    random, units, directions = np.random.default_rng(0), 20, 2

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    shape = (directions, 4 * units) if per_channel else (directions,)
    low, high = (-63, 64) if dtype == "int8" else (0, 256)
    zeros = np.zeros(shape) if dtype == "int8" else random.integers(100, 150, shape)
    weights = {
        "W": random.integers(low, high, (directions, FEATURES, 4 * units)).astype(dtype),
        "R": random.integers(low, high, (directions, units, 4 * units)).astype(dtype),
        "B": normal(directions, 8 * units) * 0.4, "ws": random.uniform(0.004, 0.008, shape).astype(np.float32),
        "rs": random.uniform(0.003, 0.006, shape).astype(np.float32), "wz": zeros.astype(dtype), "rz": zeros.astype(dtype),
    }  # fmt: skip
    names = ["X", "W", "R", "B", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["Y", "Y_h", "Y_c"], domain="com.microsoft", hidden_size=units, direction="bidirectional"
    )
    x = normal(STEPS, rows, FEATURES)
    model = small.model([node], {"X": ("float32", x.shape)}, dict.fromkeys(node.output, ("float32", None)), weights, opset=14)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    got, want = small.run(model, {"X": x}, tmp_path, jobs=0), onnxruntime_outputs(model, {"X": x})
    for name, value in want.items():
        assert_agrees(got[name], value, 1e-5, name)


class Layers(nn.Module):
    """Several layers on one input [steps, rows, 5], each with all its results."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {name: layer(x.transpose(0, 1) if getattr(layer, "batch_first", False) else x) for name, layer in self.layers.items()}


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    found: dict[str, nn.Module] = {"relu": nn.RNN(5, 9, nonlinearity="relu")}
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        name = kind.__name__.lower()
        found[name] = kind(5, 6)
        found[f"{name}_deep"] = kind(5, 20, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        found[f"{name}_plain"] = kind(5, 16, bias=False)
    found["projected"] = nn.LSTM(5, 20, num_layers=2, bidirectional=True, proj_size=7)
    return found


def test_torch(tmp_path: Path) -> None:
    """Two layers, both directions, without bias, projected; steps and rows are dynamic."""
    module = Layers(layers()).eval()
    steps, rows = torch.export.Dim("steps", min=1, max=4096), torch.export.Dim("rows", min=1, max=64)
    aotc.compile(module, output=tmp_path / "layers.so", args=(torch.randn(4, 3, 5),), dynamic_shapes=({0: steps, 1: rows},))
    model = aotc.load(tmp_path / "layers.so", num_threads=2)
    for shape in ((4, 3, 5), (9, 1, 5), (1, 7, 5)):
        x = torch.randn(shape)
        with torch.no_grad():
            want = torch.utils._pytree.tree_leaves(module(x))
        got = list(model.run({"x": x.numpy()}).values())
        for number, (ours, theirs) in enumerate(zip(got, want, strict=True)):
            assert_agrees(ours, theirs.numpy(), 1e-5, f"result {number} on {shape}")


def test_a_layer_is_one_kernel_over_time(tmp_path: Path) -> None:
    """A hundred steps of two layers take no more kernels than one step does."""
    module = nn.LSTM(8, 16, num_layers=2).eval()
    counts = [aotc.compile(module, output=tmp_path / "m.so", args=(torch.randn(steps, 2, 8),)).steps for steps in (1, 100)]
    assert counts[0] == counts[1] <= 16


def test_shapes_that_do_not_fit_are_named() -> None:
    model, _ = model_of([Form("LSTM")], True)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((1, 80, FEATURES), np.float32), model.graph.initializer[0].name))
    with pytest.raises(InvalidModel, match=r"n0_cell.*1 directions of 21 units.*\[1, 84, 5\].*\[1, 80, 5\]"):
        import_onnx(model)
