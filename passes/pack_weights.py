"""Weights of dense and recurrent layers are stored in the order in which kernels read them."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Module, with_children
from aotc.ir.types import FLOATS, flatten
from aotc.ir.visitor import rewrite_module
from aotc.ops.recurrent import ARGUMENTS, block_starts
from aotc.passes.byte_layout import packed_matmul
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of


def pack_weights(module: Module, options: Options) -> Module:
    """``dense`` by a constant weight becomes ``packed_dense``: outputs in blocks of ``dense_block``, the last one filled up
    with zeros. Layers of few outputs stay: most of their only block would be filling. Recurrent weights, also those that are
    computed, get blocks of ``recurrent_block``, or of a smaller power of two that covers their layer's units with fewer vectors."""
    weights = Weights(module)
    return rewrite_module(module, lambda node: _packed(node, options, weights))


def _packed(node: Expr, options: Options, weights: Weights) -> Expr | None:
    if isinstance(node, Call) and node.op in ARGUMENTS:
        return _pack_recurrent(node, options, weights) if options.recurrent_block else None
    if options.dense_block and (packed := packed_matmul(node, options, weights)) is not None:
        return packed
    return _pack(node, options.dense_block, weights) if options.dense_block else None


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
    padded = weight
    if units % block:
        padded = np.zeros((blocks * block, inputs), weight.dtype)
        padded[:units] = weight
    return padded.reshape(blocks, block, inputs).transpose(0, 2, 1)


def _pack_recurrent(node: Call, options: Options, weights: Weights) -> Expr | None:
    lanes = options.recurrent_block if options.target is None else options.target.lanes("float32")
    names = ARGUMENTS[node.op](node.attrs)  # type: ignore[index]
    args = [
        _in_blocks(arg, options.recurrent_block, lanes, weights) if name in ("recurrent", "projected") else arg
        for name, arg in zip(names, node.args, strict=True)
    ]
    packed = with_children(node, args)
    return None if packed is node else packed


def _block(units: int, most: int, lanes: int) -> int:
    """The power of two, ``most`` or less, of which blocks that cover all units take the fewest vectors; of equals the largest."""
    largest = 1 << min(units, most).bit_length() - 1
    sizes = [size for size in (largest, largest // 2, largest // 4) if size >= lanes] or [largest]
    return min(sizes, key=lambda size: -(-units // size) * -(-size // lanes))


def _in_blocks(weight: Expr, most: int, lanes: int, weights: Weights) -> Expr:
    """A recurrent weight of one block [1, inputs, gates, units] in several, if it has several."""
    count, inputs, gates, units = (int(dim) for dim in flatten(weight.type)[0].shape)  # type: ignore[arg-type]
    block = _block(units, most, lanes)
    if count != 1 or block == units:
        return weight
    order = np.concatenate([np.arange(start, start + block) for start in block_starts(units, block)])
    shape = (inputs, gates, -(-units // block), block)
    data = array_of(weight)
    if data is not None:
        return weights.derive([weight], f"blocks{block}", lambda: data[0][..., order].reshape(shape).transpose(2, 0, 1, 3))
    plain = ops.reshape(weight, shape=(inputs, gates, units), origin=weight.origin)
    spread = ops.gather(plain, Constant(order), axis=2, origin=weight.origin)
    return ops.transpose(ops.reshape(spread, shape=shape, origin=weight.origin), axes=(2, 0, 1, 3), origin=weight.origin)
