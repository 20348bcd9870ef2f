"""The stages of an unscheduled PrimFunc, as ``te.create_prim_func`` makes it: what each computes, free of loops and blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi.structural import structural_walk

Expr = Any
SPATIAL, REDUCTION = 0, 2


@dataclass(frozen=True, eq=False)
class Axis:
    var: tirx.Var
    extent: Expr


@dataclass(frozen=True, eq=False)
class Stage:
    """``outputs[i][axes] = values[i]`` for all axes.

    With ``reduction`` axes the outputs start as ``inits``, and ``values`` are applied for each step: they read the outputs
    at the same place. An ``opaque`` stage is a statement of its own instead.
    """

    name: str
    outputs: tuple[tirx.Buffer, ...]
    axes: tuple[Axis, ...]
    reduction: tuple[Axis, ...]
    inits: tuple[Expr, ...]
    values: tuple[Expr, ...]
    kept: bool
    opaque: tirx.Stmt | None = None

    @property
    def output(self) -> tirx.Buffer:
        return self.outputs[0]


def read_stages(func: tirx.PrimFunc) -> list[Stage]:
    """The stages in the order of computation."""
    root = func.body.block
    parts = [_block(stmt) for stmt in _flat(root.body)]
    if not all(parts):  # a function that is one statement: the root block itself is that stage
        return [_opaque(root)]
    return [_stage(block) for block in parts]


def _block(stmt: tirx.Stmt) -> s_tir.SBlock | None:
    """The block of a stage's loop nest."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt.block if isinstance(stmt, s_tir.SBlockRealize) else None


def _opaque(block: s_tir.SBlock) -> Stage:
    return Stage(block.name_hint, written_buffers(block.body), (), (), (), (), True, block.body)


def _stage(block: s_tir.SBlock) -> Stage:
    stores = list(_stores(block.body))
    if not stores:
        return _opaque(block)
    lets = {binding.var: binding.value for binding in _flat(block.body) if isinstance(binding, tirx.stmt.Bind)}
    values = tuple(lets[s.value] if isinstance(s.value, tirx.Var) and s.value in lets else s.value for s in stores)
    inits = tuple(s.value for s in _stores(block.init)) if block.init is not None else ()
    axes = {kind: tuple(Axis(i.var, i.dom.extent) for i in block.iter_vars if i.iter_type == kind) for kind in (SPATIAL, REDUCTION)}
    rank = len(stores[0].indices)
    kept = "kept" in block.annotations
    outputs = tuple(s.buffer for s in stores)
    return Stage(block.name_hint, outputs, axes[SPATIAL] if rank else (), axes[REDUCTION], inits, values, kept)


def _flat(stmt: tirx.Stmt) -> Sequence[tirx.Stmt]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _stores(stmt: tirx.Stmt) -> Iterator[tirx.stmt.BufferStore]:
    """The stores of a plain block body; nothing where it holds anything but stores and bindings."""
    parts = _flat(stmt)
    if all(isinstance(part, (tirx.stmt.BufferStore, tirx.stmt.Bind)) for part in parts):
        yield from (part for part in parts if isinstance(part, tirx.stmt.BufferStore))


def written_buffers(stmt: tirx.Stmt) -> tuple[tirx.Buffer, ...]:
    """The buffers that a statement writes and does not allocate itself."""
    found: dict[tirx.Buffer, None] = {}
    local: set[tirx.Buffer] = set()
    structural_walk(stmt, (tirx.BufferStore, lambda store: found.setdefault(store.buffer)))
    structural_walk(stmt, (tirx.AllocBuffer, lambda alloc: local.add(alloc.buffer)))
    return tuple(buffer for buffer in found if buffer not in local)


def loads_of(expr: Any) -> list[tvm.ir.TensorLoad]:
    """Every load in an expression or statement, in order, repetitions included."""
    found: list[tvm.ir.TensorLoad] = []
    structural_walk(expr, (tvm.ir.TensorLoad, found.append))
    return found


def extent_of(extent: Expr, unknown: int = 64) -> int:
    """An extent as an int; a guess where it is known only at run time."""
    return int(extent.value) if isinstance(extent, tirx.IntImm) else unknown


def size_of(axes: Sequence[Axis], unknown: int = 64) -> int:
    size = 1
    for axis in axes:
        size *= extent_of(axis.extent, unknown)
    return size


def is_static(axes: Sequence[Axis]) -> bool:
    return all(isinstance(axis.extent, tirx.IntImm) for axis in axes)
