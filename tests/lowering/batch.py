"""Many operators lowered and linked into one library, each compared with its reference: tables of cases at small cost."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aotc import targets
from aotc.ir.dims import Dim, DimExpr, evaluate
from aotc.ir.expr import Function, Var
from aotc.ir.types import SMALL, TensorType, bits_of
from aotc.lowering.kernel import lower_function
from aotc.ops.base import OpDef
from tests.lowering.harness import Runner

EPSILON = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
Shape = Sequence[Dim]


@dataclass
class Case:
    """One call of an operator. ``arrays`` are its inputs; ``shapes`` their types' shapes where these hold symbols, with the
    values of the symbols in ``symbols``. ``expected`` overrides the operator's own reference. ``ulp``: how many units in the
    last place of the result's type a value may be off, plus as much of ``scale`` (what was summed) absolutely."""

    op: OpDef
    arrays: Sequence[np.ndarray]
    attrs: dict[str, Any] = field(default_factory=dict)
    shapes: Sequence[Shape] | None = None
    symbols: dict[str, int] = field(default_factory=dict)
    expected: Callable[..., Any] | None = None
    ulp: float = 4
    scale: float | None = None

    def __str__(self) -> str:
        shapes = self.shapes or [array.shape for array in self.arrays]
        inputs = ", ".join(f"{array.dtype}{list(map(str, shape))}" for array, shape in zip(self.arrays, shapes, strict=True))
        return f"{self.op.name}({inputs}) {self.attrs}".replace("'", "")

    def function(self) -> Function:
        shapes = self.shapes or [array.shape for array in self.arrays]
        params = [
            Var(f"x{i}", TensorType(tuple(shape), str(array.dtype)))
            for i, (array, shape) in enumerate(zip(self.arrays, shapes, strict=True))
        ]
        return Function(tuple(params), self.op(*params, **self.attrs), str(self), primitive=True)

    def want(self) -> list[np.ndarray]:
        if self.expected is not None:
            result = self.expected(*self.arrays)
        else:
            static = {name: _evaluated(value, self.symbols) for name, value in self.attrs.items()}
            result = self.op.reference(self.op.attributes(**static), *self.arrays)
        return [np.asarray(part) for part in (result if isinstance(result, (tuple, list)) else [result])]


def _evaluated(value: Any, symbols: dict[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_evaluated(part, symbols) for part in value)
    return evaluate(value, symbols) if isinstance(value, DimExpr) else value


def failures(cases: Sequence[Case], workers: int = 2) -> list[str]:
    """What is wrong with each case that fails, in words."""
    found: list[str] = []
    runners: list[tuple[Case, Runner]] = []
    for case in cases:
        try:
            function = case.function()
            runner = Runner.__new__(Runner)
            runner.function, runner.lowered = function, lower_function(function, targets.get("host"))
            runners.append((case, runner))
        except Exception as error:  # every case of the table is to be reported
            found.append(f"{case}: {type(error).__name__}: {str(error)[-800:]}")
    library = _link({kernel.symbol: kernel.object_code for _, runner in runners for kernel in runner.lowered.kernels})
    for case, runner in runners:
        runner.library = library
        got = runner(*case.arrays, symbols=case.symbols, workers=workers)
        for index, (have, want) in enumerate(zip(got, case.want(), strict=True)):
            problem = _difference(case, have, want)
            if problem:
                found.append(f"{case} result {index}: {problem}")
    return found


def _link(objects: dict[str, bytes]) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, code in enumerate(objects.values()):
            paths.append(Path(folder) / f"{number}.o")
            paths[-1].write_bytes(code)
        library = Path(folder) / "kernels.so"
        subprocess.run([sys.executable, "-m", "ziglang", "cc", "-shared", "-o", library, *paths, "-lm"], check=True)
        return ctypes.CDLL(str(library))


def _difference(case: Case, have: np.ndarray, want: np.ndarray) -> str:
    if have.dtype != want.dtype or have.shape != want.shape:
        return f"{have.dtype}{have.shape} instead of {want.dtype}{want.shape}"
    if str(have.dtype) in SMALL:
        wrong = (bits_of(have) != bits_of(want)) & ~((have != have) & (want != want))
    elif have.dtype.kind != "f":
        wrong = have != want
    else:
        epsilon = EPSILON[str(have.dtype)]
        a, b = have.astype("float64"), want.astype("float64")
        tiny = float(np.finfo(have.dtype).tiny)
        with np.errstate(all="ignore"):
            limit = 2 * case.ulp * epsilon * (np.abs(b) + (case.scale or 0)) + tiny
            wrong = ~((np.abs(a - b) <= limit) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(wrong)) if wrong.ndim else ()
    return f"{int(wrong.sum())} of {wrong.size} wrong, the first at {at}: {have[at]!r} instead of {want[at]!r}"


def check(cases: Sequence[Case]) -> None:
    problems = failures(cases)
    assert not problems, f"{len(problems)} of {len(cases)} cases:\n" + "\n".join(problems)
