"""Buffers of one dimension, truth values as bytes.

TVM's own pass (FlattenBuffer) is not used: where it computes an address it takes ``x // n * n + y % n`` for ``y`` whenever
``(x - y) // n`` is 0, which gives wrong addresses for ``x = y + 1`` (seen with 0.27 on a pad that wraps around).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from aotc.targets.schedules.rewrite import flat_index

Expr = Any


def flat(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, whose blocks are lowered already, over buffers of one dimension: its parameters and its local buffers."""
    buffers: dict[tirx.Buffer, tirx.Buffer] = {}

    def of(buffer: tirx.Buffer) -> tirx.Buffer:
        if buffer not in buffers:
            buffers[buffer] = tirx.decl_buffer([_size(buffer.shape)], _stored(buffer.dtype), buffer.name)
        return buffers[buffer]

    def load(node: tvm.ir.TensorLoad) -> Expr:
        value = tirx.BufferLoad(of(node.source), [flat_index(node.indices, node.source.shape)])
        return tirx.Cast("bool", value) if _is_bool(node.source.dtype) else value

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        value = tirx.Cast(_stored("bool"), node.value) if _is_bool(node.buffer.dtype) else node.value
        return tirx.BufferStore(of(node.buffer), value, [flat_index(node.indices, node.buffer.shape)])

    def allocate(node: tirx.AllocBuffer) -> tirx.Stmt:
        return tirx.AllocBuffer(of(node.buffer), node.annotations)

    body = structural_map(func.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, allocate)])
    return tirx.PrimFunc([of(buffer) for buffer in func.params], body, func.ret_type, func.attrs)


def _size(shape: Sequence[Expr]) -> Expr:
    size: Expr = tirx.const(1, "int32")
    for extent in shape:
        size = size * extent
    return size


def _is_bool(dtype: Any) -> bool:
    return str(dtype) == "bool"


def _stored(dtype: Any) -> str:
    return "int8" if _is_bool(dtype) else str(dtype)
