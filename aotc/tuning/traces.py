"""Candidates by MetaSchedule, beside what schedules offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotc.ir.expr import Function
from aotc.lowering.compiled import TRACE, Selection
from aotc.lowering.tuned import TRACES
from aotc.lowering.worker import without_torch
from aotc.targets import Target
from aotc.tuning.measure import Candidate

if TYPE_CHECKING:  # TVM takes seconds to import
    from aotc.lowering.meta_schedule import TraceSearch

LIMIT = 1 << 20


class Traces:
    """Proposals for one function. Where TVM's rules do not apply to it there are none."""

    name, patience = TRACES, LIMIT

    def __init__(self, function: Function, target: Target, batch: int) -> None:
        self.function, self.target, self.batch = function, target, batch
        self.search: TraceSearch | None = None
        self.proposed: list[str] = []

    def propose(self, best: Candidate, count: int) -> Sequence[Selection]:
        with without_torch():
            try:
                self.search = self.search or self._begin()
                self.proposed = self.search.propose()
            except Exception:  # TVM's errors are many: no rule applies, no trace is valid
                self.proposed = []
        return [{TRACE: trace} for trace in self.proposed[:count]]

    def learn(self, batch: Sequence[Candidate]) -> None:
        ratios = {candidate.selection.get(TRACE): candidate.ratio for candidate in batch if not candidate.failed}
        if self.search is not None and self.proposed:
            self.search.learn([ratios.get(trace) for trace in self.proposed])

    def _begin(self) -> TraceSearch:
        from aotc.lowering.meta_schedule import TraceSearch

        return TraceSearch(self.function, self.target, self.batch, LIMIT)
