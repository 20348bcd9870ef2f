"""The k greatest or least elements along an axis: a heap of k in the outputs, then a heap sort in place.

O(n log k) and without scratch. The order is total (value, then lower index first; a NaN is the greatest value), so the
result is unique.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local, rows

Place = Callable[[Expr], "list[Expr]"]


def _comes_first(largest: bool, x: Expr, i: Expr, y: Expr, j: Expr) -> Expr:
    """Whether (value x, index i) precedes (y, j)."""
    better, same = (x > y) if largest else (x < y), x == y
    if common.is_float(common.dtype_of(x)):
        greater, lesser = (x, y) if largest else (y, x)
        better = tirx.any(better, tirx.all(common.is_nan(greater), tirx.Not(common.is_nan(lesser))))
        same = tirx.any(same, tirx.all(common.is_nan(x), common.is_nan(y)))
    return tirx.any(better, tirx.all(same, i < j))


class _Heap:
    """A heap in ``values`` and ``indices`` at ``place(0)`` to ``place(size - 1)`` whose root comes last of all."""

    def __init__(self, values: Any, indices: Any, place: Place, largest: bool) -> None:
        self.values, self.indices, self.place, self.largest = values, indices, place, largest
        self.hole, self.child = local("int32"), local("int32")

    def later(self, a: Expr, b: Expr) -> Expr:
        """Whether the entry at ``a`` comes after the one at ``b``."""
        return _comes_first(
            self.largest, self.values[self.place(b)], self.indices[self.place(b)], self.values[self.place(a)], self.indices[self.place(a)]
        )

    def put(self, at: Expr, value: Expr, index: Expr) -> None:
        self.values[self.place(at)] = value
        self.indices[self.place(at)] = index

    def sink(self, start: Expr, size: Expr, value: Any, index: Any) -> None:
        """Puts (value[0], index[0]) into the hole at ``start`` and restores the order below it."""
        hole, child = self.hole, self.child
        hole[0] = start
        child[0] = start * 2 + 1
        with T.While(child[0] < size):
            with T.If(child[0] + 1 < size), T.Then(), T.If(self.later(child[0] + 1, child[0])), T.Then():
                child[0] = child[0] + 1
            at = self.place(child[0])
            with T.If(_comes_first(self.largest, value[0], index[0], self.values[at], self.indices[at])):
                with T.Then():
                    self.put(hole[0], self.values[at], self.indices[at])
                    hole[0] = child[0]
                    child[0] = hole[0] * 2 + 1
                with T.Else():
                    child[0] = size
        self.put(hole[0], value[0], index[0])


def _nothing(dtype: str, *i: Expr) -> Expr:
    return constant(0, dtype)


def top_k(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, k = inputs[0], scope.expr(attrs.k)
    shape = common.extents(scope, results[0].shape)
    if attrs.k == 0:
        return [common.compute(shape, partial(_nothing, t.dtype), "top_k") for t in results]
    axis = attrs.axis % len(x.shape)
    outer = [dim for position, dim in enumerate(results[0].shape) if position != axis]

    def body(source: Any, values: Any, indices: Any) -> None:
        some = tirx.const(True, "bool") if isinstance(attrs.k, int) else k > int_constant(0)
        with rows(scope, outer, scope.dim(x.shape[axis])) as row, T.If(some), T.Then():

            def place(position: Expr) -> list[Expr]:
                return [*row[:axis], position, *row[axis:]]

            heap, value, index = _Heap(values, indices, place, attrs.largest), local(common.dtype_of(x)), local("int64")

            def take(at: Expr) -> None:
                value[0] = heap.values[place(at)]
                index[0] = heap.indices[place(at)]

            with T.serial(0, k) as i:
                heap.put(i, source[place(i)], cast(i, "int64"))
            half = tirx.floordiv(k, int_constant(2))
            with T.serial(0, half) as i:
                take(half - 1 - i)
                heap.sink(half - 1 - i, k, value, index)
            with T.serial(0, x.shape[axis] - k) as i:
                value[0] = source[place(i + k)]
                index[0] = cast(i + k, "int64")
                root = place(int_constant(0))
                with T.If(_comes_first(attrs.largest, value[0], index[0], values[root], indices[root])), T.Then():
                    heap.sink(int_constant(0), k, value, index)
            with T.serial(0, k - 1) as i:
                last = k - 1 - i
                take(last)
                heap.put(last, values[place(int_constant(0))], indices[place(int_constant(0))])
                heap.sink(int_constant(0), last, value, index)

    return extern(inputs, [(shape, t.dtype) for t in results], body, "top_k")
