"""torch.cond, while_loop, scan and map: the graphs that they hold become the bodies of ``If`` and ``Loop``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from aotc import ops
from aotc.errors import UnsupportedModel
from aotc.frontends.torch.builder import dtype_name
from aotc.frontends.torch.symbols import SymbolTable
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Expr, Function, If, Loop, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, TupleType, flatten
from aotc.ir.visitor import substitute

MAX_TRIPS = 2**31 - 1
COMPARISONS = {
    operator.gt: ops.greater, operator.ge: ops.greater_equal, operator.lt: ops.less, operator.le: ops.less_equal,
    operator.eq: ops.equal, operator.ne: ops.not_equal,
}  # fmt: skip


class GraphImporter(Protocol):
    """What this file needs of the importer."""

    symbols: SymbolTable

    def value(self, node: Any) -> Any: ...

    def subgraph(self, node: torch.fx.Node, values: Sequence[Any]) -> list[Expr]: ...


def is_control(target: Any) -> bool:
    """Whether an operator holds graphs that are imported here."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in HANDLERS


def import_control(importer: GraphImporter, node: torch.fx.Node, origin: str) -> list[Expr]:
    """The results of a node for which ``is_control`` holds. Raises UnsupportedModel for what bodies cannot hold."""
    target: Any = node.target
    return HANDLERS[target.name()](importer, node, origin)


def _cond(importer: GraphImporter, node: torch.fx.Node, origin: str) -> list[Expr]:
    predicate, on_true, on_false, operands = node.args
    condition, values = _condition(importer, predicate), _values(importer, operands)
    tensors = [value for value in values if _is_tensor(value)]
    branches = [_function(importer, graph, values, origin) for graph in (on_true, on_false)]
    types = tuple(TensorType(importer.symbols.shape(each.shape), dtype_name(each.dtype)) for each in node.meta["val"])
    chosen = If(condition, branches[0], branches[1], tuple(tensors), TupleType(types), origin)
    return [TupleGetItem(chosen, i, origin) for i in range(len(types))]


def _condition(importer: GraphImporter, predicate: Any) -> Expr:
    """A tensor, or a comparison of sizes, as bool[]."""
    if isinstance(predicate, torch.fx.Node) and predicate.target in COMPARISONS:
        sides = [importer.value(arg) for arg in predicate.args]
        if not any(_is_tensor(side) for side in sides):
            left, right = (ops.dims(values=(side,), scalar=True) for side in sides)
            return COMPARISONS[predicate.target](left, right)
    value = importer.value(predicate)
    if isinstance(value, bool):
        return Constant(np.array(value))
    if not _is_tensor(value):
        raise UnsupportedModel("a torch.cond on something else than a tensor or a comparison of two sizes")
    return ops.reshape(value, shape=()) if value.type.shape else value


def _while_loop(importer: GraphImporter, node: torch.fx.Node, origin: str) -> list[Expr]:
    condition_graph, body_graph, carried, additional = node.args
    initial, captured = _values(importer, carried), _values(importer, additional)
    _tensors_only(initial, "a while_loop carries sizes", origin)
    condition = _function(importer, condition_graph, [*initial, *captured], origin)
    body = _function(importer, body_graph, [*initial, *captured], origin)
    count = len(initial)
    results = _fields(body.body)
    going = substitute(condition.body, dict(zip(condition.params, [*results, *body.params[count:]], strict=True)))
    looped = Function((_iteration(), *body.params), Tuple((_fields(going)[0], *results)), "while")
    tensors = [value for value in captured if _is_tensor(value)]
    first = substitute(condition.body, dict(zip(condition.params, [*initial, *tensors], strict=True)))
    loop = Loop(looped, _trips(importer), _fields(first)[0], tuple(initial), (), tuple(tensors), origin=origin)
    return [TupleGetItem(loop, i, origin) for i in range(count)]


def _scan(importer: GraphImporter, node: torch.fx.Node, origin: str) -> list[Expr]:
    graph, carried, scanned, *rest = node.args
    return _counted(
        importer, graph, _values(importer, carried), _values(importer, scanned), _values(importer, rest[0] if rest else ()), origin
    )


def _map(importer: GraphImporter, node: torch.fx.Node, origin: str) -> list[Expr]:
    graph, scanned, additional = node.args
    return _counted(importer, graph, [], _values(importer, scanned), _values(importer, additional), origin)


def _counted(
    importer: GraphImporter, graph: Any, carried: list[Any], scanned: list[Any], additional: list[Any], origin: str
) -> list[Expr]:  # fmt: skip
    _tensors_only([*carried, *scanned], "a loop carries or scans sizes", origin)
    slices = [Var(f"slice{i}", TensorType(each.type.shape[1:], each.type.dtype), origin) for i, each in enumerate(scanned)]
    body = _function(importer, graph, [*carried, *slices, *additional], origin)
    limit = scanned[0].type.shape[0]
    looped = Function((_iteration(), *body.params), Tuple(tuple(_fields(body.body))), "scan")
    tensors = tuple(value for value in additional if _is_tensor(value))
    loop = Loop(looped, limit, None, tuple(carried), tuple(scanned), tensors, limit=limit, origin=origin)
    return [TupleGetItem(loop, i, origin) for i in range(len(loop.type.fields))]


HANDLERS: dict[str, Callable[[GraphImporter, torch.fx.Node, str], list[Expr]]] = {
    "cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map,
}  # fmt: skip


def _function(importer: GraphImporter, graph: Any, values: Sequence[Any], origin: str) -> Function:
    """A graph as a closed function of those ``values`` that are tensors; sizes stand inside."""
    params = [Var(f"p{i}", value.type, origin) for i, value in enumerate(values) if _is_tensor(value)]
    waiting = iter(params)
    results = importer.subgraph(graph, [next(waiting) if _is_tensor(value) else value for value in values])
    return Function(tuple(params), Tuple(tuple(results)), str(graph.target))


def _values(importer: GraphImporter, operands: Any) -> list[Any]:
    return [importer.value(operand) for operand in operands]


def _fields(expr: Expr) -> list[Expr]:
    assert isinstance(expr, Tuple)
    return list(expr.fields)


def _tensors_only(values: Sequence[Any], what: str, origin: str) -> None:
    if not all(_is_tensor(value) and len(flatten(value.type)) == 1 for value in values):
        raise UnsupportedModel(f"{what} at {origin!r}; pass them as tensors")


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "type", None), TensorType)


def _iteration() -> Var:
    return Var("iteration", TensorType((), "int64"))


def _trips(importer: GraphImporter) -> Any:
    return symbol(importer.symbols.fresh_name("trips"), 0, MAX_TRIPS)
