"""Operators that make tensors from nothing, and those that read shapes."""

from __future__ import annotations

import math

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import run_time
from aotc.frontends.onnx.tensors import dtype_of, sparse_to_array, to_array
from aotc.ir.dims import Dim, DimExpr, ceildiv, maximum, product
from aotc.ir.expr import Constant, Expr
from aotc.ir.types import FLOATS

FEW = 16  # elements; floats up to this many in a Constant node are no weight


def _constant(node: Node) -> Results:
    array = _constant_array(node)
    if array.size > FEW and str(array.dtype) in FLOATS:
        return node.weight(node.origin, array)
    return Constant(array, node.origin)


def _constant_array(node: Node) -> np.ndarray:
    what = f"the constant {node.origin!r}"
    for name, attribute in node.attributes.items():
        if name == "value":
            return to_array(attribute.t, what, node.folder)
        if name == "sparse_value":
            return sparse_to_array(attribute.sparse_tensor, what, node.folder)
        if name in ("value_float", "value_floats"):
            return np.asarray(attribute.f if name == "value_float" else list(attribute.floats), np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(attribute.i if name == "value_int" else list(attribute.ints), np.int64)
        if name in ("value_string", "value_strings"):
            node.unsupported("holds strings; aotc takes numbers")
    node.invalid("has no value")


def _constant_of_shape(node: Node) -> Results:
    shape = node.dims(0, "the shape")
    if shape is None:
        node.invalid("the shape is missing")
    value = np.zeros(1, np.float32)
    if node.has("value"):
        value = to_array(node.attributes["value"].t, f"the value of {node.origin!r}", node.folder)
        if value.size != 1:
            node.invalid(f"the value must be one element, not {list(value.shape)}")
    return node.call(ops.full, shape=shape, value=value.reshape(()).item(), dtype=str(value.dtype))


def _range(node: Node) -> Results:
    """start, limit and step are known: numbers, or dims for integers."""
    dtype = node.dtype(node.input(0))
    if not all(node.is_known(i) for i in range(3)):
        return run_time.range_(node, node.input(0), node.input(1), node.input(2))
    parts = [node.value(index, name) for index, name in enumerate(("start", "limit", "delta"))]
    if any(part is None or part.size != 1 for part in parts):
        node.invalid("start, limit and delta must be one number each")
    start, limit, delta = (part.reshape(-1)[0] if part.dtype == object else part.reshape(-1)[0].item() for part in parts)  # type: ignore[union-attr]
    if delta == 0:
        node.invalid("delta must not be 0")
    if dtype in FLOATS:
        if not all(isinstance(each, float) for each in (start, limit, delta)):
            node.unsupported("a range of floats over dims that are known only at run time")
        count: Dim = max(math.ceil((limit - start) / delta), 0)
    else:
        if not isinstance(delta, int):
            node.unsupported(f"the step of the range is {delta}, and must be a number when the model is built")
        count = maximum(ceildiv(limit - start, delta) if delta > 0 else ceildiv(start - limit, -delta), 0)
    return node.call(ops.arange, start=start, step=delta, count=count, dtype=dtype)


def _shape(node: Node) -> Results:
    shape = node.shape(node.input(0))
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return _dims(node, shape[start:end] if start >= -len(shape) else shape[0:end])


def _size(node: Node) -> Results:
    size = product(node.shape(node.input(0)))
    return node.call(ops.dims, values=(size,), scalar=True) if isinstance(size, DimExpr) else node.constant(size, "int64")


def _dims(node: Node, values: tuple[Dim, ...]) -> Expr:
    if any(isinstance(value, DimExpr) for value in values):
        return node.call(ops.dims, values=values)
    return node.constant(values, "int64")


def _eye_like(node: Node) -> Results:
    x, k = node.input(0), node.integer("k", 0)
    if node.rank(x) != 2:
        node.invalid(f"takes a matrix, not {node.type(x)}")
    dtype = dtype_of(node.integer("dtype"), f"the result of {node.origin!r}") if node.has("dtype") else node.dtype(x)
    rows, columns = node.shape(x)
    row = node.call(ops.reshape, node.call(ops.arange, start=k, step=1, count=rows, dtype="int64"), shape=(rows, 1))
    column = node.call(ops.arange, start=0, step=1, count=columns, dtype="int64")
    return node.call(ops.cast, node.call(ops.equal, row, column), dtype=dtype)


HANDLERS: dict[str, Handler] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
    "EyeLike": _eye_like,
}
