"""Ensembles of decision trees: ONNX's TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef, same_dtype
from aotc.ops.elementwise import accept

COMPARISONS = ("<=", "<", ">=", ">", "==", "!=")
"""What a node's mode, its place here, does with the feature and the split value."""
AGGREGATES = ("average", "sum", "min", "max")
FEATURE, MODE, YES, NO, MISSING = range(5)
"""The columns of the table of nodes. A child is the number of a node, or -1 - i for leaf i."""


@dataclass(frozen=True, slots=True)
class TreeAttributes(Attributes):
    """``targets``: the columns of the result. ``aggregate`` says how the trees' weights for one target are joined."""

    targets: int
    aggregate: str = "sum"


def _relation(types: Sequence[TensorType], attrs: TreeAttributes) -> TensorType:
    x, nodes, splits, roots, leaves, weights = types
    accept(x, ("float32", "float64"))
    same_dtype((x, splits, weights))
    same_dtype((nodes, roots, leaves))
    if attrs.aggregate not in AGGREGATES or attrs.targets < 1:
        raise InvalidModel(f"aggregate is {', '.join(AGGREGATES)} over 1 target or more, not {attrs.aggregate!r} over {attrs.targets}")
    fits = nodes.rank == 2 and nodes.shape == (splits.size, 5) and roots.rank == leaves.rank == 1 and leaves.shape == weights.shape
    if x.rank != 2 or nodes.dtype != "int32" or not fits:
        raise InvalidModel(f"takes x[rows, features], int32 nodes[N, 5], splits[N], roots[T], leaves[L], weights[L], not {types}")
    return TensorType((x.shape[0], attrs.targets), x.dtype, x.device)


def _reference(
    attrs: TreeAttributes, x: np.ndarray, nodes: np.ndarray, splits: np.ndarray, roots: np.ndarray, leaves: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    compare = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
    start = {"min": np.finfo(x.dtype).max, "max": np.finfo(x.dtype).min}.get(attrs.aggregate, 0)
    result = np.full((len(x), attrs.targets), start, x.dtype)
    for row, values in zip(result, x, strict=True):
        for root in roots:
            at = int(root)
            while at >= 0:
                value = values[nodes[at, FEATURE]]
                taken = bool(compare[nodes[at, MODE]](value, splits[at])) or (bool(nodes[at, MISSING]) and bool(np.isnan(value)))
                at = int(nodes[at, YES if taken else NO])
            target, weight = leaves[-1 - at], weights[-1 - at]
            if attrs.aggregate in ("sum", "average"):
                row[target] += weight / len(roots) if attrs.aggregate == "average" else weight
            else:
                row[target] = (min if attrs.aggregate == "min" else max)(row[target], weight)
    return result


tree_ensemble = OpDef("tree_ensemble", _relation, _reference, Fusion.OPAQUE, TreeAttributes, 6)
"""x[rows, features] down trees of nodes[N, (feature, mode, yes, no, whether a NaN goes to yes)] with split values[N], from the
nodes roots[T] to leaves[L] (the target of each) with weights[L] -> [rows, targets]."""

__all__ = ["tree_ensemble"]
