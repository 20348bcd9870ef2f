"""Comparisons that choose the greater or the lesser become instructions where these keep a NaN."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.expr import Expr, Var
from aotc.lowering.extremes import with_extremes
from aotc.lowering.kernel import scheduled_function
from aotc.lowering.scope import DimScope
from aotc.targets.schedules.choices import Choices
from tests.lowering.harness import function_of, run, var

X, Y = var("x", "float32", 8), var("y", "float32", 8)
CALLS: dict[str, tuple[Expr, list[Var]]] = {
    "relu": (ops.relu(X), [X]),
    "clip": (ops.clip(X, minimum=0.0, maximum=6.0), [X]),
    "maximum": (ops.maximum(X, Y), [X, Y]),
    "minimum": (ops.minimum(X, Y), [X, Y]),
}
VALUES = np.array([1, -1, np.nan, 7, np.inf, -np.inf, 0.5, 0], np.float32)


@pytest.mark.parametrize("name", CALLS)
def test_selections_become_instructions(name: str) -> None:
    body, params = CALLS[name]
    written = {
        target: str(
            with_extremes(scheduled_function(function_of(body, *params), targets.get(target), DimScope(), Choices()), targets.get(target))
        )
        for target in ("jetson-orin", "x86-64-v3")
    }
    assert "call_llvm_pure_intrin" in written["jetson-orin"] and "Select" not in written["jetson-orin"]
    assert "call_llvm_pure_intrin" not in written["x86-64-v3"]


def test_clip_and_relu_keep_nan() -> None:
    (clipped,) = run(CALLS["clip"][0], [X], VALUES)
    np.testing.assert_array_equal(clipped, np.clip(VALUES, 0, 6))
    (rectified,) = run(CALLS["relu"][0], [X], VALUES)
    np.testing.assert_array_equal(rectified, np.maximum(VALUES, 0))
