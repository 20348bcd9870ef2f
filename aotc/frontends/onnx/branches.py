"""Bodies of which one runs, as ``If`` nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc import ops
from aotc.errors import UnsupportedModel
from aotc.frontends.onnx.bodies import Body, captured_by, merged_dim, tensor_types
from aotc.frontends.onnx.dynamic import Dynamic
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr, Function, If, TupleGetItem, Var
from aotc.ir.types import TensorType, TupleType, flatten
from aotc.ir.visitor import substitute


def branches(dynamic: Dynamic, bodies: Sequence[Body], conditions: Sequence[Expr], origin: str) -> list[Expr]:
    """The results of the first of ``bodies`` whose condition holds, else of the last. Dims in which they differ become symbols.

    Raises UnsupportedModel where results differ in number, dtype or rank.
    """
    bodies = _with_equal_ranks(bodies)
    args = [*dict.fromkeys([*captured_by(*bodies), *conditions])]
    result = _chain(dynamic, bodies, [args.index(condition) for condition in conditions], args, args, origin)
    return [TupleGetItem(result, i, origin) for i in range(len(flatten(result.type)))]


def _with_equal_ranks(bodies: Sequence[Body]) -> list[Body]:
    """Results of one element in one rank: exporters leave a scalar here and one element there, and it does not matter after."""
    ranks = [
        max((t.rank for t in types), default=0) for types in zip(*(tensor_types(body.results, "a branch") for body in bodies), strict=False)
    ]
    return [
        replace(body, results=tuple(_raised(x, rank) for x, rank in zip(body.results, ranks, strict=False)) + body.results[len(ranks) :])
        for body in bodies
    ]


def _raised(x: Expr, rank: int) -> Expr:
    type_ = x.type
    if isinstance(type_, TensorType) and type_.rank < rank and type_.size == 1:
        return ops.reshape(x, shape=(1,) * rank)
    return x


def _chain(
    dynamic: Dynamic, bodies: Sequence[Body], conditions: Sequence[int], outside: Sequence[Expr], args: Sequence[Expr], origin: str
) -> Expr:  # fmt: skip
    """The choice in terms of ``args``, which stand for ``outside`` here. ``conditions`` are numbers of arguments."""
    first = bodies[0].function(outside, "then")
    if len(bodies) == 1:
        return substitute(first.body, dict(zip(first.params, args, strict=True)))
    params = [Var(f"p{i}", arg.type) for i, arg in enumerate(args)]
    rest = _chain(dynamic, bodies[1:], conditions[1:], outside, params, origin)
    known_inside = [bodies[0], *bodies[1:]]
    type_ = TupleType(tuple(_merged(dynamic, known_inside, first.body, rest, origin)))
    return If(args[conditions[0]], first, Function(tuple(params), rest, "else"), tuple(args), type_, origin)


def _merged(dynamic: Dynamic, bodies: Sequence[Body], one: Expr, other: Expr, origin: str) -> list[TensorType]:
    first, second = flatten(one.type), flatten(other.type)
    if len(first) != len(second):
        raise UnsupportedModel(f"{origin!r}: the branches give {len(first)} and {len(second)} results; make them equal")
    merged = []
    for a, b in zip(first, second, strict=True):
        if a.dtype != b.dtype or a.rank != b.rank:
            raise UnsupportedModel(f"{origin!r}: a result is {a} in one branch and {b} in the other; make them equal in type and rank")
        merged.append(TensorType(tuple(_dim(dynamic, bodies, x, y) for x, y in zip(a.shape, b.shape, strict=True)), a.dtype))
    return merged


def _dim(dynamic: Dynamic, bodies: Sequence[Body], one: Dim, other: Dim) -> Dim:
    if one == other and not any(body.mentions(one) for body in bodies):
        return one
    return dynamic.symbol(*merged_dim(one, other))


def check_results(bodies: Sequence[Body], origin: str) -> None:
    """Raises UnsupportedModel where a body gives something else than tensors."""
    for body in bodies:
        tensor_types(body.results, repr(origin))
