"""The whole model beside itself: untuned and tuned as two entry points of one file, run in turn, each step timed.

A kernel alone may find the caches otherwise than in its place in the model. So each tuned layer is compared once more there, paired
by round, and one that is surely slower in the model goes back to the untuned choice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from aotc.compiler import compile_kernels, package, primitive_functions
from aotc.ir.dims import evaluate
from aotc.ir.expr import Call, Expr, Function, Module
from aotc.ir.visitor import map_functions, rewrite_body
from aotc.lowering.in_place import choose_in_place
from aotc.lowering.plan import EntryPoint, StepKind
from aotc.lowering.planner import Planned, make_plan
from aotc.lowering.tuned import Tuned, selections, tuning_key
from aotc.targets import Target
from aotc.tuning.board import Board, Input, Request
from aotc.tuning.measure import RUN_LIMIT
from aotc.tuning.model import Sized
from aotc.tuning.verdict import Ratio, paired_ratio

TUNED = " (tuned)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Microseconds of one run without and with the database, and their paired ratio: of one entry point, and of each layer of it
    by key, all its calls together."""

    entry_point: str
    total: tuple[float, float, Ratio]
    layers: Mapping[str, tuple[float, float, Ratio]]


def compare(
    untuned: Sized, tuned: Sized, entries: Mapping[str, Tuned], target: Target, board: Board, seconds: float, threads: int = 1,
    jobs: int | None = None,
) -> list[Comparison]:  # fmt: skip
    """Each entry point of the model, ``untuned`` and ``tuned``, which may have other algorithms. Raises BuildError, BoardLost, or
    CandidateFailed where it cannot run there."""
    module, copies = _doubled(untuned.module, tuned.module)
    functions = primitive_functions(module)
    chosen = selections(entries, [function for function in functions if function in copies], target)
    in_place = choose_in_place(module)
    kernels = compile_kernels(functions, target, jobs, lambda done, total, label: None, in_place, chosen)
    planned = make_plan(module, kernels, in_place)
    counterparts = _counterparts(untuned, tuned, target)
    keys = {
        kernel.symbol: key if function in copies else counterparts.get(key, key)
        for function in functions
        for key in [tuning_key(function, target)]
        for kernel in kernels[function].kernels
    }
    with tempfile.TemporaryDirectory(prefix="aotc-tune-") as folder:
        path = Path(folder) / "model.so"
        package(planned, kernels.values(), target, path, {}, "fp32", None)
        board.send_file(path)
    count = len(planned.plan.entry_points) // 2
    return [_compare(planned, keys, place, count, tuned, board, seconds / count, threads) for place in range(count)]


def _counterparts(untuned: Sized, tuned: Sized, target: Target) -> dict[str, str]:
    """The keys of tuned functions by those of the untuned functions in whose place they stand: algorithms differ, calls do not."""
    if len(untuned.calls) != len(tuned.calls):
        return {}
    pairs = {(cast(Function, one.op), cast(Function, other.op)) for one, other in zip(untuned.calls, tuned.calls, strict=True)}
    return {tuning_key(one, target): tuning_key(other, target) for one, other in pairs}


def _doubled(untuned: Module, tuned: Module) -> tuple[Module, set[Function]]:
    """A module with the entry points of both, those that are tuned over functions of their own, and these functions."""
    plain = {name: function for name, function in untuned.functions.items() if name not in untuned.versions}
    copies: dict[Function, Function] = {}

    def again(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and isinstance(node.op, Function)):
            return None
        return replace(node, op=copies.setdefault(node.op, replace(node.op)))

    names = {name: untuned.output_names[name] for name in plain}
    alone = Module({name: tuned.functions[name] for name in plain}, names, {}, tuned.states)
    second = map_functions(alone, lambda function: rewrite_body(function, again))
    functions = {**plain, **{name + TUNED: function for name, function in second.functions.items()}}
    return Module(functions, {**names, **{name + TUNED: outputs for name, outputs in names.items()}}, {}, untuned.states), set(
        copies.values()
    )


def _compare(
    planned: Planned, keys: Mapping[str, str], place: int, count: int, model: Sized, board: Board, seconds: float, threads: int
) -> Comparison:
    points = [planned.plan.entry_points[number] for number in (place, place + count)]
    inputs = [Input(tuple(evaluate(dim, model.sizes) for dim in tensor.shape), True) for tensor in points[0].inputs]
    request = Request([place, place + count], inputs, 1000, 12, seconds, seconds + RUN_LIMIT, threads=threads, steps=True)
    timing = board.time(request)
    sums = [_by_key(point, planned, keys, steps) for point, steps in zip(points, timing.steps, strict=True)]
    layers = {key: _pair(sums[0][key], sums[1][key]) for key in sums[0] if key in sums[1]}
    return Comparison(points[0].name, _pair(timing.times[:, 0], timing.times[:, 1]), layers)


def _by_key(point: EntryPoint, planned: Planned, keys: Mapping[str, str], steps: np.ndarray) -> dict[str, np.ndarray]:
    """Nanoseconds of each round that the steps of each function took."""
    found: dict[str, np.ndarray] = {}
    for number, step in enumerate(point.steps):
        if step.kind is StepKind.KERNEL:
            key = keys[planned.plan.kernels[step.kernel].symbol]
            found[key] = found.get(key, 0.0) + steps[:, number]
    return found


def _pair(untuned: np.ndarray, tuned: np.ndarray) -> tuple[float, float, Ratio]:
    return float(np.median(untuned)) / 1e3, float(np.median(tuned)) / 1e3, paired_ratio(tuned, untuned)
