"""Schedules for CUDA: a fused function becomes launches, each a grid of blocks of threads over flat buffers."""

from __future__ import annotations

from dataclasses import replace

from aotc.targets.schedules.choices import Choices
from aotc.targets.schedules.cuda import attention, generic, recurrent, tiled
from aotc.targets.schedules.cuda.launch import Launch
from aotc.targets.schedules.cuda.work import Schedule, Work
from aotc.targets.schedules.program import Program

SCHEDULES: tuple[Schedule, ...] = (recurrent.schedule, attention.schedule, tiled.schedule)
"""Tried in this order; where none applies, ``generic`` does."""


def launches_of(work: Work) -> tuple[Program, list[Launch]]:
    """The launches of a function, and the program whose parameters and scratch they are over."""
    func = work.graph.prim_func()
    for schedule in SCHEDULES:
        program, asked = Program(func, work.target), Choices(work.choices.selection)
        launches = schedule(replace(work, choices=asked), program)
        if launches is not None:
            work.choices.offered.update(asked.offered)
            return program, launches
    program = Program(func, work.target)
    return program, generic.launches(work, program)


__all__ = ["Launch", "Work", "launches_of"]
