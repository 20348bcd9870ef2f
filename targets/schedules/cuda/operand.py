"""Tiles of a contraction's operands in shared memory: who loads what, in how wide pieces, and where it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from aotc.targets.schedules.address import is_unit, stride
from aotc.targets.schedules.cuda.elementwise import aligned, size
from aotc.targets.schedules.cuda.launch import THREAD, address, call, itemsize, unrolled
from aotc.targets.schedules.loops import const, known
from aotc.targets.schedules.rewrite import IF_THEN_ELSE, substitute
from aotc.targets.schedules.stages import Axis, loads_of

Expr = Any
Env = Mapping[tirx.Var, Expr]

PIECES = (16, 8, 4, 2)
"""Bytes that one access may move, the best first."""
LEAST_COPY = 4
"""Bytes that an asynchronous copy moves at least."""


@dataclass(frozen=True)
class Plain:
    """A value that is a load, and where ``condition`` does not hold, bytes of ``fill`` instead."""

    load: tvm.ir.TensorLoad
    condition: Expr | None = None
    fill: int = 0


@dataclass(frozen=True)
class Source:
    """One side of a contraction: an expression over its own axes (rows or columns), the batch and the depth."""

    value: Expr
    own: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def extent(self) -> Expr:
        return size(self.own)

    def plain(self) -> Plain | None:
        """The load that the value is; ``None`` for anything else."""
        value, condition, fill = self.value, None, 0
        if isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE):
            filled = _bytes_of(value.args[2])
            if filled is None:
                return None
            condition, value, fill = value.args[0], value.args[1], filled
        return Plain(value, condition, fill) if isinstance(value, tvm.ir.TensorLoad) else None


def _bytes_of(expr: Expr) -> int | None:
    """The byte of which a constant consists."""
    if not isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return None
    if itemsize(str(expr.ty)) == 1:
        return int(expr.value) & 0xFF
    return 0 if float(expr.value) == 0 else None


@dataclass(frozen=True)
class Pieces:
    """What one access moves: ``elements`` neighbours along the depth, or along the operand's own axis. ``across`` says whether
    threads lie next to each other along the other one."""

    elements: int
    along_depth: bool
    across: bool


def pieces(source: Source, dtype: str, own_tile: int, depth_tile: int) -> Pieces:
    """The widest pieces that an operand can be loaded in."""
    plain = source.plain()
    inner_own, inner_depth = source.own[-1] if source.own else None, source.depth[-1] if source.depth else None
    if plain is not None and str(plain.load.source.dtype) == dtype:
        for width in PIECES:
            elements = width // itemsize(dtype)
            if elements <= 1:
                break
            if inner_depth is not None and depth_tile % elements == 0 and _fits(plain, inner_depth, elements):
                return Pieces(elements, True, _steps(plain.load, inner_own) == elements)
            if inner_own is not None and own_tile % elements == 0 and _fits(plain, inner_own, elements):
                few = known(inner_own.extent) == elements
                return Pieces(elements, False, few and _steps(plain.load, inner_depth) == elements)
    load = plain.load if plain is not None else None
    along_own = load is not None and _steps(load, inner_own) == 1 and _steps(load, inner_depth) != 1
    return Pieces(1, not along_own, False)


def _fits(plain: Plain, axis: Axis, elements: int) -> bool:
    extent = known(axis.extent)
    if extent is None or extent % elements or not aligned(plain.load, axis.var, elements):
        return False
    return plain.condition is None or axis.var not in set(tirx.analysis.undefined_vars(tirx.Evaluate(plain.condition)))


def _steps(load: tvm.ir.TensorLoad, axis: Axis | None) -> int | None:
    return None if axis is None else stride(load.indices[0], axis.var)


class Tile:
    """``own`` by ``depth`` elements of an operand, ``stages`` times in shared memory.

    ``begin`` starts loading, ``finish`` ends it: between the two, values may be on their way to registers. Asynchronous copies
    need no registers and nothing to finish.
    """

    def __init__(
        self, name: str, source: Source, dtype: str, own: int, depth: int, stages: int, threads: int, asynchronous: bool, pad: int
    ) -> None:
        self.source, self.dtype, self.own, self.depth, self.stages, self.threads = source, dtype, own, depth, stages, threads
        self.pieces = pieces(source, dtype, own, depth)
        self.depth_major = not self.pieces.along_depth
        self.row = (own if self.depth_major else depth) + pad
        self.stage_size = self.row * (depth if self.depth_major else own)
        self.bytes = itemsize(dtype) * self.pieces.elements
        self.asynchronous = asynchronous and self.bytes >= LEAST_COPY and self._plain() is not None
        self.count = own * depth // self.pieces.elements
        self.slots = -(-self.count // threads)
        self.registers = tirx.decl_buffer([self.slots * self.pieces.elements], dtype, f"{name}_loaded")
        self.buffer: tirx.Buffer | None = None
        self.base = 0

    def place(self, buffer: tirx.Buffer, base: int) -> None:
        """The tile lies in ``buffer`` from element ``base`` on."""
        self.buffer, self.base = buffer, base

    def _plain(self) -> Plain | None:
        plain = self.source.plain()
        return plain if plain is not None and str(plain.load.source.dtype) == self.dtype else None

    def offset(self, stage: Expr, own: Expr, depth: Expr) -> Expr:
        """Where an element lies."""
        inner = depth * const(self.row) + own if self.depth_major else own * const(self.row) + depth
        return const(self.base) + stage * const(self.stage_size) + inner

    def begin(self, env: Env, first: Expr, depth: Expr, stage: Expr) -> tirx.Stmt:
        """Starts loading the tile whose first own index and first depth are given."""
        plain = self._plain()
        how = f"{self.bytes}, {plain.fill}" if plain is not None and plain.fill else str(self.bytes)

        def slot(which: Expr, own: Expr, at: Expr) -> tirx.Stmt:
            here = {**env, **decoded(first + own, self.source.own), **decoded(depth + at, self.source.depth)}
            inside = self._inside(first + own, depth + at)
            local = which * const(self.pieces.elements)
            if plain is None:
                value = substitute(self.source.value, here)
                value = tirx.Cast(self.dtype, value) if str(value.ty) != self.dtype else value
                guarded = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, self.dtype)) if inside else value
                return tirx.BufferStore(self.registers, guarded, [local])
            valid = [*inside, *([substitute(plain.condition, here)] if plain.condition is not None else [])]
            wanted = tirx.all(*valid) if valid else tirx.const(True, "bool")
            place = substitute(plain.load.indices[0], here)
            if loads_of(place):  # a gathered operand: the index itself is memory, which is not there outside of the tensor
                place = tirx.if_then_else(wanted, place, const(0))
            source = address(plain.load.source, place)
            if self.asynchronous:
                assert self.buffer is not None
                return call(f"aotc_copy<{how}>", address(self.buffer, self.offset(stage, own, at)), source, wanted)
            return call(f"aotc_fetch<{how}>", address(self.registers, local), source, wanted)

        return self._shared_out(slot)

    def finish(self, stage: Expr) -> tirx.Stmt | None:
        """Stores what was loaded to registers."""
        if self.asynchronous:
            return None
        buffer = self.buffer
        assert buffer is not None

        def slot(which: Expr, own: Expr, at: Expr) -> tirx.Stmt:
            target, local = self.offset(stage, own, at), which * const(self.pieces.elements)
            return call(f"aotc_move<{self.bytes}>", address(buffer, target), address(self.registers, local))

        return self._shared_out(slot)

    def _inside(self, own: Expr, depth: Expr) -> list[Expr]:
        """Conditions that an element lies in the operand, as far as tiles may stand out of it."""
        conditions = []
        for index, axes, tile in ((own, self.source.own, self.own), (depth, self.source.depth, self.depth)):
            extent = size(axes)
            whole = known(extent)
            if whole is None or whole % tile:
                conditions.append(index < extent)
        return conditions

    def _shared_out(self, slot: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """``slot(number, own, depth)`` for each piece of a thread."""
        elements = self.pieces.elements

        def one(which: Expr) -> tirx.Stmt:
            piece = which * const(self.threads) + THREAD
            own_pieces = self.own if self.pieces.along_depth else self.own // elements
            depth_pieces = self.depth // elements if self.pieces.along_depth else self.depth
            if self.pieces.along_depth == self.pieces.across:
                own, depth = tirx.truncmod(piece, const(own_pieces)), tirx.truncdiv(piece, const(own_pieces))
            else:
                own, depth = tirx.truncdiv(piece, const(depth_pieces)), tirx.truncmod(piece, const(depth_pieces))
            scale = const(elements)
            body = slot(which, own if self.pieces.along_depth else own * scale, depth * scale if self.pieces.along_depth else depth)
            return body if self.count % self.threads == 0 else tirx.IfThenElse(piece < const(self.count), body, None)

        return unrolled(self.slots, one, "slot")


def decoded(index: Expr, axes: Sequence[Axis]) -> dict[tirx.Var, Expr]:
    """The value of each axis at a flat index that is not negative."""
    env: dict[tirx.Var, Expr] = {}
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        if is_unit(axis.extent):
            env[axis.var] = const(0)
        elif position == 0:
            env[axis.var] = index
        else:
            env[axis.var] = tirx.truncmod(index, axis.extent)
            index = tirx.truncdiv(index, axis.extent)
    return env
