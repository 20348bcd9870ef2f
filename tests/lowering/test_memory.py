"""Placement of buffers: never two live buffers on the same bytes, never below the bound, tight where that is easy to see."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from aotc.lowering.memory import ALIGNMENT, Lifetime, align, lower_bound, place

lifetimes = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10)).map(lambda t: Lifetime(t[0], t[1], t[1] + t[2])), max_size=25
)  # fmt: skip


@given(lifetimes)
def test_live_buffers_never_share_bytes(buffers: list[Lifetime]) -> None:
    arena = place(buffers)
    for i, j in combinations(range(len(buffers)), 2):
        if buffers[i].overlaps(buffers[j]):
            before, after = sorted((i, j), key=lambda k: (arena.offsets[k], arena.offsets[k] + buffers[k].size))
            assert arena.offsets[before] + buffers[before].size <= arena.offsets[after]
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets)
    assert all(offset + life.size <= arena.size for offset, life in zip(arena.offsets, buffers, strict=True))


@given(lifetimes)
def test_arena_is_at_least_the_bound(buffers: list[Lifetime]) -> None:
    assert place(buffers).size >= lower_bound(buffers)


def test_chain_needs_the_two_largest_neighbours() -> None:
    sizes = [640, 6400, 1280, 64, 3200, 640]
    chain = [Lifetime(size, i, i + 1) for i, size in enumerate(sizes)]
    assert place(chain).size == max(a + b for a, b in pairwise(sizes)) == lower_bound(chain)


def test_no_buffers() -> None:
    assert place([]).size == 0 == lower_bound([])


def test_sizes_round_up_to_the_alignment() -> None:
    assert place([Lifetime(1, 0, 0), Lifetime(1, 0, 0)]).size == 2 * align(1) == 128
