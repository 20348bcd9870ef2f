"""What warps do on tensor cores: they multiply fragments of tiles in shared memory, and bring their sums back to rows and columns.

The sums go through shared memory once, 16 rows of a warp at a time, so that whatever is fused behind sees rows and columns, and
stores vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.base import Gpu
from aotc.targets.schedules.address import stride
from aotc.targets.schedules.cuda import epilogue
from aotc.targets.schedules.cuda.bfloats import BITS
from aotc.targets.schedules.cuda.blocks import Grid
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.launch import THREAD, WARP, address, allocated, call, itemsize, unrolled, warp_barrier
from aotc.targets.schedules.cuda.operand import Tile
from aotc.targets.schedules.loops import const, known, sequence

Expr = Any

FRAGMENT = 16
"""Rows and columns of what one instruction multiplies."""
HELD = 8
"""Sums of a fragment that a thread holds."""
SUMS_PAD = 4
"""Elements between rows of sums on their way to the results, so that those that are stored together lie in different banks."""
_LEAST = 0x80808080
"""Four bytes of -128."""


@dataclass(frozen=True)
class Kind:
    """A type of element that tensor cores multiply, of which ``Gpu.tensor_types`` has the name ``type``. ``name`` is that of its struct in ``device.h``,
    ``depth`` what one instruction adds up, ``held`` the 32-bit registers that a thread holds of an operand's fragment, ``speed`` how many products a cycle has for
    each of halves."""

    type: str
    name: str
    element: str
    total: str
    depth: int
    held: int
    speed: float


HALVES = Kind("float16", "aotc_halves", "float16", "float32", 16, 8, 1)
BFLOATS = Kind("bfloat16", "aotc_bfloats", BITS, "float32", 16, 4, 1)
SHORT_FLOATS = Kind("tfloat32", "aotc_short_floats", "float32", "float32", 8, 4, 0.5)
SIGNED = Kind("int8", "aotc_signed_bytes", "int8", "int32", 16, 2, 2)
UNSIGNED = Kind("uint8", "aotc_unsigned_bytes", "uint8", "int32", 16, 2, 2)
_KINDS = {(kind.element, kind.element): kind for kind in (HALVES, BFLOATS, SHORT_FLOATS, SIGNED, UNSIGNED)} | {("int8", "uint8"): SIGNED}


def kind_of(problem: Contraction, gpu: Gpu) -> Kind | None:
    """How a contraction's factors are multiplied; ``None`` where the GPU's tensor cores do not. Signed bytes times unsigned ones
    are ``SIGNED``: the unsigned ones lose 128 on their way, which ``Warps`` makes up for."""
    factors = sorted((str(problem.left.ty), str(problem.right.ty)))
    kind = _KINDS.get((factors[0], factors[1]))
    if kind is None or kind.type not in gpu.tensor_types or str(problem.total.ty) != kind.total:
        return None
    return None if kind is SHORT_FLOATS and not gpu.round_factors else kind


@dataclass(frozen=True)
class Share:
    """A warp's part of a block: ``down`` by ``across`` fragments; ``warps_across`` warps stand side by side."""

    warps_across: int
    down: int
    across: int

    @property
    def sums_row(self) -> int:
        """Elements from row to row of what a warp has in shared memory of its sums."""
        return self.across * FRAGMENT + SUMS_PAD


class Warps:
    """What a warp does with the tiles of its block, whose depth is ``depth``; ``buffer`` is the block's shared memory."""

    def __init__(self, kind: Kind, share: Share, depth: int, left: Tile, right: Tile, buffer: tirx.Buffer) -> None:
        self.kind, self.share, self.depth, self.left, self.right, self.buffer = kind, share, depth, left, right, buffer
        self.sums = tirx.decl_buffer([share.down * share.across * HELD], kind.total, "sums")
        self.a = tirx.decl_buffer([share.down * kind.held], "uint32", "a")
        self.b = tirx.decl_buffer([share.across * kind.held], "uint32", "b")
        self.buffers = [self.sums, self.a, self.b]
        self.offset = _Offset.of(self)
        self.buffers += self.offset.buffers if self.offset is not None else []
        self.warp, self.lane = tirx.truncdiv(THREAD, const(WARP)), tirx.truncmod(THREAD, const(WARP))
        self.row = tirx.truncdiv(self.warp, const(share.warps_across)) * const(share.down * FRAGMENT)
        self.column = tirx.truncmod(self.warp, const(share.warps_across)) * const(share.across * FRAGMENT)
        self.sums_scale = const(4 // itemsize(kind.element))

    def clear(self) -> tirx.Stmt:
        count = self.share.down * self.share.across * HELD
        zero = tirx.const(0, self.kind.total)
        sums = unrolled(count, lambda i: tirx.BufferStore(self.sums, zero, [i]))
        return sums if self.offset is None else sequence([sums, self.offset.clear()])

    def multiply(self, stage: Expr) -> tirx.Stmt:
        share, kind = self.share, self.kind

        def load(name: str, tile: Tile, local: tirx.Buffer, first: Expr, transposed: bool, i: Expr, depth: Expr) -> tirx.Stmt:
            source = address(self.buffer, tile.offset(stage, first + i * const(FRAGMENT), depth))
            load_ = f"aotc_load_{name}<{kind.name}, {str(transposed).lower()}>"
            return call(load_, address(local, i * const(kind.held)), source, const(tile.row))

        def step(s: Expr) -> tirx.Stmt:
            depth = s * const(kind.depth)
            left, right = self.left, self.right
            parts = [
                unrolled(share.down, lambda i: load("left", left, self.a, self.row, left.depth_major, i, depth), "i"),
                unrolled(share.across, lambda j: load("right", right, self.b, self.column, not right.depth_major, j, depth), "j"),
            ]
            if kind is SHORT_FLOATS:
                parts += [self._shortened(self.a), self._shortened(self.b)]
            if self.offset is not None:
                parts.append(self.offset.take())
            parts.append(unrolled(share.down, lambda i: unrolled(share.across, lambda j: self._add(i, j), "j"), "i"))
            return sequence(parts)

        return unrolled(self.depth // kind.depth, step, "step")

    def _shortened(self, fragments: tirx.Buffer) -> tirx.Stmt:
        return unrolled(int(fragments.shape[0]), lambda i: call("aotc_shorten", address(fragments, i)), "i")

    def _add(self, i: Expr, j: Expr) -> tirx.Stmt:
        at = (i * const(self.share.across) + j) * const(HELD)
        return self.product(address(self.sums, at), address(self.a, i * const(self.kind.held)), address(self.b, j * const(self.kind.held)))

    def product(self, sums: Expr, left: Expr, right: Expr) -> tirx.Stmt:
        return call(f"aotc_multiply<{self.kind.name}>", sums, left, right)

    def store(self, problem: Contraction, grid: Grid) -> tirx.Stmt:
        """Sixteen rows of the warp's sums after the other through shared memory of the warp's own."""
        share = self.share
        own = self.warp * const(FRAGMENT * share.sums_row) * self.sums_scale

        def slab(i: Expr) -> tirx.Stmt:
            def put(j: Expr) -> tirx.Stmt:
                target = address(self.buffer, own + j * const(FRAGMENT) * self.sums_scale)
                source = address(self.sums, (i * const(share.across) + j) * const(HELD))
                return call(f"aotc_store_sums<{self.kind.name}>", target, source, const(share.sums_row))

            first = grid.first_row + self.row + i * const(FRAGMENT)
            results = self._results(problem, grid, own, first, grid.first_column + self.column)
            return sequence([unrolled(share.across, put, "j"), warp_barrier(), results, warp_barrier()])

        slabs = unrolled(share.down, slab, "slab")
        return slabs if self.offset is None else sequence([self.offset.give_back(), slabs])

    def _results(self, problem: Contraction, grid: Grid, own: Expr, first_row: Expr, first_column: Expr) -> tirx.Stmt:
        share, lanes = self.share, epilogue.vector_lanes(problem, 8)
        wide = share.across * FRAGMENT // lanes
        down_first = _rows_touch(problem, lanes)

        def piece(which: Expr) -> tirx.Stmt:
            at = which * const(WARP) + self.lane
            if down_first:
                row, column = tirx.truncmod(at, const(FRAGMENT)), tirx.truncdiv(at, const(FRAGMENT)) * const(lanes)
            else:
                row, column = tirx.truncdiv(at, const(wide)), tirx.truncmod(at, const(wide)) * const(lanes)
            total = tirx.decl_buffer([lanes], self.kind.total, "total")
            source = own + (row * const(share.sums_row) + column) * self.sums_scale
            width = min(lanes, 4)

            def move(part: Expr) -> tirx.Stmt:
                begin = part * const(width)
                return call(f"aotc_move<{width * 4}>", address(total, begin), address(self.buffer, source + begin * self.sums_scale))

            def results(env: Any) -> tirx.Stmt:
                done = epilogue.store(problem, env, first_column + column, lanes, lambda lane: tirx.BufferLoad(total, [lane]))
                return allocated([total], unrolled(lanes // width, move, "part"), done)

            return grid.guarded(first_row + row, first_column + column, results)

        return unrolled(FRAGMENT * wide // WARP, piece, "piece")


class _Offset:
    """What is lost where unsigned bytes lose 128 to be multiplied as signed ones: -128 times the sums of the other side's rows or
    columns, which are one more fragment of products for each of them."""

    def __init__(self, warps: Warps, on_left: bool) -> None:
        self.warps, self.on_left = warps, on_left
        share, kind = warps.share, warps.kind
        self.others = share.across if on_left else share.down
        self.sums = tirx.decl_buffer([self.others * HELD], kind.total, "offsets")
        self.least = tirx.decl_buffer([kind.held], "uint32", "least")
        self.buffers = [self.sums, self.least]

    @staticmethod
    def of(warps: Warps) -> _Offset | None:
        """``None`` where both sides are of one type."""
        if warps.left.dtype == warps.right.dtype:
            return None
        return _Offset(warps, warps.left.dtype == "uint8")

    def clear(self) -> tirx.Stmt:
        sums = unrolled(self.others * HELD, lambda i: tirx.BufferStore(self.sums, tirx.const(0, str(self.sums.dtype)), [i]))
        least = unrolled(self.warps.kind.held, lambda i: tirx.BufferStore(self.least, tirx.const(_LEAST, "uint32"), [i]))
        return sequence([sums, least])

    def take(self) -> tirx.Stmt:
        """Takes 128 off the unsigned fragments, and adds up what that makes."""
        warps, held = self.warps, const(self.warps.kind.held)
        own, other = (warps.a, warps.b) if self.on_left else (warps.b, warps.a)
        count = (warps.share.down if self.on_left else warps.share.across) * warps.kind.held
        least = address(self.least, const(0))

        def add(i: Expr) -> tirx.Stmt:
            fragment = address(other, i * held)
            factors = (least, fragment) if self.on_left else (fragment, least)
            return warps.product(address(self.sums, i * const(HELD)), *factors)

        return sequence([unrolled(count, lambda i: call("aotc_center", address(own, i)), "i"), unrolled(self.others, add, "i")])

    def give_back(self) -> tirx.Stmt:
        share = self.warps.share

        def give(i: Expr, j: Expr, k: Expr) -> tirx.Stmt:
            at = (i * const(share.across) + j) * const(HELD) + k
            offset = (j if self.on_left else i) * const(HELD) + k
            value = tirx.BufferLoad(self.warps.sums, [at]) - tirx.BufferLoad(self.sums, [offset])
            return tirx.BufferStore(self.warps.sums, value, [at])

        return unrolled(share.down, lambda i: unrolled(share.across, lambda j: unrolled(HELD, lambda k: give(i, j, k), "k"), "j"), "i")


def _rows_touch(problem: Contraction, lanes: int) -> bool:
    """Whether the vectors of neighbouring rows, not columns, lie next to each other (channels in blocks of one vector)."""
    if not problem.rows or known(problem.columns[-1].extent) != lanes:
        return False
    return all(stride(offset, problem.rows[-1].var) == lanes for _, offset, _ in problem.results)
