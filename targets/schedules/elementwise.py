"""Loops for stages that compute each element on its own: vectors along the last axis, tails peeled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from aotc.targets.schedules.loops import const, fitting, nest, vector_range
from aotc.targets.schedules.program import StageCode

Expr = Any


def inner_range(code: StageCode, env: Mapping[tirx.Var, Expr], low: Expr, extent: Expr) -> tirx.Stmt:
    """Elements [low, low + extent) of the innermost axis, the others fixed by ``env``."""
    inner = code.axes[-1].var
    lanes = fitting(code.lanes, code.axes[-1].extent)

    def vector(start: Expr) -> tirx.Stmt:
        return code.store_lanes(lanes, lambda lane: {**env, inner: start + lane})

    return vector_range(low, extent, lanes, vector, lambda i: code.store_all({**env, inner: i}))


def whole(code: StageCode, env: Mapping[tirx.Var, Expr]) -> tirx.Stmt:
    """All elements of a stage whose leading axes are fixed by ``env``."""
    if not code.axes:
        return code.store_all(env)
    outer, inner = code.axes[:-1], code.axes[-1]

    def body(indices: list[Expr]) -> tirx.Stmt:
        fixed = {**env, **dict(zip((axis.var for axis in outer), indices, strict=True))}
        return inner_range(code, fixed, const(0), inner.extent)

    return nest([axis.extent for axis in outer], body)
