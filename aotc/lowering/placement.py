"""Which fused functions the GPU runs and which the CPU, and why.

Some functions only the CPU can run. Of the others each has a rough time on either processor, and a value that one makes and the
other reads costs a crossing; the cheapest choice for all of them together is a minimum cut of that graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from aotc import ops
from aotc.ir.dims import Dim, evaluate, symbols_of
from aotc.ir.expr import Call, Expr, Function, If, Loop, Module, Var, bodies, children
from aotc.ir.symbols import is_planned, schedule
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.identity import function_flops
from aotc.lowering.minimum_cut import minimum_cut
from aotc.lowering.views import needs_kernel, resolve_view, results_of
from aotc.ops.custom import CustomOpDef
from aotc.ops.recurrent import LstmAttributes

# Rough microseconds of a launch and of a crossing, and what either processor does in one.
LAUNCH_US = 4.0
CROSSING_US, CROSSING_BYTES_PER_US = 15.0, 8e3
CPU_BYTES_PER_US, CPU_FLOPS_PER_US = 8e3, 2e4
ASKED_FOR_US = 25.0
"""What the GPU may cost more before the CPU runs a function: the user asked for the GPU. Not for glue, mostly arithmetic of shapes."""
GLUE_ELEMENTS = 4096
LIKELY_DIM, MOST = 512, 1e12
"""What a dim is taken for that a run tells, unless it cannot be so large, and the most of anything that is counted."""
WRITTEN_US = 1e6
"""What it costs that the CPU runs an operator for which the user wrote CUDA code."""
NEVER = 1e15


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a function runs. ``reason`` says why the CPU runs it; it is empty for the GPU."""

    on_device: bool
    reason: str = ""


Placement = Mapping[Function, Placed]


def place_devices(module: Module) -> Placement:
    """A processor for each fused function of a module that needs a kernel."""
    known = {name for function in module.functions.values() for name in symbols_of(*_dims(function.params))}
    flow = _dataflow(module)
    reasons = {function: _only_cpu(function, known) for function in flow.functions}
    cuda = {function: NEVER if reason else LAUNCH_US + flow.host_edges[function] for function, reason in reasons.items()}
    cpu = {function: _cpu_time(function) for function in flow.functions}
    on_device = minimum_cut(cpu, cuda, flow.edges)
    cheaper = "it is small, and cheaper there than with crossings to the GPU"
    return {function: Placed(True) if function in on_device else Placed(False, reasons[function] or cheaper) for function in flow.functions}


@dataclass(slots=True)
class _Flow:
    """``edges``: what a value between two functions costs if they run on different processors; ``host_edges``: what it costs that
    the host reads or writes what is a function's, if the GPU runs that."""

    functions: dict[Function, None]
    edges: dict[tuple[Function, Function], float]
    host_edges: defaultdict[Function, float]


def _dataflow(module: Module) -> _Flow:
    flow = _Flow({}, defaultdict(float), defaultdict(float))
    crossed: set[tuple[Expr, int, Function | None]] = set()
    for function, inner in _functions(module):
        carried = set(function.params) if inner else set()
        for node in schedule(*results_of(function.body)):
            if needs_kernel(node):
                reader = cast(Function, cast(Call, node).op)
                flow.functions.setdefault(reader)
            elif isinstance(node, (If, Loop)) or is_planned(node):
                reader = None
            else:
                continue
            for arg in children(node):
                _add(flow, crossed, resolve_view(arg), reader, carried)
        if inner:  # what a body gives is the host's
            for result in results_of(function.body):
                _add(flow, crossed, resolve_view(result), None, carried)
    return flow


def _add(
    flow: _Flow, crossed: set[tuple[Expr, int, Function | None]], source: tuple[Expr, int], reader: Function | None, carried: set[Var]
) -> None:
    """A value that ``reader`` reads, the host where that is ``None``."""
    node, index = source
    if (node, index, reader) in crossed:
        return
    crossed.add((node, index, reader))
    cost = CROSSING_US + _bytes(flatten(node.type)[index : index + 1]) / CROSSING_BYTES_PER_US
    writer = cast(Function, node.op) if isinstance(node, Call) and needs_kernel(node) else None
    if writer is not None and reader is not None:
        if writer is not reader:
            flow.edges[writer, reader] += cost
    elif writer is not None:
        flow.host_edges[writer] += cost
    elif reader is not None and (isinstance(node, (If, Loop)) or node in carried):
        flow.host_edges[reader] += cost


def _functions(module: Module) -> Iterable[tuple[Function, bool]]:
    """Entry points, and bodies of control flow."""
    yield from ((function, False) for function in module.functions.values())
    for function in all_functions(module):
        for node in post_order(function.body):
            yield from ((body, True) for body in bodies(node))


def _only_cpu(function: Function, known: set[str]) -> str:
    """Why the GPU cannot run a function; empty where it may."""
    own = _own_operator(function)
    if own is not None and own.source is not None and own.cuda is None:
        return "it is an operator of the user's that is written in C"
    if any(ops.lstm.is_call(node) and cast(LstmAttributes, cast(Call, node).attrs).quantised for node in post_order(function.body)):
        return "the states of all its rows are rounded together in each step, and no CUDA kernel does that"
    unknown = sorted(symbols_of(*_dims((*function.params, *post_order(function.body)))).keys() - known)
    if unknown:
        return f"its sizes depend on the data ({', '.join(unknown)})"
    return ""


def _own_operator(function: Function) -> CustomOpDef | None:
    """The user's operator that a function is, if it is one alone, as those are that have a source."""
    return function.body.op if isinstance(function.body, Call) and isinstance(function.body.op, CustomOpDef) else None


def _cpu_time(function: Function) -> float:
    """Rough microseconds, and what is added because the GPU was asked for."""
    own = _own_operator(function)
    if own is not None and own.cuda is not None:
        return WRITTEN_US
    tensors = [tensor for param in function.params for tensor in flatten(param.type)] + list(flatten(function.body.type))
    time = max(_bytes(tensors) / CPU_BYTES_PER_US, _size(function_flops(function)) / CPU_FLOPS_PER_US)
    glue = all("int" in tensor.dtype or tensor.dtype == "bool" for tensor in tensors)
    return time if glue and all(_size(tensor.size) <= GLUE_ELEMENTS for tensor in tensors) else time + ASKED_FOR_US


def _dims(exprs: Iterable[Expr]) -> list[Dim]:
    return [dim for expr in exprs for tensor in flatten(expr.type) for dim in tensor.shape]


def _bytes(tensors: Iterable[TensorType]) -> float:
    return sum(_size(tensor.size) * tensor.itemsize for tensor in tensors)


def _size(dim: Dim) -> float:
    likely = {name: max(each.lower, min(each.upper or LIKELY_DIM, LIKELY_DIM)) for name, each in symbols_of(dim).items()}
    return min(float(evaluate(dim, likely)), MOST)
