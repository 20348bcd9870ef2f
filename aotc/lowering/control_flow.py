"""Branches and loops as steps of the plan: bodies stand in line, and steps jump past or back over them.

What a loop carries keeps one place throughout, which each iteration reads and then overwrites; slices of what it scans, and rows
of what it stacks, are addressed inside the whole tensor by the number of the iteration, so neither is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aotc.ir.dims import Dim, Symbol, as_symbol, symbols_of
from aotc.ir.expr import Function, If, Loop, children, defined_symbols
from aotc.ir.types import TensorType, flatten
from aotc.lowering.plan import Storage
from aotc.lowering.recorder import Place, Recorder
from aotc.lowering.residence import HOST

if TYPE_CHECKING:
    from aotc.lowering.planner import FunctionPlanner


def plan_if(planner: FunctionPlanner, node: If) -> tuple[int, ...]:
    """The values of the node's results: each branch leaves its own there."""
    recorder, types, defined = planner.recorder, flatten(node.type), defined_symbols(node)
    recorder.dynamic.update(defined)
    results = [planner.result(node, i, type_) for i, type_ in enumerate(types)]
    condition, *arguments = planner.ids(children(node))
    planner.residence.require([condition], HOST, node.origin)
    to_else = recorder.branch_unless(node.origin, condition=condition)
    _plan_branch(planner, node, node.then, arguments, results, defined)
    to_end = recorder.jump(node.origin)
    recorder.land(to_else)
    _plan_branch(planner, node, node.otherwise, arguments, results, defined)
    recorder.land(to_end)
    recorder.use(*results)
    return tuple(results)


def _plan_branch(
    planner: FunctionPlanner, node: If, branch: Function, arguments: Sequence[int], results: Sequence[int], defined: dict[str, Symbol]
) -> None:
    recorder = planner.recorder
    # A result whose size only the branch knows cannot be computed in place: its memory is sized when the symbol is set.
    places = [
        None if any(name in defined for name in symbols_of(*recorder.values[value].shape)) else recorder.place(value) for value in results
    ]
    with planner.residence.scope():
        values = planner.body(branch, arguments, places)
        _set_symbols(recorder, flatten(node.type), values, defined, node.origin)
        planner.deliver(values, [recorder.place(value) for value in results], node.origin)


def plan_loop(planner: FunctionPlanner, node: Loop) -> tuple[int, ...]:
    """The values of the node's results: what was carried, then what was stacked."""
    recorder, defined = planner.recorder, defined_symbols(node)
    recorder.dynamic.update(defined)
    begin = len(recorder.steps)
    iteration = node.iteration
    assert iteration is not None, "number_iterations runs before"
    types = [flatten(field)[0] for field in node.type.fields]
    count = len(node.initial)
    _set_symbols(recorder, types[:count], planner.ids(node.initial), defined, node.origin)
    carried = [planner.result(node, i, type_) for i, type_ in enumerate(types[:count])]
    stacked = [_stacked(planner, node, count + i, type_, iteration) for i, type_ in enumerate(types[count:])]
    planner.deliver(planner.ids(node.initial), [recorder.place(value) for value in carried], node.origin)
    going: list[int] = []
    if node.condition is not None:
        going = [recorder.buffer(TensorType((), "bool"))]
        planner.residence.require(planner.ids([node.condition]), HOST, node.origin)
        recorder.copy(planner.ids([node.condition])[0], going[0], node.origin)
    symbol: Any = as_symbol(iteration)
    recorder.set_symbol(symbol, 0, node.origin)

    top = len(recorder.steps)
    leave = [recorder.branch_unless(node.origin, less=(iteration, node.limit))] if node.limit is not None else []
    leave += [recorder.branch_unless(node.origin, condition=value) for value in going]
    with planner.residence.scope():
        _plan_iteration(planner, node, carried, stacked, going, iteration, defined)
    recorder.set_symbol(symbol, iteration + 1, node.origin)
    back = recorder.jump(node.origin, top)
    recorder.land(*leave)
    for trips in symbols_of(node.trips).values() if node.condition is not None else ():
        recorder.set_symbol(trips, iteration, node.origin)
    recorder.use(*planner.ids(children(node)), *carried, *stacked, *going, until=back)
    _extend_back(recorder, [*carried, *stacked, *going], begin)
    return (*carried, *stacked)


def _plan_iteration(
    planner: FunctionPlanner, node: Loop, carried: Sequence[int], stacked: Sequence[int], going: Sequence[int], iteration: Dim,
    defined: dict[str, Symbol],
) -> None:  # fmt: skip
    recorder, count = planner.recorder, len(node.initial)
    slices = []
    for value, param in zip(planner.ids(node.scanned), node.body.params[1 + count :], strict=False):
        type_ = flatten(param.type)[0]
        part = recorder.view(value, type_, iteration * (type_.size * type_.itemsize))
        slices.append(planner.residence.same(part, value))
    results = flatten(node.body.body.type)
    rows = []
    for value, type_ in zip(stacked, results[len(going) + count :], strict=True):
        place = recorder.place(value)
        rows.append(Place(place.storage, place.index, place.offset + iteration * (type_.size * type_.itemsize)))
    unused = recorder.value(TensorType((), "int64"), Place(Storage.WEIGHT, 0, planner.zero()))
    arguments = [unused, *carried, *slices, *planner.ids(node.captured)]
    values = planner.body(node.body, arguments, [*[None] * (len(going) + count), *rows])
    _advance_symbols(recorder, node, values[len(going) : len(going) + count], defined)
    # From here on the carried symbols mean the next iteration, and so do the types of what is copied.
    next_types = [flatten(param.type)[0] for param in node.body.params[1 : 1 + count]]
    for i, type_ in enumerate(next_types):
        values[len(going) + i] = planner.residence.same(recorder.view(values[len(going) + i], type_), values[len(going) + i])
    planner.deliver(values, [recorder.place(value) for value in (*going, *carried)] + rows, node.origin)


def _stacked(planner: FunctionPlanner, node: Loop, index: int, type_: TensorType, iteration: Dim) -> int:
    """Memory for all rows. Where their number is not known beforehand it grows with the iterations."""
    if node.condition is None:
        return planner.result(node, index, type_)
    row = TensorType(type_.shape[1:], type_.dtype)
    return planner.recorder.buffer(type_, (iteration + 1) * (row.size * row.itemsize))


def _set_symbols(
    recorder: Recorder, types: Sequence[TensorType], values: Sequence[int], defined: dict[str, Symbol], origin: str
) -> None:  # fmt: skip
    """The symbols of ``defined`` that stand in ``types`` become the dims that ``values`` have there."""
    done: set[str] = set()
    for type_, value in zip(types, values, strict=True):
        for dim, actual in zip(type_.shape, recorder.values[value].shape, strict=True):
            symbol = as_symbol(dim)
            if symbol is None or symbol.name not in defined:
                continue
            if symbol.name not in done:
                done.add(symbol.name)
                recorder.set_symbol(symbol, actual, origin)
            else:
                recorder.check(dim, actual, origin)


def _advance_symbols(recorder: Recorder, node: Loop, values: Sequence[int], defined: dict[str, Symbol]) -> None:
    """Carried dims take the values of the next iteration, all at once: each may depend on the others."""
    types = [flatten(param.type)[0] for param in node.body.params[1 : 1 + len(values)]]
    moves: dict[str, tuple[Symbol, Dim]] = {}
    for type_, value in zip(types, values, strict=True):
        for dim, actual in zip(type_.shape, recorder.values[value].shape, strict=True):
            symbol = as_symbol(dim)
            if symbol is not None and symbol.name in defined and dim != actual:
                moves.setdefault(symbol.name, (symbol, actual))
    held: list[tuple[Symbol, Dim]] = []
    for each, actual in moves.values():
        passing = recorder.fresh_symbol()
        moved: Any = as_symbol(passing)
        recorder.set_symbol(moved, actual, node.origin)
        held.append((each, passing))
    for each, now in held:
        recorder.set_symbol(each, now, node.origin)


def _extend_back(recorder: Recorder, values: Sequence[int], begin: int) -> None:
    """Buffers that outlive an iteration are in use from the loop's first step: the last iteration's memory is the next one's."""
    for value in values:
        held = recorder.values[value]
        if held.storage is Storage.ARENA:
            recorder.buffers[held.index].first = min(recorder.buffers[held.index].first, begin)
