"""Models as they come: odd names, dynamic shapes, missing operators, broken files. (Cases 34, 38, 39, 40.)"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aotc
from aotc.errors import BuildError, InvalidModel, UnsupportedModel
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.reference import onnxruntime_outputs

Node = helper.make_node


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_reshape_to_a_computed_shape_with_any_batch(tmp_path: Path) -> None:
    """Shape, Gather, Mul, Cast, Concat, Reshape: one file serves each batch."""
    nodes = [
        Node("Shape", ["x"], ["shape"]),
        Node("Gather", ["shape", "zero"], ["batch"]),
        Node("Mul", ["batch", "two"], ["twice"]),
        Node("Cast", ["twice"], ["narrow"], to=int(small.TYPES["int32"])),
        Node("Cast", ["narrow"], ["wide"], to=int(small.TYPES["int64"])),
        Node("Unsqueeze", ["wide", "axes"], ["row"]),
        Node("Concat", ["row", "rest"], ["target"], axis=0),
        Node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "two": np.array(2), "axes": np.array([0]), "rest": np.array([-1])}
    model = small.model(nodes, {"x": ("float32", ["batch", 6, 4])}, {"y": ("float32", None)}, constants)
    aotc.compile(model, output=tmp_path / "model.so")
    loaded = aotc.load(tmp_path / "model.so")
    for batch in (1, 2, 7, 40):
        x = noise(batch, 6, 4)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x.reshape(2 * batch, 12))


def test_weights_in_constant_nodes_and_names_with_colons(tmp_path: Path) -> None:
    weight = noise(4, 3)
    nodes = [
        Node("Constant", [], ["weights:0"], value=numpy_helper.from_array(weight)),
        Node("MatMul", ["input:0", "weights:0"], ["product:0"], name="layer/dense:0"),
        Node("Relu", ["product:0"], ["Identity:0"], name="layer/relu:0"),
    ]
    model = small.model(nodes, {"input:0": ("float32", [2, 4])}, {"Identity:0": ("float32", [2, 3])})
    x = noise(2, 4)
    answers = small.run(model, {"input:0": x}, tmp_path)
    assert list(answers) == ["Identity:0"]
    assert_agrees(answers["Identity:0"], np.maximum(x @ weight, 0), 1e-6)


def test_unnamed_and_negative_dims_and_a_wrong_output_rank(tmp_path: Path) -> None:
    model = small.model([Node("Relu", ["x"], ["y"])], {"x": ("float32", [None, 3, None])}, {"y": ("float32", [1])})
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    aotc.compile(model, output=tmp_path / "model.so")
    loaded = aotc.load(tmp_path / "model.so")
    for shape in ((1, 3, 1), (2, 3, 5)):
        x = noise(*shape)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.maximum(x, 0))


def test_inputs_can_be_fixed(tmp_path: Path) -> None:
    source = small.convolutional()
    aotc.compile(source, output=tmp_path / "fixed.so", inputs={"x": (2, 3, 16, 16)})
    loaded = aotc.load(tmp_path / "fixed.so")
    assert loaded.inputs[0].shape == (2, 3, 16, 16)
    x = noise(2, 3, 16, 16)
    assert_agrees(loaded.run({"x": x})["y"], onnxruntime_outputs(source, {"x": x})["y"], 1e-5)


def test_all_missing_operators_are_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        Node("Frobnicate", ["x"], ["a"], name="first", domain="com.example"),
        Node("Relu", ["a"], ["b"], name="fine"),
        Node("Frobnicate", ["b"], ["c"], name="second", domain="com.example"),
        Node("Grumble", ["c"], ["y"], name="third", domain="com.example"),
    ]
    model = small.model(nodes, {"x": ("float32", [2])}, {"y": ("float32", [2])})
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedModel) as caught:
        aotc.compile(model, output=tmp_path / "model.so")
    message = str(caught.value)
    for part in ("Frobnicate", "Grumble", "first", "second", "third", "2"):
        assert part in message
    assert "'fine'" not in message
    assert not (tmp_path / "model.so").exists()


def hostile_shape() -> bytes:
    """An initialiser that claims 2^60 elements and holds none."""
    model = small.model([Node("Add", ["x", "w"], ["y"])], {"x": ("float32", [1])}, {"y": ("float32", [1])})
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    tensor.dims.extend([1 << 30, 1 << 30])
    return bytes(model.SerializeToString())


def hostile_constant() -> bytes:
    """A ConstantOfShape of four terabytes."""
    nodes = [Node("ConstantOfShape", ["s"], ["c"]), Node("Add", ["x", "c"], ["y"])]
    model = small.model(nodes, {"x": ("float32", [1])}, {"y": ("float32", None)}, {"s": np.array([1 << 40])})
    return bytes(model.SerializeToString())


BROKEN = {
    "empty": lambda: b"",
    "text": lambda: b"this is no model\n" * 100,
    "truncated": lambda: small.mlp().SerializeToString()[:9000],
    "zeros": lambda: bytes(4096),
    "no graph": lambda: onnx.ModelProto(ir_version=10).SerializeToString(),
    "hostile shape": hostile_shape,
    "hostile constant": hostile_constant,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_refused_quickly(tmp_path: Path, kind: str) -> None:
    import resource

    path = tmp_path / "broken.onnx"
    path.write_bytes(BROKEN[kind]())
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises((InvalidModel, UnsupportedModel, BuildError)) as caught:
        aotc.compile(path, output=tmp_path / "model.so")
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    assert len(str(caught.value)) > 20


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"nowhere\.onnx"):
        aotc.compile(tmp_path / "nowhere.onnx", output=tmp_path / "model.so")


def test_a_dim_that_must_be_a_multiple(tmp_path: Path) -> None:
    """Halving and doubling again adds up only for even sizes: those run, odd ones are refused."""
    nodes = [
        Node("MaxPool", ["x"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        Node("Resize", ["small", "", "scales"], ["large"], mode="nearest"),
        Node("Add", ["large", "x"], ["y"]),
    ]
    model = small.model(
        nodes, {"x": ("float32", [1, 2, "h", "w"])}, {"y": ("float32", None)}, {"scales": np.array([1, 1, 2, 2], np.float32)}
    )
    aotc.compile(model, output=tmp_path / "model.so")
    loaded = aotc.load(tmp_path / "model.so")
    for height, width in ((4, 6), (2, 2), (8, 10)):
        x = noise(1, 2, height, width)
        assert_agrees(loaded.run({"x": x})["y"], onnxruntime_outputs(model, {"x": x})["y"], 1e-6)
    with pytest.raises(aotc.RuntimeFailure, match="x"):
        loaded.run({"x": noise(1, 2, 5, 6)})


def test_random_numbers_that_are_always_the_same_are_noted(tmp_path: Path) -> None:
    """Also where the build computes them, since the shape is known."""
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"], name="noise"), helper.make_node("Add", ["x", "r"], ["y"])]
    model = small.model(nodes, {"x": ("float32", [2, 3])}, {"y": ("float32", [2, 3])})
    report = aotc.compile(model, output=tmp_path / "m.so", jobs=0)
    assert report.notes == ("noise: the random numbers are the same in every run",)
