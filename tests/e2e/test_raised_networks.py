"""Networks of quantise and dequantise nodes as integers: as ONNX Runtime computes them, and the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

import aotc
from aotc import targets
from aotc.frontends.onnx import import_onnx
from aotc.ir.expr import Call, Function, Module
from aotc.ir.visitor import calls_of, post_order
from aotc.ops.interpret import interpret
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, optimise, run_passes
from aotc.passes.raise_integers import raise_integers
from tests.e2e.emulate import emulate
from tests.e2e.test_quantised_networks import network, session
from tests.zoo.export import export_onnx
from tests.zoo.residual import SHAPE, classifier, images

STEPS = 0.999
"""The part of outputs that must lie within one quantisation step of ONNX Runtime's."""
TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "s16s8": (QuantType.QInt16, QuantType.QInt8),
}


class Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left: Iterator[dict[str, np.ndarray]] = iter([{"x": images(4, seed).numpy()} for seed in range(4)])

    def get_next(self) -> Any:
        return next(self.left, None)


def all_kinds() -> onnx.ModelProto:
    """Layers of all kinds, without the softmax at the end. Averages are over nine: of four, a quarter lie halfway between two
    steps, and ONNX Runtime, which computes them in floats, rounds these one way or the other by chance."""
    model = network()
    del model.graph.node[-1]
    (pool,) = (node for node in model.graph.node if node.op_type == "AveragePool")
    pool.attribute[0].ints[:] = [3, 3]
    model.graph.output[0].name = "m6"
    return model


def quantised(source: str, types: str, per_channel: bool, folder: Path) -> Path:
    path, made = folder / "float.onnx", folder / f"{source}.onnx"
    if source in ("all", "block"):
        onnx.save(all_kinds() if source == "all" else block(), path)
    else:
        export_onnx(classifier(source).eval(), (images(1, 0),), path, ["x"], ["y"], {"x": {0: "n"}, "y": {0: "n"}})
    data, weights = TYPES[types]
    quantize_static(path, made, Images(), activation_type=data, weight_type=weights, per_channel=per_channel, reduce_range=True)
    return made


def raised(path: Path) -> Module:
    return raise_integers(run_passes(import_onnx(path), CLEAN, Options(verify=True)), Options())


@pytest.mark.parametrize(
    ("source", "types", "per_channel", "islands"),
    [
        ("all", "u8s8", True, {"leaky_relu", "add"}),
        ("all", "s8s8", False, {"leaky_relu", "add"}),
        ("residual", "u8s8", True, {"add"}),
        ("residual", "s8s8", False, {"add"}),
        ("mobile", "u8s8", True, {"add"}),
        ("plain", "s8s8", True, {"add"}),
    ],
)
def test_onnx_runtime(source: str, types: str, per_channel: bool, islands: set[str], tmp_path: Path) -> None:
    """Every layer is a sum of integers; of what is left in floats, all is elementwise between two quantised values."""
    path = quantised(source, types, per_channel, tmp_path)
    module = raised(path)
    found = Counter(call.op.name for call in calls_of(module.main.body))
    floats = Counter(call.op.name for call in calls_of(module.main.body) if getattr(call.type, "dtype", "") == "float32")
    assert found["integer_conv"] == 5 and found["integer_matmul"] == (2 if source == "all" else 1)
    assert set(floats) == {"dequantise", *islands}
    have, want = [], []
    reference = session(path, "DISABLE_ALL")
    for seed in range(20, 40):
        x = images(4, seed).numpy()
        have.append(interpret(module.main, [x])[0])
        want.append(reference.run(None, {"x": x})[0])
    assert_within_a_step(np.concatenate(have), np.concatenate(want))


def assert_within_a_step(have: np.ndarray, want: np.ndarray) -> None:
    step = np.diff(np.unique(want)).min()
    assert want.std() > 4 * step, "the network's outputs hardly depend on its input"
    assert (np.abs(have - want) <= 1.01 * step).mean() >= STEPS


@pytest.mark.parametrize("source", ["all", "residual", "mobile", "plain"])
def test_no_floats_between_kernels(source: str, tmp_path: Path) -> None:
    """All float work is inside kernels: bytes go from one to the next, and the last one gives the output."""
    module = optimise(import_onnx(quantised(source, "u8s8", True, tmp_path)), targets.get("x86-64-v3"))
    kernels = [node for node in post_order(module.main.body) if isinstance(node, Call) and isinstance(node.op, Function)]
    floats = [kernel for kernel in kernels if kernel.type.dtype == "float32"]  # type: ignore[union-attr]
    assert floats == [kernels[-1]] and {kernel.type.dtype for kernel in kernels[:-1]} == {"uint8"}  # type: ignore[union-attr]


def test_sixteen_bits(tmp_path: Path) -> None:
    """Activations of 16 bits are computed in floats, of the dequantised weights."""
    path = quantised("residual", "s16s8", True, tmp_path)
    module, x = raised(path), images(4, 20).numpy()
    assert {"conv", "dense"} <= {call.op.name for call in calls_of(module.main.body)}
    (want,) = session(path, "DISABLE_ALL").run(None, {"x": x})
    np.testing.assert_allclose(interpret(module.main, [x])[0], want, rtol=0, atol=1e-3 * float(np.abs(want).max()))


def block() -> onnx.ModelProto:
    """Two convolutions and a residual sum."""
    random, node = np.random.default_rng(0), helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]), node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4), node("Add", ["c2", "r1"], ["a"]), node("Relu", ["a"], ["y"]),
    ]  # fmt: skip
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "b1": (16,), "b2": (16,)}
    weights = {
        name: random.normal(size=shape) * (2 / np.prod(shape[1:]) if len(shape) > 1 else 0.01) ** 0.5 for name, shape in shapes.items()
    }
    initialisers = [numpy_helper.from_array(array.astype("float32"), name) for name, array in weights.items()]
    infos = [helper.make_tensor_value_info(name, 1, ["n", *shape]) for name, shape in (("x", SHAPE), ("y", (16, 16, 16)))]
    graph = helper.make_graph(nodes, "block", infos[:1], infos[1:], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "x86-64-v3", "jetson-orin", "jetson-nano"])
def test_every_machine_gives_the_same(target: str, tmp_path: Path) -> None:
    """With and without AVX-512 and VNNI, and on both kinds of Arm: equal bits, those of the operators' references. (Case 41.)"""
    path = quantised("block", "u8s8", True, tmp_path)
    x = images(1, 20).numpy()
    (want,) = interpret(raised(path).main, [x])
    built = tmp_path / "block.so"
    aotc.compile(path, output=built, target=target, device="cpu", inputs={"x": x.shape})
    if target.startswith("jetson"):
        have = emulate(built, [x], tmp_path)
    else:
        have = dict(aotc.load(built, num_threads=1).run({"x": x}))
    np.testing.assert_array_equal(next(iter(have.values())), want)
