"""Matrix products. float16 operands are multiplied and summed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, ceildiv
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.base import Fusion, OpDef, broadcast_shapes, format_shape, same_dtype
from aotc.ops.elementwise import NUMBERS, accept


@dataclass(frozen=True, slots=True)
class PackedDenseAttributes(Attributes):
    """``units``: the true number of outputs, without the padding of the last block."""

    units: int


def _matmul_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], NUMBERS)
    dtype = same_dtype(types)
    a, b = types[0].shape, types[1].shape
    if not a or not b:
        raise InvalidModel(f"takes tensors of rank 1 or more, not {format_shape(a)} and {format_shape(b)}")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise InvalidModel(f"the inner dims of {format_shape(a)} and {format_shape(b)} differ: {a[-1]} and {inner}")
    return TensorType(broadcast_shapes(a[:-2], b[:-2]) + rows + columns, dtype, types[0].device)


def _matmul(attrs: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = "float32" if a.dtype == np.float16 else a.dtype
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(a.dtype)


def _check_inner(x: TensorType, inner: Dim, weight: TensorType) -> None:
    if not x.shape or x.shape[-1] != inner:
        raise InvalidModel(f"the last dim of x {format_shape(x.shape)} must be {inner}, as in the weight {format_shape(weight.shape)}")


def _dense_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], NUMBERS)
    x, weight = types
    dtype = same_dtype(types)
    if weight.rank != 2:
        raise InvalidModel(f"the weight has the shape [units, inputs], not {format_shape(weight.shape)}")
    _check_inner(x, weight.shape[1], weight)
    return TensorType((*x.shape[:-1], weight.shape[0]), dtype, x.device)


def _packed_dense_relation(types: Sequence[TensorType], attrs: PackedDenseAttributes) -> TensorType:
    accept(types[0], NUMBERS)
    x, weight = types
    dtype = same_dtype(types)
    if weight.rank != 3 or ceildiv(attrs.units, weight.shape[2]) != weight.shape[0]:
        shape = format_shape(weight.shape)
        raise InvalidModel(f"the weight has the shape [ceil(units / block), inputs, block] with {attrs.units} units, not {shape}")
    _check_inner(x, weight.shape[1], weight)
    return TensorType((*x.shape[:-1], attrs.units), dtype, x.device)


def _packed_dense(attrs: PackedDenseAttributes, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    blocks, inputs, block = weight.shape
    plain = weight.transpose(0, 2, 1).reshape(blocks * block, inputs)[: attrs.units]
    return _matmul(attrs, x, plain.T)


def _det_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    (x,) = types
    accept(x, FLOATS)
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise InvalidModel(f"takes square matrices [..., n, n], not {x}")
    return TensorType(x.shape[:-2], x.dtype, x.device)


def _det(attrs: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.det(x.astype("float64"))).astype(x.dtype)


matmul = OpDef("matmul", _matmul_relation, _matmul, Fusion.OUT_FUSABLE, arity=2)
"""numpy's ``matmul``: operands of rank 1 are a row and a column, leading dims broadcast."""
dense = OpDef("dense", _dense_relation, lambda attrs, x, weight: _matmul(attrs, x, weight.T), Fusion.OUT_FUSABLE, arity=2)
"""x[..., K], weight[N, K] -> [..., N]."""
packed_dense = OpDef("packed_dense", _packed_dense_relation, _packed_dense, Fusion.OUT_FUSABLE, PackedDenseAttributes, 2)
"""x[..., K], weight[ceil(N / b), K, b] -> [..., N]; rows beyond N are zero."""
determinant = OpDef("determinant", _det_relation, _det, Fusion.OPAQUE)
"""x[..., n, n] -> [...]."""

__all__ = ["dense", "determinant", "matmul", "packed_dense"]
