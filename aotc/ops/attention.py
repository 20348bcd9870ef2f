"""Attention in one operator: scores are never tensors of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.base import Fusion, OpDef, format_shape, same_dtype

TOKENS_FIRST = (0, 2, 1, 3)
"""The axes that turn [B, T, H, D] into [B, H, T, D], and back."""


@dataclass(frozen=True, slots=True)
class AttentionAttributes(Attributes):
    """``scale`` multiplies the scores. ``tokens_first``: for query, key, value and result, 1 where it is [B, T, H, D] rather
    than [B, H, T, D]. ``fill`` is the score where a mask of truth values is false. ``zero_rows``: a row whose scores are all minus
    infinity gives zeros rather than NaN."""

    scale: float = 1.0
    tokens_first: tuple[int, ...] = (0, 0, 0, 0)
    fill: float = -math.inf
    zero_rows: bool = False


def heads_first(shape: Sequence[Dim], tokens_first: int) -> tuple[Dim, ...]:
    """A shape as [B, H, T, D]."""
    return tuple(shape[axis] for axis in TOKENS_FIRST) if tokens_first else tuple(shape)


def _relation(types: Sequence[TensorType], attrs: AttentionAttributes) -> TensorType:
    q, k, v = types[:3]
    dtype = same_dtype([q, k, v])
    if dtype not in FLOATS or any(t.rank != 4 for t in (q, k, v)) or len(attrs.tokens_first) != 4:
        raise InvalidModel(f"takes floats of rank 4 and four flags, not {q}, {k}, {v} and {attrs.tokens_first}")
    query, key, value = (heads_first(t.shape, flag) for t, flag in zip((q, k, v), attrs.tokens_first, strict=False))
    if query[:2] != key[:2] or key[:3] != value[:3] or query[3] != key[3]:
        shapes = ", ".join(map(format_shape, (query, key, value)))
        raise InvalidModel(f"query [B, H, S, D], key [B, H, T, D] and value [B, H, T, E] do not fit together: {shapes}")
    if len(types) > 3:
        _check_mask(types[3], (*query[:3], key[2]), dtype)
    return TensorType(heads_first((*query[:3], value[3]), attrs.tokens_first[3]), dtype, q.device)


def _check_mask(mask: TensorType, scores: tuple[Dim, ...], dtype: str) -> None:
    extents = zip(mask.shape, scores[len(scores) - mask.rank :], strict=True) if mask.rank <= 4 else ()
    if mask.dtype not in ("bool", dtype) or mask.rank > 4 or any(own not in (1, other) for own, other in extents):
        raise InvalidModel(f"the mask is {dtype} or bool and broadcasts to the scores {format_shape(scores)}, not {mask}")


def _attention(attrs: AttentionAttributes, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    wide = "float32" if q.dtype == np.float16 else q.dtype
    operands = zip((q, k, v), attrs.tokens_first, strict=False)
    query, key, value = (np.transpose(x, TOKENS_FIRST if flag else (0, 1, 2, 3)).astype(wide) for x, flag in operands)
    with np.errstate(all="ignore"):
        scores = np.matmul(query, key.swapaxes(2, 3)) * np.asarray(attrs.scale, wide)
        if mask is not None:
            scores = np.where(mask, scores, np.asarray(attrs.fill, wide)) if mask.dtype == bool else scores + mask.astype(wide)
        top = scores.max(axis=-1, keepdims=True)
        if attrs.zero_rows:
            top = np.where(top == -np.inf, np.asarray(0, wide), top)
        power = np.exp(scores - top)
        total = power.sum(axis=-1, keepdims=True)
        inverse = np.where(total == 0, np.asarray(0, wide), 1 / total) if attrs.zero_rows else 1 / total
        result = np.matmul(power, value) * inverse
    return np.transpose(result, TOKENS_FIRST if attrs.tokens_first[3] else (0, 1, 2, 3)).astype(q.dtype)


attention = OpDef("attention", _relation, _attention, Fusion.OPAQUE, AttentionAttributes, (3, 4))
"""softmax(query @ key^T * scale, masked) @ value: query [B, H, S, D], key [B, H, T, D], value [B, H, T, E], or with tokens before heads
where ``tokens_first`` says so. A mask that broadcasts to [B, H, S, T] is added, or, of truth values, chooses what is seen (Vaswani
et al., Attention Is All You Need, NeurIPS 2017)."""
