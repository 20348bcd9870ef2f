"""MetaSchedule: TVM's search among schedules that it makes by rules of its own, for functions where ours are not the best.

A candidate is a trace, the list of what was done to the unscheduled function and decided on the way (Shao et al., Tensor Program
Optimization with Probabilistic Programs, NeurIPS 2022). As text it is the option of a choice like any other, and is replayed to
compile the function. Traces evolve from those that were measured to be fast; no model predicts their times.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule
from tvm.s_tir.schedule import Trace

from aotc.ir.expr import Function
from aotc.lowering.bits import over_bits
from aotc.lowering.scope import DimScope
from aotc.lowering.tensors import tensor_graph
from aotc.lowering.tir_abi import tvm_target
from aotc.targets import Target

POPULATION = 32
"""Traces in a generation. Making one takes tens of milliseconds, and TVM's 512 are for a model that predicts."""
SEED = 1

sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("unused"))
"""Descriptions of tensor instructions, which no rule used here asks for: reading them takes seconds."""


class TraceSearch:
    """Traces for one function, ``batch`` at a time and ``limit`` at most. Raises TVM's errors where the rules do not apply."""

    def __init__(self, function: Function, target: Target, batch: int, limit: int) -> None:
        self.module = _module(tensor_graph(over_bits(function), DimScope()).prim_func(with_dims=True))
        self.target = tvm.target.Target({**json.loads(str(tvm_target(target))), "num-cores": target.cores})
        self.database = meta_schedule.database.MemoryDatabase()
        self.workload = self.database.commit_workload(self.module)
        self.candidates: list[Any] = []
        self.context = meta_schedule.TuneContext(
            self.module, target=self.target, space_generator=_rules(), search_strategy=_strategy(), num_threads=1, rand_state=SEED
        )
        self.context.pre_tuning(limit, batch, database=self.database, cost_model=meta_schedule.cost_model.RandomModel())

    def propose(self) -> list[str]:
        """The next traces; none at the end."""
        self.candidates = list(self.context.generate_measure_candidates() or ())
        return [json.dumps(_plain(candidate.sch.trace.as_json()), separators=(",", ":")) for candidate in self.candidates]

    def learn(self, seconds: Sequence[float | None]) -> None:
        """How long each of the last traces took; ``None`` for one that does not work."""
        results = []
        for candidate, took in zip(self.candidates, seconds, strict=True):
            times = None if took is None else [took]
            results.append(meta_schedule.runner.RunnerResult(times, None if times else "it does not work"))
            if times:
                record = meta_schedule.database.TuningRecord(candidate.sch.trace, self.workload, times, self.target, candidate.args_info)
                self.database.commit_tuning_record(record)
        self.context.notify_runner_results(self.candidates, results)


def _rules() -> Any:
    """TVM's own for CPUs, but for the one that would change the layout of weights."""
    rules, mutators = meta_schedule.ScheduleRule.create("llvm"), meta_schedule.Mutator.create("llvm")
    processors = [each for each in meta_schedule.Postproc.create("llvm") if not isinstance(each, meta_schedule.postproc.RewriteLayout)]
    return meta_schedule.space_generator.PostOrderApply(sch_rules=rules, postprocs=processors, mutator_probs=mutators)


def _strategy() -> Any:
    return meta_schedule.search_strategy.EvolutionarySearch(
        population_size=POPULATION, init_measured_ratio=0.5, init_min_unmeasured=POPULATION // 2, genetic_num_iters=1
    )


def replayed(func: tirx.PrimFunc, trace: str) -> tirx.PrimFunc | None:
    """An unscheduled function as a trace schedules it; ``None`` where the trace does not fit, since another version made it."""
    schedule = s_tir.Schedule(_module(func), debug_mask="none")
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
    except Exception:  # TVM's errors have many types
        return None
    return schedule.mod["main"]


def _module(func: tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _plain(value: Any) -> Any:
    """A trace in TVM's JSON as Python's own objects."""
    if isinstance(value, (str, int, float, type(None))):
        return value
    return [_plain(each) for each in value] if isinstance(value, Iterable) else value.value
