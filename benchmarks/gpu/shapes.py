"""The operators of ``tests.cuda.shapes`` on the GPU: every CUDA schedule, numbers alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from aotc.lowering.build import compile_functions
from aotc.lowering.compiled import CompiledFunction
from benchmarks.gpu.machine import SM, TARGET, library
from tests.cuda.corpus import distance_text, wrong
from tests.cuda.launcher import Device
from tests.cuda.lowered import run_lowered
from tests.cuda.shapes import ShapeCase, cases


@cache
def _cases() -> dict[str, ShapeCase]:
    """By name; the boards that they are shared out to do not matter here."""
    found = {case.subject.name: case for case in cases()}
    assert len(found) == len(cases())
    return found


def names() -> list[str]:
    return list(_cases())


def build(wanted: list[str]) -> list[CompiledFunction]:
    functions = [_cases()[key].function() for key in wanted]
    return list(compile_functions(functions, TARGET).values())


def run(key: str, folder: Path) -> dict[str, Any]:
    """Raises CudaError, after which the process is of no more use."""
    case = _cases()[key]
    function = case.function()
    made = compile_functions([function], TARGET, jobs=0)[function]
    if not made.on_device:
        return {"failed": f"not on CUDA: {made.not_on_cuda}"}
    results = run_lowered(_device(), function, made, case.subject.arrays, case.values(), SM)
    want = case.subject.want()
    return {"failed": distance_text(results, want)} if wrong(results, want) else {}


@cache
def _device() -> Device:
    """One context for all: making it takes longer than a case."""
    return Device(library())
