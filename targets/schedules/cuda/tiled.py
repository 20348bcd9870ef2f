"""Contractions in tiles: on tensor cores where these multiply the operands' type, else on CUDA cores."""

from __future__ import annotations

from aotc.targets.schedules.cuda import matmul, tensor_core
from aotc.targets.schedules.cuda.contraction import Contraction, contraction
from aotc.targets.schedules.cuda.launch import Launch
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.program import Program


def schedule(work: Work, program: Program) -> list[Launch] | None:
    """A function that is one contraction."""
    problem = contraction(program)
    return tiles(work, program, problem, "tile") if problem is not None else None


def tiles(work: Work, program: Program, problem: Contraction, name: str) -> list[Launch] | None:
    """``None`` for a contraction that is not worth tiles."""
    launches = tensor_core.tiles(work, program, problem, name)
    return launches if launches is not None else matmul.tiles(work, program, problem, name)
