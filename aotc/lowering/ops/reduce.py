"""Tensor expressions of the reductions, softmax, running sums and the k greatest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant
from aotc.lowering.ops.elementwise import exp_of_negative, log
from aotc.lowering.ops.extern import extern, local, rows
from aotc.lowering.ops.sort import top_k


def _sum(source: Expr, axis: list[te.IterVar]) -> Expr:
    return te.sum(source, axis=axis)


REDUCERS: dict[str, Callable[..., Expr]] = {
    "sum": _sum,
    "mean": _sum,
    "prod": common.prod_reduce,
    "max": common.max_reduce,
    "min": common.min_reduce,
    "all": common.all_reduce,
    "any": common.any_reduce,
}


def _reduced_axes(axes: Sequence[int], rank: int) -> list[int]:
    return sorted(axis % rank for axis in axes) if rank else []


def _place(rank: int, reduced: Sequence[int], keepdims: bool, outer: Sequence[Expr], inner: Sequence[Expr]) -> list[Expr]:
    """The index into the operand: reduction variables on the reduced axes, the result's indices on the others."""
    kept = [i for axis, i in enumerate(outer) if not keepdims or axis not in reduced]
    kept_iter, inner_iter = iter(kept), iter(inner)
    return [next(inner_iter) if axis in reduced else next(kept_iter) for axis in range(rank)]


def _reduction(name: str, reducer: Callable[..., Expr]) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        x, dtype = inputs[0], results[0].dtype
        rank = len(x.shape)
        reduced = _reduced_axes(attrs.axes, rank)
        shape = common.extents(scope, results[0].shape)
        if not reduced:
            return [common.compute(shape, lambda *i: x(*i), name)]  # noqa: PLW0108  te looks at the parameters
        wide = accumulator(dtype) if name in ("sum", "mean", "prod") else dtype
        axes = [te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in reduced]

        def body(*i: Expr) -> Expr:
            return reducer(cast(x(*_place(rank, reduced, attrs.keepdims, i, [a.var for a in axes])), wide), axis=axes)

        total = common.compute(shape, body, name)
        if name != "mean" and wide == dtype:
            return [total]

        def finish(*i: Expr) -> Expr:
            return cast(total(*i) / common.count_of(axes, wide) if name == "mean" else total(*i), dtype)

        return [common.compute(shape, finish, f"{name}_rounded")]

    return build


def extreme_with_index(largest: bool, select_last: bool) -> Callable[..., Any]:
    """A reducer of pairs (int32 index, value): a NaN wins over all; of equals the first or last index wins."""

    def taken(i: Expr, x: Expr, j: Expr, y: Expr) -> Expr:
        """Whether (j, y) wins over (i, x)."""
        later = j > i if select_last else j < i
        better = (y > x) if largest else (y < x)
        same = y == x
        if common.is_float(common.dtype_of(x)):
            better = tirx.any(better, tirx.all(common.is_nan(y), tirx.Not(common.is_nan(x))))
            same = tirx.any(same, tirx.all(common.is_nan(y), common.is_nan(x)))
        return tirx.any(better, tirx.all(same, later))

    def combine(a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        (i, x), (j, y) = a, b
        named = common.let if common.is_float(common.dtype_of(y)) else _unnamed
        index = named(y, lambda z: tirx.Select(taken(i, x, j, z), j, i))
        return index, named(y, lambda z: tirx.Select(taken(i, x, j, z), z, x))

    def identity(index_dtype: str, dtype: str) -> tuple[Expr, Expr]:
        start = constant(-1, index_dtype) if select_last else tirx.max_value(index_dtype)
        return start, common.least(dtype) if largest else common.greatest(dtype)

    return te.comm_reducer(combine, identity, name="extreme")


def _unnamed(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """As ``common.let``, without a name: TVM gives the names of integers a range, and fails where it is another one the second
    time."""
    return body(value)


def _arg(largest: bool) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        x = inputs[0]
        rank = len(x.shape)
        shape = common.extents(scope, results[0].shape)
        if not rank:
            return [common.compute(shape, lambda *i: constant(0, "int64"), "arg")]
        axis = attrs.axis % rank
        k = te.reduce_axis((0, x.shape[axis]), "k")
        reducer = extreme_with_index(largest, attrs.select_last)

        def body(*i: Expr) -> Any:
            return reducer((k.var, x(*_place(rank, [axis], attrs.keepdims, i, [k.var]))), axis=[k])

        index, _ = te.compute(shape, body, name="arg")
        return [common.compute(shape, lambda *i: cast(index(*i), "int64"), "arg_index")]

    return build


def _without(indices: Sequence[Expr], axis: int) -> list[Expr]:
    return [i for position, i in enumerate(indices) if position != axis]


def _softmax_of_one(x: Expr, value: Expr) -> Expr:
    """``value`` for a finite x, else NaN."""
    dtype = common.dtype_of(x)
    infinite = tirx.any(x == constant(float("inf"), dtype), x == constant(float("-inf"), dtype))
    return tirx.Select(tirx.any(common.is_nan(x), infinite), constant(float("nan"), dtype), value)


def _softmax(logarithm: bool) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        x, dtype = inputs[0], results[0].dtype
        wide, rank = accumulator(dtype), len(inputs[0].shape)
        if not rank:
            value = constant(0.0 if logarithm else 1.0, dtype)
            return [common.compute((), lambda: _softmax_of_one(x(), value), "softmax")]
        axis = attrs.axis % rank
        rows_shape = _without(x.shape, axis)
        k, k2 = (te.reduce_axis((0, x.shape[axis]), name) for name in ("k", "k2"))

        def at(i: Sequence[Expr], position: Expr) -> list[Expr]:
            return [*i[:axis], position, *i[axis:]]

        top = common.compute(rows_shape, lambda *i: common.max_reduce(cast(x(*at(i, k.var)), wide), axis=[k]), "row_max")
        power = common.compute(x.shape, lambda *i: exp_of_negative(cast(x(*i), wide) - top(*_without(i, axis))), "power")
        total = common.compute(rows_shape, lambda *i: te.sum(power(*at(i, k2.var)), axis=[k2]), "row_sum")
        if logarithm:
            shift = common.compute(rows_shape, lambda *i: log(total(*i)), "log_sum")

            def body(*i: Expr) -> Expr:
                row = _without(i, axis)
                return cast((cast(x(*i), wide) - top(*row)) - shift(*row), dtype)

        else:
            inverse = common.compute(rows_shape, lambda *i: constant(1, wide) / total(*i), "inverse")

            def body(*i: Expr) -> Expr:
                return cast(power(*i) * inverse(*_without(i, axis)), dtype)

        return [common.compute(x.shape, body, "softmax")]

    return build


def _running(name: str, combine: Callable[[Expr, Expr], Expr], neutral: Callable[[str], Expr]) -> Expression:
    """Running sums, products and extremes, each element combined with what came before it."""

    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        x, dtype = inputs[0], results[0].dtype
        axis = attrs.axis % len(x.shape)
        wide = accumulator(dtype)
        length = x.shape[axis]

        def body(source: Any, target: Any) -> None:
            with rows(scope, _without(results[0].shape, axis), results[0].shape[axis]) as row:
                total = local(wide)
                total[0] = neutral(wide)
                with T.serial(0, length) as step:
                    place = [*row[:axis], length - 1 - step if attrs.reverse else step, *row[axis:]]
                    if attrs.exclusive:
                        target[place] = cast(total[0], dtype)
                        total[0] = combine(total[0], cast(source[place], wide))
                    else:
                        total[0] = combine(total[0], cast(source[place], wide))
                        target[place] = cast(total[0], dtype)

        return extern(inputs, [(x.shape, dtype)], body, name)

    return build


def _further(better: Expr, total: Expr, x: Expr) -> Expr:
    """``x`` where it is better or a NaN, which then stays."""
    return tirx.Select(tirx.any(better, common.is_nan(x)) if common.is_float(common.dtype_of(x)) else better, x, total)


EXPRESSIONS: dict[str, Expression] = {
    **{name: _reduction(name, reducer) for name, reducer in REDUCERS.items()},
    "argmax": _arg(largest=True),
    "argmin": _arg(largest=False),
    "softmax": _softmax(logarithm=False),
    "log_softmax": _softmax(logarithm=True),
    "cumsum": _running("cumsum", lambda total, x: total + x, lambda dtype: constant(0, dtype)),
    "cumprod": _running("cumprod", lambda total, x: total * x, lambda dtype: constant(1, dtype)),
    "cummax": _running("cummax", lambda total, x: _further(x > total, total, x), common.least),
    "cummin": _running("cummin", lambda total, x: _further(x < total, total, x), common.greatest),
    "top_k": top_k,
}
