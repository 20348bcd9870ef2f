"""What calibration and the search for sensitive layers compute inside a network.

``observe`` counts how often values occur, in bins whose width follows the value, so that no range need be known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.types import TensorType, TupleType
from aotc.ops.base import Fusion, NoAttributes, OpDef, format_shape
from aotc.ops.quantise import QuantiseAttributes, dequantise, quantise

PARTS = 4
"""Pieces of the rows that are counted for themselves, by different threads."""
STEPS_LOG2 = 6
"""Each octave has 64 bins of equal width: a value is known to within 1/64 of itself."""
LEAST, OCTAVES = -20, 40
"""Magnitudes from 2**-20 to 2**20 have bins of their own; smaller ones count in the first, larger ones in the last."""
HALF = OCTAVES << STEPS_LOG2
"""Bins of one sign; those of the negative numbers come behind those of the others."""
SHIFT = 23 - STEPS_LOG2
FIRST = (127 + LEAST) << STEPS_LOG2
"""The bits of a float32 shifted by ``SHIFT`` are the number of its bin plus this."""


def _observe_relation(types: Sequence[TensorType], attrs: Any) -> TupleType:
    x = types[0]
    if x.dtype != "float32" or x.rank != 3:
        raise InvalidModel(f"takes float32[outer, channels, inner], not {x.dtype} {format_shape(x.shape)}")
    counts, ranges = TensorType((PARTS, 2 * HALF), "int32", x.device), TensorType((PARTS, 2), "float32", x.device)
    channels = TensorType((PARTS, x.shape[1]), "float32", x.device)
    return TupleType((counts, ranges, channels, channels))


def _observe(attrs: Any, x: np.ndarray) -> tuple[np.ndarray, ...]:
    counts, ranges = np.zeros((PARTS, 2 * HALF), "int32"), np.empty((PARTS, 2), "float32")
    sums, largest = np.zeros((PARTS, x.shape[1]), "float32"), np.zeros((PARTS, x.shape[1]), "float32")
    rows = x.reshape(-1, x.shape[2])
    length = -(-len(rows) // PARTS)
    for part in range(PARTS):
        mine = rows[part * length : (part + 1) * length]
        channel = np.arange(part * length, part * length + len(mine)) % x.shape[1]
        bits = mine.view("int32")
        bins = np.clip(((bits & 0x7FFFFFFF) >> SHIFT) - FIRST, 0, HALF - 1) + np.where(bits < 0, HALF, 0)
        counts[part] = np.bincount(bins.reshape(-1), minlength=2 * HALF)
        known = mine[~np.isnan(mine)]
        ranges[part] = known.min(initial=np.inf), known.max(initial=-np.inf)
        np.add.at(sums[part], channel, mine.sum(axis=1))
        np.maximum.at(largest[part], channel, np.abs(mine).max(axis=1, initial=0))
    return counts, ranges, sums, largest


def _fake_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    x, scale, zero_point, switch = types
    if [t.dtype for t in types] != ["float32", "float32", "int8", "float32"] or scale.rank or zero_point.rank or switch.rank:
        raise InvalidModel(f"takes float32 x and scalars float32, int8 and float32, not {', '.join(map(str, types))}")
    return x


def _fake(attrs: Any, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, switch: np.ndarray) -> np.ndarray:
    rounded = dequantise.reference(None, quantise.reference(QuantiseAttributes("int8"), x, scale, zero_point), scale, zero_point)
    return np.asarray(x * (np.float32(1) - switch) + rounded * switch)


def bin_edges() -> tuple[np.ndarray, np.ndarray]:
    """The magnitudes at which the bins of one sign begin and end, float64."""
    steps = 1 << STEPS_LOG2
    octaves, fractions = np.divmod(np.arange(HALF + 1), steps)
    edges = np.ldexp(1 + fractions / steps, octaves + LEAST)
    edges[0] = 0
    return edges[:-1], edges[1:]


observe = OpDef("observe", _observe_relation, _observe, Fusion.OPAQUE, NoAttributes)
"""x[outer, channels, inner] -> in each of some parts of x: int32[parts, bins] how many values are in each bin, float32[parts, 2] the least
and the greatest value, float32[parts, channels] the sum of each channel, and its largest magnitude. NaN is in the last bin only."""
fake_quantise = OpDef("fake_quantise", _fake_relation, _fake, Fusion.BROADCAST, NoAttributes, 4)
"""``x`` rounded to int8 and back where ``switch`` is 1, x where it is 0: (x, scale, zero_point, switch)."""

__all__ = ["fake_quantise", "observe"]
