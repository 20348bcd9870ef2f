"""Mutants of ONNX models: one seed, one mutant. Structure-aware ones stay sound protobufs, byte-level ones need not."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import TensorProto

SIZES = (0, 1, 2, 3, 7, 64, -1, -5, 2**31 - 1, 2**31, 2**40, -(2**63), 2**63 - 1)
OPERATORS = ("Relu", "Conv", "Concat", "Reshape", "Gather", "Loop", "Split", "LSTM", "Resize", "NoSuchOperator", "MatMul", "TopK", "Pad")


def structured(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, str]:
    """A copy of ``model`` with one to three changes, and what they were."""
    chance, mutant = random.Random(seed), onnx.ModelProto()
    mutant.CopyFrom(model)
    told = []
    wanted = chance.choice((1, 1, 1, 2, 3))
    while len(told) < wanted:
        change = chance.choice(CHANGES)
        if (done := change(mutant.graph, chance, mutant)) is not None:
            told.append(f"{change.__name__}: {done}")
    return mutant, "; ".join(told)


def damaged(data: bytes, seed: int) -> tuple[bytes, str]:
    """``data`` cut, or with bytes flipped, replaced, doubled or left out."""
    chance, mutant = random.Random(seed), bytearray(data)
    kind = chance.choice(("cut", "flip", "replace", "double", "drop", "zero"))
    at = chance.randrange(len(mutant))
    length = chance.choice((1, 2, 4, 16, 256))
    if kind == "cut":
        del mutant[at:]
    elif kind == "flip":
        for _ in range(length):
            mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
    elif kind == "replace":
        mutant[at : at + length] = chance.randbytes(length)
    elif kind == "double":
        mutant[at:at] = mutant[at : at + length]
    elif kind == "drop":
        del mutant[at : at + length]
    else:
        mutant[at : at + length] = bytes(length)
    return bytes(mutant), f"{kind} {length} at {at}"


def _node(graph: onnx.GraphProto, chance: random.Random) -> onnx.NodeProto | None:
    return chance.choice(graph.node) if graph.node else None


def _tensors(graph: onnx.GraphProto) -> list[TensorProto]:
    """The weights, wherever the exporter keeps them."""
    return [*graph.initializer, *(a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value")]


def input_dims(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    values = [value for value in (*graph.input, *graph.output) if value.type.tensor_type.shape.dim]
    if not values:
        return None
    value = chance.choice(values)
    dims = value.type.tensor_type.shape.dim
    if chance.random() < 0.3:
        dims.add().dim_value = chance.choice(SIZES)
        return f"one more axis of {value.name}"
    dims[chance.randrange(len(dims))].dim_value = size = chance.choice(SIZES)
    return f"a dim of {value.name} is {size}"


def weight_dims(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    tensors = [tensor for tensor in _tensors(graph) if tensor.dims]
    if not tensors:
        return None
    tensor = chance.choice(tensors)
    tensor.dims[chance.randrange(len(tensor.dims))] = size = chance.choice(SIZES)
    return f"a dim of {tensor.name} is {size}"


def weight_data(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    tensors = [tensor for tensor in _tensors(graph) if tensor.raw_data]
    if not tensors:
        return None
    tensor = chance.choice(tensors)
    tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data))]
    return f"the data of {tensor.name} are cut"


def dtype(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str:
    kind = chance.randrange(-1, 30)
    tensors = _tensors(graph)
    if tensors and chance.random() < 0.5:
        tensor = chance.choice(tensors)
        tensor.data_type = kind
        return f"{tensor.name} has data type {kind}"
    value = chance.choice((*graph.input, *graph.output))
    value.type.tensor_type.elem_type = kind
    return f"{value.name} has element type {kind}"


def external(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    tensors = _tensors(graph)
    if not tensors:
        return None
    tensor = chance.choice(tensors)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", chance.choice(("nowhere.bin", "/etc/passwd", "../../secret", ""))),
        ("offset", str(chance.choice(SIZES))),
    ):
        tensor.external_data.add(key=key, value=value)
    return f"{tensor.name} lies outside"


def attribute(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    nodes = [node for node in graph.node if node.attribute]
    if not nodes:
        return None
    node = chance.choice(nodes)
    found = chance.choice(node.attribute)
    size = chance.choice(SIZES)
    what = chance.choice(("value", "more", "fewer", "kind", "name", "gone"))
    if what == "value" and found.ints:
        found.ints[chance.randrange(len(found.ints))] = size
    elif what == "value":
        found.i = size
    elif what == "more":
        found.ints.append(size)
    elif what == "fewer" and found.ints:
        found.ints.pop()
    elif what == "kind":
        found.type = chance.randrange(15)
    elif what == "name":
        found.name = "axis"
    else:
        node.attribute.remove(found)
    return f"attribute of {node.name or node.output[0]}: {what}"


def edge(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    """An input of a node reads something else: a cycle too, a name that is not there, nothing at all."""
    node = _node(graph, chance)
    if node is None or not node.input:
        return None
    names = [name for other in graph.node for name in other.output] + [value.name for value in graph.input] + ["no such name", ""]
    node.input[chance.randrange(len(node.input))] = name = chance.choice(names)
    return f"{node.name or node.output[0]} reads {name!r}"


def operator(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    node = _node(graph, chance)
    if node is None:
        return None
    node.op_type = chance.choice(OPERATORS)
    return f"{node.name or node.output[0]} is {node.op_type}"


def arity(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    node = _node(graph, chance)
    if node is None:
        return None
    where = chance.choice((node.input, node.output))
    if chance.random() < 0.5 and len(where):
        where.pop()
    else:
        where.append(chance.choice(graph.node).output[0])
    return f"another number of inputs or outputs of {node.name or node.op_type}"


def lost_node(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    node = _node(graph, chance)
    if node is None:
        return None
    graph.node.remove(node)
    return f"{node.name or node.op_type} is gone"


def twice(graph: onnx.GraphProto, chance: random.Random, _: onnx.ModelProto) -> str | None:
    node = _node(graph, chance)
    if node is None:
        return None
    graph.node.add().CopyFrom(node)
    return f"{node.name or node.op_type} comes twice"


def opset(graph: onnx.GraphProto, chance: random.Random, model: onnx.ModelProto) -> str:
    model.opset_import[0].version = version = chance.choice((1, 6, 7, 9, 11, 13, 18, 22, 99, *SIZES))
    return f"opset {version}"


CHANGES: tuple[Callable[[onnx.GraphProto, random.Random, onnx.ModelProto], str | None], ...] = (
    input_dims, weight_dims, weight_data, dtype, external, attribute, attribute, edge, edge, operator, arity, lost_node, twice, opset,
)  # fmt: skip
