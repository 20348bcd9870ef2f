"""Control flow: branches, loops and scans. What a known condition decides stands in the place of its node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx

from aotc import ops
from aotc.errors import InvalidModel
from aotc.frontends.onnx.assume import Assumption, solve_equal
from aotc.frontends.onnx.bodies import Body, flat, tensor_types
from aotc.frontends.onnx.branches import branches, check_results
from aotc.frontends.onnx.dynamic import LARGEST
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.dims import Dim, symbols_of
from aotc.ir.expr import Constant, Expr, Function, Loop, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType

MAX_TRIES = 8  # of finding which carried dims change


def _if(node: Node) -> Results:
    """One branch where the condition is known, else both as bodies."""
    condition = node.input(0)
    if not node.is_known(0):
        bodies = [node.graphs.branch(_graph(node, name)) for name in ("then_branch", "else_branch")]
        lengths = [[len(each.fields) if isinstance(each, Tuple) else None for each in body.results] for body in bodies]
        if lengths[0] != lengths[1]:
            node.unsupported(f"the branches give sequences of {lengths[0]} and {lengths[1]} items; make them equal in length")
        bodies = [replace(body, results=tuple(flat(body.results))) for body in bodies]
        check_results(bodies, node.origin)
        _assume_equal_sizes(node, condition, bodies)
        return _packed(branches(node.dynamic, bodies, [_scalar(node, condition)], node.origin), lengths[0])
    known = node.static_array(0, "the condition")
    if known is None or known.size != 1:
        node.invalid("the condition must be one boolean")
    return node.graphs.inline(_graph(node, "then_branch" if bool(known.reshape(-1)[0]) else "else_branch"))


def _packed(tensors: Sequence[Expr], lengths: Sequence[int | None]) -> list[Expr]:
    """Tensors as results, of which those with a length are sequences."""
    rest = iter(tensors)
    return [next(rest) if length is None else Tuple(tuple(itertools.islice(rest, length))) for length in lengths]


def _assume_equal_sizes(node: Node, condition: Expr, bodies: Sequence[Body]) -> None:
    """Exporters write a squeeze as an If on whether a dim is 1, with results of two ranks: such a model can run on one branch
    only, and takes for granted that the dim is 1. Raises Assumption then."""
    ranks = [[node.rank(result) for result in body.results] for body in bodies]
    while ops.reshape.is_call(condition) or ops.cast.is_call(condition) or ops.gather.is_call(condition):
        condition = cast("Any", condition).args[0]
    if ranks[0] == ranks[1] or not ops.equal.is_call(condition):
        return
    sides = [node.known.get(arg) for arg in cast("Any", condition).args]
    if all(side is not None and side.size == 1 for side in sides):
        left, right = (cast("Any", side).reshape(-1)[0] for side in sides)
        values = solve_equal(left, right)
        if values is not None:
            raise Assumption(values)


def _graph(node: Node, name: str) -> onnx.GraphProto:
    if not node.has(name):
        node.invalid(f"the attribute {name!r} is missing")
    return node.attributes[name].g


def _scalar(node: Node, expr: Expr) -> Expr:
    """A tensor of one element as a scalar."""
    type_ = node.type(expr)
    if type_.size != 1:
        node.invalid(f"expected one element, not {type_}")
    return node.call(ops.reshape, expr, shape=()) if type_.rank else expr


def _loop(node: Node) -> Results:
    """Inputs: trip count, condition, carried values. The body: (iteration, condition, carried) to (condition, carried, rows)."""
    graph, carried = _graph(node, "body"), [node.input(i) for i in range(2, len(node.inputs))]
    tensor_types(carried, repr(node.origin))
    limit, initial = _limit(node), _condition(node)
    types = [node.type(each) for each in carried]
    varying: dict[str, Any] = {}
    for _ in range(MAX_TRIES):
        iteration = Var("iteration", TensorType((), "int64"))
        params = [Var(f"carried{i}", type_) for i, type_ in enumerate(types)]
        body = node.graphs.body(graph, [iteration, Constant(np.array(True)), *params])
        tensor_types(body.results, repr(node.origin))
        if len(body.results) < 1 + len(carried):
            node.invalid(f"the body gives {len(body.results)} results, and {1 + len(carried)} are needed")
        for result, declared in zip(body.results[1 : 1 + len(carried)], graph.output[1:], strict=False):
            _take_as_declared(node, result, declared)
        wider = [_widened(node, body, old, result, varying) for old, result in zip(types, body.results[1:], strict=False)]
        if wider == types:
            return _looped(node, body, limit, initial, carried)
        types = wider
    node.unsupported("the shapes of carried values do not settle; give them fixed shapes")


def _limit(node: Node) -> Dim | None:
    """The trip count as a dim; None where it is left out, or beyond what can be counted."""
    count = node.optional(0)
    if count is None:
        return None
    known = node.known.get(count)
    if known is not None:
        value = known.reshape(-1)[0]
        return (max(int(value), 0) if int(value) < LARGEST else None) if isinstance(value, (int, np.integer)) else cast("Dim", value)
    scalar = node.call(ops.cast, _scalar(node, count), dtype="int64")
    bounded = node.call(ops.clip, scalar, minimum=0, maximum=LARGEST)
    return node.measured(bounded, "the trip count")[0]


def _condition(node: Node) -> Expr | None:
    """The condition before the loop; None where it is left out or true."""
    condition = node.optional(1)
    if condition is None:
        return None
    known = node.known.get(condition)
    return None if known is not None and bool(known.reshape(-1)[0]) else _scalar(node, condition)


def _widened(node: Node, body: Body, old: TensorType, result: Expr, varying: dict[str, Any]) -> TensorType:
    """The type of a carried value that also fits what the body makes of it: dims that change are symbols."""
    new = node.type(result)
    if new.dtype != old.dtype or new.rank != old.rank:
        node.unsupported(f"a carried value is {old} and becomes {new}; its type and rank must stay")
    shape: list[Dim] = []
    for before, after in zip(old.shape, new.shape, strict=True):
        if before == after or (isinstance(before, int) is False and str(before) in varying):
            shape.append(before)
        else:
            symbol = node.dynamic.symbol()
            varying[str(symbol)] = symbol
            shape.append(symbol)
    return TensorType(tuple(shape), old.dtype)


def _looped(node: Node, body: Body, limit: Dim | None, initial: Expr | None, carried: Sequence[Expr]) -> list[Expr]:
    going = body.results[0]
    known = node.known.get(going)
    always = initial is None and known is not None and bool(known.reshape(-1)[0])
    if always and limit is None:
        node.unsupported("the loop has neither a trip count nor a condition that can become false")
    results = list(body.results[1:])
    for row, declared in zip(results[len(carried) :], _graph(node, "body").output[1 + len(carried) :], strict=True):
        _take_as_declared(node, row, declared)
        _refuse_rows_that_vary(node, body, row)
    if not always:
        results = [_scalar(node, going), *results]
        initial = initial if initial is not None else Constant(np.array(True))
    captured = list(body.boundary.captured)
    inner = body.function(captured, "body")
    function = Function(inner.params, Tuple(tuple(results)), "body")
    trips = limit if always and limit is not None else node.dynamic.symbol(0, LARGEST)
    loop = Loop(function, trips, None if always else initial, tuple(carried), (), tuple(captured), limit, origin=node.origin)
    return [TupleGetItem(loop, i, node.origin) for i in range(len(loop.type.fields))]


def _take_as_declared(node: Node, row: Expr, declared: onnx.ValueInfoProto) -> None:
    """Sizes of a row that the graph itself states: taken as facts, and checked at run. Raises Assumption."""
    dims = declared.type.tensor_type.shape.dim
    for dim, stated in zip(node.shape(row), dims, strict=False):
        values = solve_equal(dim, stated.dim_value) if stated.dim_value and node.dynamic.concerns(dim) else None
        if values and len(dims) == node.rank(row):
            raise Assumption(values)


def _refuse_rows_that_vary(node: Node, body: Body, row: Expr) -> None:
    own = {name for param in body.params for dim in node.shape(param) for name in symbols_of(dim) if name in node.dynamic.made}
    for dim in node.shape(row):
        if body.mentions(dim) or own & set(symbols_of(dim)):
            node.unsupported(
                f"a row to be stacked is {node.type(row)}, whose size may differ from one iteration to the next; pad it to one size"
            )


def _scan(node: Node) -> Results:
    """Scanned axes come first and reversed directions are turned before and after; opset 8 has a batch around it."""
    if node.opset < 9:
        return _batched_scan(node)
    count = node.integer("num_scan_inputs")
    states, scanned = (
        [node.input(i) for i in range(len(node.inputs) - count)],
        [node.input(i) for i in range(len(node.inputs) - count, len(node.inputs))],
    )
    axes = node.integers("scan_input_axes", [0] * count)
    directions = node.integers("scan_input_directions", [0] * count)
    inputs = [_turned(node, _first(node, x, axis), direction) for x, axis, direction in zip(scanned, axes, directions, strict=True)]
    results = _scanned(node, _graph(node, "body"), states, inputs)
    rows = results[len(states) :]
    axes = node.integers("scan_output_axes", [0] * len(rows))
    directions = node.integers("scan_output_directions", [0] * len(rows))
    placed = [_placed(node, _turned(node, row, direction), axis) for row, axis, direction in zip(rows, axes, directions, strict=True)]
    return [*results[: len(states)], *placed]


def _scanned(node: Node, graph: onnx.GraphProto, states: Sequence[Expr], inputs: Sequence[Expr]) -> list[Expr]:
    if not inputs or any(node.rank(x) < 1 for x in inputs):
        node.invalid("there is nothing to scan")
    params = [Var(f"state{i}", each.type) for i, each in enumerate(states)]
    slices = [Var(f"slice{i}", TensorType(node.shape(x)[1:], node.dtype(x))) for i, x in enumerate(inputs)]
    body = node.graphs.body(graph, [*params, *slices])
    tensor_types(body.results, repr(node.origin))
    for row, declared in zip(body.results[len(states) :], graph.output[len(states) :], strict=True):
        _take_as_declared(node, row, declared)
        _refuse_rows_that_vary(node, body, row)
    captured = list(body.boundary.captured)
    function = _with_iteration(body.function(captured, "body"))
    limit = node.shape(inputs[0])[0]
    try:
        loop = Loop(function, limit, None, tuple(states), tuple(inputs), tuple(captured), limit, origin=node.origin)
    except InvalidModel as error:
        node.unsupported(f"the shapes of its states change from one step to the next: {error}")
    return [TupleGetItem(loop, i, node.origin) for i in range(len(loop.type.fields))]


def _with_iteration(function: Function) -> Function:
    return Function((Var("iteration", TensorType((), "int64")), *function.params), function.body, function.name)


def _batched_scan(node: Node) -> Results:
    """Opset 8: every state and input has a batch in front, and each of its parts is scanned by itself."""
    if node.optional(0) is not None:
        node.unsupported("the sequence lengths of Scan at opset 8; export with opset 9 or newer")
    count = node.integer("num_scan_inputs")
    outer = [node.input(i) for i in range(1, len(node.inputs))]
    directions = node.integers("directions", [0] * count)
    split = len(outer) - count
    outer = [*outer[:split], *(_turned(node, x, direction, 1) for x, direction in zip(outer[split:], directions, strict=True))]
    params = [Var(f"part{i}", TensorType(node.shape(x)[1:], node.dtype(x))) for i, x in enumerate(outer)]
    inner = _scanned(node, _graph(node, "body"), params[:split], params[split:])
    captured = list(cast("Loop", cast("TupleGetItem", inner[0]).value).captured)
    rest = [Var(f"captured{i}", expr.type) for i, expr in enumerate(captured)]
    loop = cast("Loop", cast("TupleGetItem", inner[0]).value)
    replaced = Loop(loop.body, loop.trips, None, loop.initial, loop.scanned, tuple(rest), loop.limit, origin=node.origin)
    function = _with_iteration(Function((*params, *rest), Tuple(tuple(TupleGetItem(replaced, i) for i in range(len(inner)))), "batch"))
    batch = node.shape(outer[0])[0]
    whole = Loop(function, batch, None, (), tuple(outer), tuple(captured), batch, origin=node.origin)
    return [TupleGetItem(whole, i, node.origin) for i in range(len(whole.type.fields))]


def _first(node: Node, x: Expr, axis: int) -> Expr:
    """``x`` with ``axis`` in front."""
    rank = node.rank(x)
    axis = node.axis(axis, rank)
    return x if axis == 0 else node.call(ops.transpose, x, axes=(axis, *(i for i in range(rank) if i != axis)))


def _placed(node: Node, x: Expr, axis: int) -> Expr:
    """``x`` with its first axis at ``axis``."""
    rank = node.rank(x)
    axis = node.axis(axis, rank)
    order = list(range(1, rank))
    order.insert(axis, 0)
    return x if axis == 0 else node.call(ops.transpose, x, axes=tuple(order))


def _turned(node: Node, x: Expr, direction: int, axis: int = 0) -> Expr:
    """``x`` backwards along ``axis`` where ``direction`` is 1."""
    if not direction:
        return x
    shape = node.shape(x)
    begins = tuple(dim - 1 if i == axis else 0 for i, dim in enumerate(shape))
    ends = tuple(-1 if i == axis else dim for i, dim in enumerate(shape))
    return node.call(ops.slice_, x, begins=begins, ends=ends, steps=tuple(-1 if i == axis else 1 for i in range(len(shape))))


HANDLERS: dict[str, Handler] = {"If": _if, "Loop": _loop, "Scan": _scan}
