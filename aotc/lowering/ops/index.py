"""Tensor expressions of the operators that pick and place by index. An index out of range reads the nearest element and
writes nothing: a wrong input gives wrong numbers, never a stray access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, cast, int_constant
from aotc.lowering.ops.extern import extern


def _from_front(index: Expr, size: Expr) -> Expr:
    """An int32 index that counts from the front."""
    plain = cast(index, INDEX)
    return plain if common.dtype_of(index).startswith("u") else tirx.Select(plain < int_constant(0), plain + size, plain)


def _clamped(index: Expr, size: Expr) -> Expr:
    return tirx.max(tirx.min(_from_front(index, size), size - 1), int_constant(0))


def _gather(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, indices = inputs
    axis, count = attrs.axis % len(x.shape), len(indices.shape)

    def body(*i: Expr) -> Expr:
        index = _clamped(indices(*i[axis : axis + count]), x.shape[axis])
        return x(*i[:axis], index, *i[axis + count :])

    return [common.compute(common.extents(scope, results[0].shape), body, "gather")]


def _gather_elements(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, indices = inputs
    axis = attrs.axis % len(x.shape)

    def body(*i: Expr) -> Expr:
        return x(*i[:axis], _clamped(indices(*i), x.shape[axis]), *i[axis + 1 :])

    return [common.compute(indices.shape, body, "gather_elements")]


def _gather_nd(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, indices = inputs
    batch, depth, lead = attrs.batch_dims, int(indices.shape[-1]), len(indices.shape) - 1

    def body(*i: Expr) -> Expr:
        places = [_clamped(indices(*i[:lead], int_constant(d)), x.shape[batch + d]) for d in range(depth)]
        return x(*i[:batch], *places, *i[lead:])

    return [common.compute(common.extents(scope, results[0].shape), body, "gather_nd")]


def _one_hot(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    indices, values = inputs
    axis = attrs.axis % (len(indices.shape) + 1)

    def body(*i: Expr) -> Expr:
        index = _from_front(indices(*i[:axis], *i[axis + 1 :]), scope.expr(attrs.depth))
        return tirx.Select(index == i[axis], values(int_constant(1)), values(int_constant(0)))

    return [common.compute(common.extents(scope, results[0].shape), body, "one_hot")]


COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": common.minimum,
    "max": common.maximum,
}


def _scatter(
    inputs: list[te.Tensor], reduction: str, places: Callable[[Any, Sequence[Expr]], tuple[list[Expr], list[Expr]]], name: str
) -> list[te.Tensor]:
    """Copies x, then applies the updates one after another. ``places(indices, i)`` gives where update ``i`` goes and the
    conditions under which that lies in x."""
    x, _, updates = inputs

    def body(source: Any, indices: Any, new: Any, target: Any) -> None:
        with T.serial(0, 1):
            with _grid(x.shape) as at:
                target[at] = source[at]
            with _grid(updates.shape) as i:
                place, inside = places(indices, i)
                with T.If(tirx.all(*inside)), T.Then():
                    target[place] = COMBINE[reduction](target[place], new[i])

    return extern(inputs, [(x.shape, common.dtype_of(x))], body, name)


class _grid:
    """Nested serial loops over a shape; gives the index list. Rank 0 is a single step."""

    def __init__(self, shape: Sequence[Expr]) -> None:
        self.loops = [T.serial(0, extent) for extent in shape] or [T.serial(0, 1)]
        self.rank = len(shape)

    def __enter__(self) -> list[Expr]:
        indices = [loop.__enter__() for loop in self.loops]
        return indices if self.rank else [int_constant(0)]

    def __exit__(self, *error: Any) -> None:
        for loop in reversed(self.loops):
            loop.__exit__(*error)


def _inside(index: Expr, size: Expr) -> list[Expr]:
    return [index >= int_constant(0), index < size]


def _scatter_elements(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    axis = attrs.axis % len(x.shape)

    def places(indices: Any, i: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        index = _from_front(indices[list(i)], x.shape[axis])
        return [*i[:axis], index, *i[axis + 1 :]], _inside(index, x.shape[axis])

    return _scatter(inputs, attrs.reduction, places, "scatter_elements")


def _scatter_nd(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, indices_tensor = inputs[0], inputs[1]
    depth, lead = int(indices_tensor.shape[-1]), len(indices_tensor.shape) - 1

    def places(indices: Any, i: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        found = [_from_front(indices[[*i[:lead], int_constant(d)]], x.shape[d]) for d in range(depth)]
        inside = [condition for index, size in zip(found, x.shape, strict=False) for condition in _inside(index, size)]
        return [*found, *i[lead:]], inside

    return _scatter(inputs, attrs.reduction, places, "scatter_nd")


EXPRESSIONS: dict[str, Expression] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "one_hot": _one_hot,
}
