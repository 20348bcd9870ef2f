"""Small networks for the runtime's tests: each crosses between CPU and GPU in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _info(name: str, shape: Sequence[Dim] | None, dtype: str = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _TYPES[dtype], shape)


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None, opset: int = 17,
) -> onnx.ModelProto:  # fmt: skip
    for number, node in enumerate(nodes):
        node.name = f"{node.op_type.lower()}{number}"
    initializers = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "network", list(inputs), list(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def dense() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=-1),
    ]
    return _model(nodes, [_info("x", [4, 32])], [_info("y", [4, 16])], {"w": _rng().standard_normal((32, 16)).astype(np.float32)})


def any_rows() -> onnx.ModelProto:
    """The same for any number of rows, and an output that is an input."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["y"], ["again"]),
    ]
    outputs = [_info("y", ["rows", 16]), _info("same", ["rows", 32]), _info("again", ["rows", 16])]
    return _model(nodes, [_info("x", ["rows", 32])], outputs, {"w": _rng().standard_normal((32, 16)).astype(np.float32)})


def joined() -> onnx.ModelProto:
    """A concatenation of odd lengths, of what the GPU computes and a weight, and slices of it at odd places."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Concat", ["e", "c", "t"], ["whole"], axis=1),
        helper.make_node("Slice", ["whole", "begin", "end", "axis"], ["part"]),
        helper.make_node("Sigmoid", ["part"], ["y"]),
        helper.make_node("Relu", ["whole"], ["z"]),
    ]
    weights = {
        "c": _rng().standard_normal((1, 5)).astype(np.float32),
        "begin": np.array([3], np.int64),
        "end": np.array([12], np.int64),
        "axis": np.array([1], np.int64),
    }
    return _model(nodes, [_info("x", [1, 7])], [_info("y", [1, 9]), _info("z", [1, 19])], weights)


def found_while_running() -> onnx.ModelProto:
    """Rows that a mask picks: only a run tells how many."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a", "last"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["mask"]),
        helper.make_node("Compress", ["a", "mask"], ["picked"], axis=0),
        helper.make_node("Tanh", ["picked"], ["y"]),
        helper.make_node("Relu", ["a"], ["z"]),
    ]
    weights = {
        "w": _rng().standard_normal((16, 8)).astype(np.float32),
        "last": np.array([1], np.int64),
        "zero": np.array(0, np.float32),
    }
    return _model(nodes, [_info("x", [12, 16])], [_info("y", ["n", 8]), _info("z", [12, 8])], weights)


def branches() -> onnx.ModelProto:
    """A branch that looks at what the GPU computed, with work for it in both arms."""

    def arm(name: str, kind: str) -> onnx.GraphProto:
        nodes = [helper.make_node(kind, ["a"], [f"{name}_1"]), helper.make_node("MatMul", [f"{name}_1", "v"], [f"{name}_2"])]
        return helper.make_graph(nodes, name, [], [_info(f"{name}_2", [4, 8])])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["more"]),
        helper.make_node("If", ["more"], ["r"], then_branch=arm("then", "Relu"), else_branch=arm("other", "Tanh")),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    rng = _rng()
    weights = {
        "w": rng.standard_normal((16, 8)).astype(np.float32),
        "v": rng.standard_normal((8, 8)).astype(np.float32),
        "zero": np.array(0, np.float32),
    }
    return _model(nodes, [_info("x", [4, 16])], [_info("y", [4, 8])], weights)


def loop() -> onnx.ModelProto:
    """A loop whose body is the GPU's: h := tanh(h @ v), with all h stacked, as often as the input n says."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "v"], ["hv"]),
            helper.make_node("Tanh", ["hv"], ["next"]),
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [_info("i", [], "int64"), _info("going", [], "bool"), _info("h", [64, 129])],
        [_info("go_on", [], "bool"), _info("next", [64, 129]), _info("row", [64, 129])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["start"]),
        helper.make_node("Loop", ["n", "", "start"], ["last", "rows"], body=body),
        helper.make_node("Sigmoid", ["last"], ["y"]),
    ]
    weights = {"v": _rng().standard_normal((129, 129)).astype(np.float32) / 12}
    inputs = [_info("x", [64, 129]), _info("n", [], "int64")]
    return _model(nodes, inputs, [_info("y", [64, 129]), _info("rows", ["n", 64, 129])], weights)


def convolutions() -> onnx.ModelProto:
    """A residual block, depthwise and strided, with a pool and a classifier: any number of pictures."""
    rng = _rng()
    weights = {
        "w0": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) / 4,
        "b0": rng.standard_normal(8).astype(np.float32),
        "w1": rng.standard_normal((8, 1, 3, 3)).astype(np.float32) / 3,
        "w2": rng.standard_normal((8, 8, 1, 1)).astype(np.float32) / 3,
        "w3": rng.standard_normal((10, 8)).astype(np.float32),
        "b3": rng.standard_normal(10).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c1", "low", "high"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"]),
        helper.make_node("Add", ["c2", "r0"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], transB=1),
    ]
    weights |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    return _model(nodes, [_info("x", ["n", 3, 17, 15])], [_info("scores", ["n", 10])], weights)


def outputs_of_all_kinds() -> onnx.ModelProto:
    """Outputs that are a weight, an input, a part of what the GPU computed, two of one value, integers, booleans, several of one node."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Identity", ["w"], ["weight"]),
        helper.make_node("Reshape", ["x", "flat"], ["same"]),
        helper.make_node("Identity", ["e"], ["one"]),
        helper.make_node("Identity", ["e"], ["other"]),
        helper.make_node("Slice", ["e", "begin", "end", "axis"], ["part"]),
        helper.make_node("Greater", ["e", "w"], ["more"]),
        helper.make_node("ArgMax", ["e"], ["most"], axis=1, keepdims=0),
        helper.make_node("Split", ["e"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Add", ["left", "right"], ["sum"]),
        helper.make_node("TopK", ["e", "two"], ["best", "where"], axis=1),
    ]
    weights = {
        "w": np.arange(6, dtype=np.float32),
        "flat": np.array([-1], np.int64),
        "begin": np.array([1], np.int64),
        "end": np.array([3], np.int64),
        "axis": np.array([0], np.int64),
        "two": np.array([2], np.int64),
    }
    outputs = [_info("weight", [6]), _info("same", ["m"]), _info("one", ["n", 6]), _info("other", ["n", 6]), _info("part", ["k", 6]),
               _info("more", ["n", 6], "bool"), _info("most", ["n"], "int64"), _info("right", ["n", 3]), _info("sum", ["n", 3]),
               _info("best", ["n", 2]), _info("where", ["n", 2], "int64")]  # fmt: skip
    model = _model(nodes, [_info("x", ["n", 6])], outputs, weights)
    model.opset_import[0].version = 18
    return model


def cut_by_the_data() -> onnx.ModelProto:
    """Rows of what the GPU computed, as many as the data say: a view whose size a run tells, as an output and for the GPU again."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["count"], ["most"], keepdims=1),
        helper.make_node("Slice", ["a", "begin", "most", "axis"], ["rows"]),
        helper.make_node("Relu", ["rows"], ["y"]),
        helper.make_node("Softmax", ["a"], ["z"]),
    ]
    weights = {"w": _rng().standard_normal((16, 8)).astype(np.float32), "begin": np.array([0], np.int64), "axis": np.array([0], np.int64)}
    inputs = [_info("x", [12, 16]), _info("count", [3], "int64")]
    return _model(nodes, inputs, [_info("rows", ["n", 8]), _info("y", ["n", 8]), _info("z", [12, 8])], weights)


def scan() -> onnx.ModelProto:
    """A Scan over rows at odd places, with a branch in its body and large work for the GPU in both."""

    def arm(name: str, kind: str) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["mixed", "v"], [f"{name}_1"]), helper.make_node(kind, [f"{name}_1"], [f"{name}_2"])]
        return helper.make_graph(nodes, name, [], [_info(f"{name}_2", [129, 129])])

    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "row"], ["mixed"]),
            helper.make_node("ReduceSum", ["mixed"], ["s"], keepdims=0),
            helper.make_node("Greater", ["s", "zero"], ["more"]),
            helper.make_node("If", ["more"], ["next"], then_branch=arm("then", "Tanh"), else_branch=arm("other", "Sigmoid")),
            helper.make_node("ReduceMean", ["next"], ["told"], axes=[1], keepdims=0),
        ],
        "body",
        [_info("h", [129, 129]), _info("row", [129])],
        [_info("next", [129, 129]), _info("told", [129])],
    )
    nodes = [helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)]
    rng = _rng()
    weights = {
        "v": rng.standard_normal((129, 129)).astype(np.float32) / 12,
        "zero": np.array(0, np.float32),
        "start": rng.standard_normal((129, 129)).astype(np.float32),
    }
    return _model(nodes, [_info("x", [3, 129])], [_info("last", [129, 129]), _info("y", [3, 129])], weights)


Inputs = dict[str, np.ndarray]


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def resized() -> onnx.ModelProto:
    """What a convolution and a ReLU leave, larger and smaller in all the ways that mix neighbours; each mixes what the same kernel may
    have written, or what tables of places name."""
    weights = {
        "w": _rng().standard_normal((6, 3, 3, 3)).astype(np.float32) / 4,
        "double": np.array([1, 1, 2, 2], np.float32),
        "less": np.array([1, 1, 0.6, 0.7], np.float32),
    }
    kinds = {
        "linear": ("double", {"mode": "linear"}),
        "aligned": ("double", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        "cubic": ("double", {"mode": "cubic"}),
        "smooth": ("less", {"mode": "cubic", "antialias": 1}),
    }
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"])]
    for name, (scales, attributes) in kinds.items():
        nodes.append(helper.make_node("Resize", ["r", "", scales], [name], **attributes))
    outputs = [_info(name, [1, 6, *((22, 18) if kinds[name][0] == "double" else (6, 6))]) for name in kinds]
    return _model(nodes, [_info("x", [1, 3, 11, 9])], outputs, weights, opset=18)


def two_products() -> onnx.ModelProto:
    """A sum of two products, which may be one function."""
    rng = _rng()
    weights = {name: rng.standard_normal((32, 24)).astype(np.float32) for name in ("v", "w")}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["t"]),
        helper.make_node("Add", ["a", "t"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    return _model(nodes, [_info("x", [5, 32])], [_info("y", [5, 24])], weights)


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], list[Inputs]]] = {
    "dense": (dense, [{"x": _normal(4, 32)}]),
    "any_rows": (any_rows, [{"x": _normal(n, 32)} for n in (3, 3, 3, 9, 1, 9, 3)]),
    "joined": (joined, [{"x": _normal(1, 7)}]),
    "found_while_running": (found_while_running, [{"x": _normal(12, 16) + shift} for shift in (0, 0.5, -9)]),
    "branches": (branches, [{"x": _normal(4, 16)}, {"x": -_normal(4, 16)}]),
    "loop": (loop, [{"x": _normal(64, 129), "n": np.array(n, np.int64)} for n in (3, 1, 5)]),
    "outputs_of_all_kinds": (outputs_of_all_kinds, [{"x": _normal(n, 6)} for n in (4, 3, 5)]),
    "cut_by_the_data": (
        cut_by_the_data,
        [{"x": _normal(12, 16), "count": np.array(c, np.int64)} for c in ([1, 5, 2], [12, 3, 0], [1, 1, 1])],
    ),
    "scan": (scan, [{"x": _normal(3, 129)}, {"x": -_normal(3, 129) - 40}]),
    "resized": (resized, [{"x": _normal(1, 3, 11, 9)}]),
    "two_products": (two_products, [{"x": _normal(5, 32)}]),
    "convolutions": (convolutions, [{"x": _normal(n, 3, 17, 15)} for n in (1, 2, 1)]),
}
"""Networks, each with the inputs of some runs in turn."""


def running_sum() -> onnx.ModelProto:
    """total := total + x @ w, a state where ``total`` is one; y = softmax(total)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["total", "a"], ["next_total"]),
        helper.make_node("Softmax", ["next_total"], ["y"], axis=-1),
    ]
    inputs, outputs = [_info("x", [4, 32]), _info("total", [4, 16])], [_info("y", [4, 16]), _info("next_total", [4, 16])]
    return _model(nodes, inputs, outputs, {"w": _rng().standard_normal((32, 16)).astype(np.float32) / 8})


def look_at_sum() -> onnx.ModelProto:
    """y = sigmoid(total), for another entry point on the state of ``running_sum``."""
    nodes = [helper.make_node("Sigmoid", ["total"], ["y"]), helper.make_node("Identity", ["total"], ["next_total"])]
    return _model(nodes, [_info("total", [4, 16])], [_info("y", [4, 16]), _info("next_total", [4, 16])])
