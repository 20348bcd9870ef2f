"""Placing buffers in one arena: two buffers may share bytes only if no step needs both.

Offsets are found greedily in several orders (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
Inference, 2020: by size and by time) and the smallest arena wins. The same rule runs in the session (csrc/memory.c)
when sizes are known only at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes that is needed from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offsets, one a buffer, and the bytes that all of them span."""

    offsets: tuple[int, ...]
    size: int


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(lifetimes: Sequence[Lifetime]) -> Arena:
    """The smallest arena that the greedy orders find. Every offset is a multiple of 64 bytes."""
    orders: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-lifetimes[i].size, lifetimes[i].first, i),
        lambda i: (lifetimes[i].first, -lifetimes[i].size, i),
        lambda i: (lifetimes[i].first - lifetimes[i].last, -lifetimes[i].size, i),
        lambda i: ((lifetimes[i].first - lifetimes[i].last - 1) * lifetimes[i].size, i),
    ]
    arenas = [_place_in_order(lifetimes, sorted(range(len(lifetimes)), key=order)) for order in orders]
    return min(arenas, key=lambda arena: arena.size)


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """The bytes of the largest set of buffers alive at one step: no placement can do with less."""
    steps = sorted({life.first for life in lifetimes})
    return max((sum(align(life.size) for life in lifetimes if life.first <= step <= life.last) for step in steps), default=0)


def _place_in_order(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> Arena:
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in order:
        taken = sorted((offsets[i], offsets[i] + align(lifetimes[i].size)) for i in placed if lifetimes[i].overlaps(lifetimes[index]))
        offsets[index] = _best_gap(taken, align(lifetimes[index].size))
        placed.append(index)
    return Arena(tuple(offsets), max((o + align(life.size) for o, life in zip(offsets, lifetimes, strict=True)), default=0))


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the tightest gap between ``taken`` ranges that holds ``size`` bytes, else the end of the last."""
    best, best_waste, end = -1, -1, 0
    for begin, stop in taken:
        gap = begin - end
        if gap >= size and (best < 0 or gap - size < best_waste):
            best, best_waste = end, gap - size
        end = max(end, stop)
    return best if best >= 0 else end
