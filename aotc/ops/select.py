"""Operators whose result's size depends on data: a result padded to the most it can be, and a count.

The rows behind the count hold nothing of meaning. A slice up to the count, which is a view, gives the true result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import product
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType, TupleType
from aotc.ops.base import Fusion, NoAttributes, OpDef, format_shape

COUNT = TensorType((), "int64")


@dataclass(frozen=True, slots=True)
class NonMaxSuppressionAttributes(Attributes):
    """``center``: boxes are (x centre, y centre, width, height), else two opposite corners (y1, x1, y2, x2)."""

    center: bool = False


def _nonzero_relation(types: Sequence[TensorType], attrs: Any) -> TupleType:
    x = types[0]
    return TupleType((TensorType((x.size, x.rank), "int64", x.device), COUNT))


def _nonzero(attrs: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = np.argwhere(x)
    return _padded(found, x.size), np.asarray(len(found), np.int64)


def _padded(found: np.ndarray, size: int) -> np.ndarray:
    result = np.zeros((size, *found.shape[1:]), np.int64)
    result[: len(found)] = found
    return result


def _nms_relation(types: Sequence[TensorType], attrs: NonMaxSuppressionAttributes) -> TupleType:
    boxes, scores, order, most, iou, least = types
    fits = boxes.rank == scores.rank == 3 and boxes.shape[:2] == (scores.shape[0], scores.shape[2]) and boxes.shape[2] == 4
    if not fits or order.shape != scores.shape:
        shapes = ", ".join(format_shape(each.shape) for each in (boxes, scores, order))
        raise InvalidModel(f"takes boxes [batch, n, 4], scores [batch, classes, n] and their order in the same shape, not {shapes}")
    if (boxes.dtype, scores.dtype, order.dtype, most.dtype, iou.dtype, least.dtype) != (
        "float32",
        "float32",
        *["int64"] * 2,
        *["float32"] * 2,
    ):
        raise InvalidModel("takes float32 boxes, scores and thresholds, and int64 order and number of boxes")
    if any(each.rank for each in (most, iou, least)):
        raise InvalidModel("takes the number of boxes and the thresholds as scalars")
    return TupleType((TensorType((product(scores.shape), 3), "int64", boxes.device), COUNT))


def _nms(
    attrs: NonMaxSuppressionAttributes, boxes: np.ndarray, scores: np.ndarray, order: np.ndarray, most: Any, iou: Any, least: Any
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    found: list[tuple[int, int, int]] = []
    for batch, label in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in order[batch, label].tolist():
            good = len(kept) < int(most) and scores[batch, label, i] > least
            if good and all(not _overlap(attrs.center, boxes[batch, i], boxes[batch, j]) > iou for j in kept):
                kept.append(i)
        found += [(batch, label, i) for i in kept]
    rows = np.asarray(found, np.int64).reshape(-1, 3)
    return _padded(rows, scores.size), np.asarray(len(rows), np.int64)


def _overlap(center: bool, a: np.ndarray, b: np.ndarray) -> np.float32:
    """Intersection over union in float32; 0 for a box without area."""
    (low, high), (low2, high2) = _corners(center, a), _corners(center, b)
    sides = np.maximum(np.minimum(high, high2) - np.maximum(low, low2), np.float32(0))
    areas = [np.prod(h - lo) for lo, h in ((low, high), (low2, high2))]
    if areas[0] <= 0 or areas[1] <= 0:
        return np.float32(0)
    both = np.prod(sides)
    return np.float32(both / (areas[0] + areas[1] - both))


def _corners(center: bool, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if center:
        half = box[2:] / np.float32(2)
        return box[:2] - half, box[:2] + half
    return np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])


nonzero_padded = OpDef("nonzero_padded", _nonzero_relation, _nonzero, Fusion.OPAQUE, NoAttributes)
"""x -> (int64[size of x, rank] indices of the elements that are not zero, in row-major order, int64[] their number)."""
non_max_suppression = OpDef("non_max_suppression", _nms_relation, _nms, Fusion.OPAQUE, NonMaxSuppressionAttributes, 6)
"""boxes[batch, n, 4], scores[batch, classes, n], order (of each class's boxes, best first), the most boxes per class, and the
thresholds of overlap and score -> (int64[batch * classes * n, 3] of (batch, class, box), int64[] their number). Semantics of
ONNX's NonMaxSuppression."""

__all__ = ["non_max_suppression", "nonzero_padded"]
