"""Decision trees as loops: each row walks down each tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local, rows
from aotc.ops.tree import FEATURE, MISSING, MODE, NO, YES

DEPTH = 8  # of a typical tree: for the size of tasks only


def _holds(mode: Expr, value: Expr, split: Expr) -> Expr:
    """The comparison of number ``mode``."""
    tests = [value <= split, value < split, value >= split, value > split, value == split, common.differ(value, split)]
    found = tests[-1]
    for number, test in reversed(list(enumerate(tests[:-1]))):
        found = tirx.Select(mode == number, test, found)
    return found


def _tree_ensemble(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, _, _, roots, leaves, _ = inputs
    result, dtype = results[0], results[0].dtype
    trees = roots.shape[0]
    limit = float(np.finfo(dtype).max)
    start = constant({"min": limit, "max": -limit}.get(attrs.aggregate, 0.0), dtype)

    def joined(so_far: Expr, weight: Expr) -> Expr:
        if attrs.aggregate == "min":
            return tirx.min(so_far, weight)
        if attrs.aggregate == "max":
            return tirx.max(so_far, weight)
        return so_far + (weight / cast(trees, dtype) if attrs.aggregate == "average" else weight)

    def body(data: Any, nodes: Any, splits: Any, first: Any, targets: Any, weights: Any, target: Any) -> None:
        with rows(scope, (result.shape[0],), scope.dim(trees * DEPTH)) as (row,):
            at, value, place = local(INDEX), local(dtype), local(INDEX)
            with T.serial(0, attrs.targets) as i:
                target[[row, i]] = start
            with T.serial(0, trees) as tree:
                at[0] = first[[tree]]
                with T.While(at[0] >= 0):
                    feature = tirx.max(tirx.min(nodes[[at[0], int_constant(FEATURE)]], x.shape[1] - 1), int_constant(0))
                    value[0] = data[[row, feature]]
                    missing = tirx.all(nodes[[at[0], int_constant(MISSING)]] != 0, common.is_nan(value[0]))
                    taken = tirx.any(_holds(nodes[[at[0], int_constant(MODE)]], value[0], splits[[at[0]]]), missing)
                    at[0] = nodes[[at[0], tirx.Select(taken, int_constant(YES), int_constant(NO))]]
                place[0] = targets[[tirx.min(-1 - at[0], leaves.shape[0] - 1)]]
                with T.If(tirx.all(place[0] >= 0, place[0] < attrs.targets)), T.Then():
                    target[[row, place[0]]] = joined(target[[row, place[0]]], weights[[-1 - at[0]]])

    return extern(inputs, [(common.extents(scope, result.shape), dtype)], body, "tree_ensemble")


EXPRESSIONS: dict[str, Expression] = {"tree_ensemble": _tree_ensemble}
