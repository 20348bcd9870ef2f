"""Runs one case of ``shapes.py`` through the software driver."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from aotc import targets
from aotc.errors import AotcError
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from aotc.lowering.cuda.kernel import NotOnCuda, lower_function
from tests.cuda import host_code
from tests.cuda.corpus import distance_text, wrong
from tests.cuda.launcher import CudaError, Device
from tests.cuda.lowered import build_lowered, run_lowered
from tests.cuda.machine_code import code
from tests.cuda.shapes import ShapeCase

ORDERS = ("forward", "reverse", "random:1")


def lowered(case: ShapeCase) -> CompiledFunction | str:
    """The case's kernels, or why there are none."""
    try:
        made = lower_function(case.function(), targets.get(case.board))
    except AotcError as error:
        return f"not lowered: {error}"
    return f"not on CUDA: {made.reason}" if isinstance(made, NotOnCuda) else made


def digest(made: CompiledFunction | str) -> str:
    """What a result is good for: these very machine codes."""
    kernels = [] if isinstance(made, str) else [kernel for kernel in made.kernels if isinstance(kernel, CudaKernel)]
    codes = [code(cubin) for kernel in kernels for _, cubin in kernel.cubins]
    return hashlib.sha256(made.encode() if isinstance(made, str) else b"".join(codes)).hexdigest()[:16]


def outcome(case: ShapeCase, made: CompiledFunction | str, orders: tuple[str, ...] = ORDERS) -> str:
    """Empty where all is right, else what is not."""
    if isinstance(made, str):
        return made
    gpu = targets.get(case.board).gpu
    assert gpu is not None
    (sm,) = gpu.sm
    want = case.subject.want()
    with tempfile.TemporaryDirectory() as folder:
        build_lowered(made, Path(folder))
        for order in orders:
            with _driver(sm, order, folder) as device:
                try:
                    results = run_lowered(device, case.function(), made, case.subject.arrays, case.values(), sm)
                except CudaError as error:
                    return f"{order}: {error}"
            if wrong(results, want):
                return f"{order}: {distance_text(results, want)}"
    return ""


@contextmanager
def _driver(sm: int, order: str, folder: str) -> Iterator[Device]:
    settings = {"AOTC_SOFTWARE_CUDA": folder, "AOTC_SOFTWARE_CUDA_SM": str(sm), "AOTC_SOFTWARE_CUDA_ORDER": order}
    with mock.patch.dict(os.environ, settings), Device(_library()) as device:
        yield device


@cache
def _library() -> Path:
    return host_code.driver()
