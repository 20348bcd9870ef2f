"""The schedule that always applies: each stage on its own, its outermost spatial loop parallel."""

from __future__ import annotations

from tvm import s_tir

from aotc.targets.schedules.base import Work


def schedule(work: Work) -> s_tir.Schedule:
    sch = work.schedule
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        loops = sch.get_loops(block)
        kinds = [var.iter_type for var in sch.get(block).iter_vars]
        if loops and kinds[0] == 0:
            sch.parallel(loops[0])
    return sch
