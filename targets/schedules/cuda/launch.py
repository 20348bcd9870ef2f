"""A kernel launch while it is written: statements over the number of the block and of the thread, and short names for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.stmt import ForKind

from aotc.targets.schedules.loops import const, known, loop, sequence

Expr = Any

BLOCK = tirx.Var("block", "int32")
"""The number of a block in its grid, which has one dimension."""
THREAD = tirx.Var("thread", "int32")
"""The number of a thread in its block, which has one dimension."""
WARP = 32


@dataclass(frozen=True)
class Launch:
    """``blocks`` blocks of ``threads`` threads run ``body``, a statement over ``BLOCK``, ``THREAD``, flat buffers and dims.

    ``shared_bytes`` is the dynamic shared memory that it asks for, in a buffer that ``dynamic_shared`` made. ``written`` are buffers
    that it writes by calls of named functions rather than stores.
    """

    body: tirx.Stmt
    blocks: Expr
    threads: int
    shared_bytes: int = 0
    written: tuple[tirx.Buffer, ...] = ()


def shared(dtype: str, size: int, name: str) -> tirx.Buffer:
    """A buffer that the threads of a block share, of a size that needs no opt-in (48 KB in all)."""
    return tirx.decl_buffer([size], dtype, name, scope="shared")


def dynamic_shared(dtype: str, size: int, name: str) -> tirx.Buffer:
    """The one buffer of a launch whose size the launch gives; it may be as large as the GPU allows."""
    return tirx.decl_buffer([size], dtype, name, scope="shared.dyn")


def barrier() -> tirx.Stmt:
    """All threads of the block wait for each other."""
    return tirx.Evaluate(tirx.call_extern("int32", "__syncthreads"))


def warp_barrier() -> tirx.Stmt:
    """The threads of a warp wait for each other."""
    return tirx.Evaluate(tirx.call_extern("int32", "__syncwarp"))


def call(name: str, *args: Expr) -> tirx.Stmt:
    """A call of a named function of ``device.h`` that gives no value."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *args))


def address(buffer: tirx.Buffer, at: Expr) -> Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, [at]))


def unrolled(extent: int, body: Callable[[Expr], tirx.Stmt], name: str = "u") -> tirx.Stmt:
    return loop(extent, body, ForKind.UNROLLED, name)


def strided(extent: Expr, first: Expr, step: int, body: Callable[[Expr], tirx.Stmt], name: str = "s") -> tirx.Stmt:
    """``body`` at first, first + step, ... below ``extent``: how the threads of a block share a range. ``first`` is below ``step``."""
    size = known(extent)
    if size is not None and size % step == 0:
        return loop(size // step, lambda i: body(first + i * const(step)), name=name)
    rounds = const(-(-size // step)) if size is not None else tirx.floordiv(extent + const(step - 1), const(step))

    def guarded(i: Expr) -> tirx.Stmt:
        at = first + i * const(step)
        return tirx.IfThenElse(at < extent, body(at), None)

    return loop(rounds, guarded, name=name)


def threads_over(count: Expr, body: Callable[[Expr], tirx.Stmt], threads: int = 256) -> Launch:
    """A thread for each of ``count`` items."""
    size = known(count)
    while size is not None and threads > WARP and threads >= 2 * size:
        threads //= 2
    at = BLOCK * const(threads) + THREAD
    if size is not None and size % threads == 0:
        return Launch(body(at), const(size // threads), threads)
    blocks = const(-(-size // threads)) if size is not None else tirx.floordiv(count + const(threads - 1), const(threads))
    return Launch(tirx.IfThenElse(at < count, body(at), None), blocks, threads)


def allocated(buffers: Sequence[tirx.Buffer], *parts: tirx.Stmt) -> tirx.Stmt:
    """``parts`` with ``buffers``, allocated where they are used."""
    return sequence([*map(tirx.AllocBuffer, buffers), *parts])


def itemsize(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)
