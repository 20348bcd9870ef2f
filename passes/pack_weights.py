"""Weights of dense layers are stored in the order in which kernels read them."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Expr, Module
from aotc.ir.types import FLOATS
from aotc.ir.visitor import rewrite_module
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of


def pack_weights(module: Module, options: Options) -> Module:
    """``dense`` by a constant weight becomes ``packed_dense``: outputs in blocks of ``dense_block``, the last one filled up
    with zeros. Layers of few outputs stay: most of their only block would be filling."""
    if not options.dense_block:
        return module
    weights = Weights(module)
    return rewrite_module(module, lambda node: _pack(node, options.dense_block, weights))


def _pack(node: Expr, block: int, weights: Weights) -> Expr | None:
    if not isinstance(node, Call) or not ops.dense.is_call(node):
        return None
    x, weight = node.args
    data = array_of(weight)
    if data is None or str(data.dtype) not in FLOATS or 2 * data.shape[0] < block or not data.size:
        return None
    packed = weights.derive([weight], f"packed{block}", lambda: pack(data, block))
    return ops.packed_dense(x, packed, units=data.shape[0], origin=node.origin)


def pack(weight: np.ndarray, block: int) -> np.ndarray:
    """weight[N, K] as [ceil(N / block), K, block]."""
    units, inputs = weight.shape
    blocks = -(-units // block)
    padded = np.zeros((blocks * block, inputs), weight.dtype)
    padded[:units] = weight
    return padded.reshape(blocks, block, inputs).transpose(0, 2, 1)
