"""What the tensor expressions of all operators share: shapes, constants, reducers with numpy's treatment of NaN, casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from aotc.ir.dims import Dim
from aotc.ir.types import TensorType

Expr = Any  # a tirx primitive expression
Scope = Any  # aotc.lowering.scope.DimScope: maps a Dim to an int32 expression
Expression = Callable[[Any, "list[te.Tensor]", "list[TensorType]", Scope], "list[te.Tensor]"]

INDEX = "int32"


def extents(scope: Scope, shape: Sequence[Dim]) -> tuple[Expr, ...]:
    """The extents of a shape as int32 expressions."""
    return tuple(scope.expr(dim) for dim in shape)


def dtype_of(value: Expr) -> str:
    """The dtype of an expression or a tensor."""
    return str(value.dtype) if isinstance(value, te.Tensor) else str(value.ty)


def constant(value: float | int | bool, dtype: str) -> Expr:
    """A literal of any dtype, infinities and NaN included. Beyond the largest float16 it is infinite there."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            value = float(np.float16(value))
    if dtype.startswith("float"):
        return tirx.FloatImm(dtype, float(value))
    if dtype == "bool":
        return tirx.const(bool(value), "bool")
    if dtype == "uint64" and int(value) >= 2**63:
        return tirx.reinterpret("uint64", tirx.const(int(value) - 2**64, "int64"))
    return tirx.const(int(value), dtype)


def int_constant(value: int) -> Expr:
    return tirx.const(value, INDEX)


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent.value) == 1


def let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """``body`` of a name for ``value``. Needed wherever a value holds names itself and is used twice."""
    name = tirx.Var("x", dtype_of(value))
    return tirx.Let(name, value, body(name))


def is_nan(x: Expr) -> Expr:
    """Whether a float is a NaN, by its bits: TVM does not vectorise its own test."""
    bits, exponent = {"float16": (16, 0x7C00), "float32": (32, 0x7F800000), "float64": (64, 0x7FF0000000000000)}[dtype_of(x)]
    word = f"int{bits}"
    magnitude = tirx.bitwise_and(tirx.reinterpret(word, x), tirx.const(2 ** (bits - 1) - 1, word))
    return magnitude > tirx.const(exponent, word)


def differ(a: Expr, b: Expr) -> Expr:
    """``a != b`` as IEEE 754 has it, where TVM's own is false beside a NaN; for truth values, exclusive or."""
    dtype = dtype_of(a)
    if dtype == "bool":
        return tirx.Or(tirx.And(a, tirx.Not(b)), tirx.And(tirx.Not(a), b))
    if not is_float(dtype):
        return tirx.NE(a, b)
    return tirx.any(tirx.NE(a, b), is_nan(a), is_nan(b))


def static(extent: Expr) -> int | None:
    """The extent as an int where it is known."""
    return int(extent.value) if isinstance(extent, tirx.IntImm) else None


def cast(value: Expr, dtype: str) -> Expr:
    """numpy's ``astype``: floats to integers truncate, anything to bool is ``!= 0``."""
    source = dtype_of(value)
    if source == dtype:
        return value
    if dtype == "bool":
        return differ(value, constant(0, source))
    if source == "bool":
        return tirx.Select(value, constant(1, dtype), constant(0, dtype))
    if (source == "float16" and not is_float(dtype)) or (dtype == "float16" and not is_float(source)):
        return tirx.Cast(dtype, tirx.Cast("float32", value))
    return tirx.Cast(dtype, value)


def accumulator(dtype: str) -> str:
    """The dtype in which reductions over ``dtype`` run."""
    return "float32" if dtype == "float16" else dtype


def least(dtype: str) -> Expr:
    """The identity of max."""
    if is_float(dtype):
        return constant(float("-inf"), dtype)
    if dtype == "bool":
        return constant(False, dtype)
    return constant(0 if dtype.startswith("u") else -(2 ** (_bits(dtype) - 1)), dtype)


def greatest(dtype: str) -> Expr:
    """The identity of min."""
    if is_float(dtype):
        return constant(float("inf"), dtype)
    if dtype == "bool":
        return constant(True, dtype)
    return constant(2 ** _bits(dtype) - 1 if dtype.startswith("u") else 2 ** (_bits(dtype) - 1) - 1, dtype)


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("uint"))


def maximum(a: Expr, b: Expr) -> Expr:
    """The greater; NaN where either is NaN."""
    if dtype_of(a) == "bool":
        return tirx.Or(a, b)
    if isinstance(b, tirx.FloatImm) and not math.isnan(b.value):
        return tirx.Select(a < b, b, a)  # a NaN is not less
    if is_float(dtype_of(a)):
        return tirx.Select(tirx.any(a > b, is_nan(a)), a, b)
    return tirx.Max(a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """The lesser; NaN where either is NaN."""
    if dtype_of(a) == "bool":
        return tirx.And(a, b)
    if isinstance(b, tirx.FloatImm) and not math.isnan(b.value):
        return tirx.Select(a > b, b, a)
    if is_float(dtype_of(a)):
        return tirx.Select(tirx.any(a < b, is_nan(a)), a, b)
    return tirx.Min(a, b)


max_reduce = te.comm_reducer(maximum, least, name="max")
min_reduce = te.comm_reducer(minimum, greatest, name="min")
prod_reduce = te.comm_reducer(lambda a, b: a * b, lambda dtype: constant(1, dtype), name="prod")


def _both(a: Expr, b: Expr) -> Expr:
    return tirx.And(a, b)


def _either(a: Expr, b: Expr) -> Expr:
    return tirx.Or(a, b)


all_reduce = te.comm_reducer(_both, lambda dtype: constant(True, dtype), name="all")
any_reduce = te.comm_reducer(_either, lambda dtype: constant(False, dtype), name="any")


def broadcast_index(tensor: te.Tensor, indices: Sequence[Expr]) -> list[Expr]:
    """Where the element of a numpy broadcast comes from."""
    offset = len(indices) - len(tensor.shape)
    return [int_constant(0) if is_one(extent) else indices[offset + axis] for axis, extent in enumerate(tensor.shape)]


def load_broadcast(tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
    return tensor(*broadcast_index(tensor, indices))


def compute(shape: Sequence[Expr], body: Callable[..., Expr], name: str) -> te.Tensor:
    """``te.compute`` that also takes rank 0."""
    return te.compute(tuple(shape), body, name=name)


def row_major(indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The flat offset of an element."""
    offset: Expr = int_constant(0)
    for index, extent in zip(indices, shape, strict=True):
        offset = index if static(offset) == 0 else offset * extent + index
    return offset


def unravel(offset: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """The indices of a flat offset; extents of 1 give 0, and those of 0, whose indices nothing asks for."""
    indices: list[Expr] = []
    for axis in range(len(shape) - 1, -1, -1):
        if is_one(shape[axis]) or static(shape[axis]) == 0:
            indices.append(int_constant(0))
        elif all(is_one(extent) for extent in shape[:axis]):
            indices.append(offset)
        else:
            indices.append(tirx.floormod(offset, shape[axis]))
            offset = tirx.floordiv(offset, shape[axis])
    return indices[::-1]


def kept(shape: Sequence[Expr], body: Callable[..., Expr], name: str) -> te.Tensor:
    """A stage that a schedule must not inline: it is read many times and costs more than a load."""
    return te.compute(tuple(shape), body, name=name, attrs={"kept": 1})


def is_kept(tensor: te.Tensor) -> bool:
    return isinstance(tensor.op, te.ComputeOp) and "kept" in tensor.op.attrs


def count_of(axes: Sequence[te.IterVar], dtype: str) -> Expr:
    """How many elements a reduction over ``axes`` takes in, as a value that may be divided by: no literal 0."""
    count: Expr = int_constant(1)
    for axis in axes:
        count = count * axis.dom.extent
    if static(count) == 0:
        return constant(float("nan"), dtype)
    return cast(count, dtype)
