"""Ten thousand runs at random sizes: resident memory stays as it was after the first thousand, the largest size among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.onnx_text import Feeds, built

RUNS, SETTLING, CHECKED = 10_000, 1_000, 100  # of so many runs, one is checked
GROWTH = 2 << 20  # bytes; what the interpreter and the allocator may still take
Arrays = tuple[np.ndarray, ...]

SIZES = """(float[N, 4, L] x, float[3, 4, 3] w) => (float[N, 3, L] y, float[N, 3] z) {
    c = Conv <pads = [1, 1]> (x, w)
    y = Relu (c)
    axes = Constant <value_ints = [2]> ()
    z = ReduceSum <keepdims = 0> (y, axes)
}"""
COUNTED = """(float[N, M] x) => (int64[2, K] y) { y = NonZero (x) }"""
LOOP = """(int64 trips, float[N] x) => (float[N] y, float[T, N] rows) {
    go = Constant <value = bool {1}> ()
    y, rows = Loop (trips, go, x) <body = b (int64 i, bool c, float[N] v) => (bool c2, float[N] v2, float[N] row) {
        c2 = Identity (c)
        v2 = Add (v, x)
        row = Identity (v2)
    }>
}"""

WEIGHTS = np.random.default_rng(7).standard_normal((3, 4, 3), dtype=np.float32)


def conv(chance: np.random.Generator, largest: bool) -> tuple[Feeds, Callable[[], Arrays]]:
    batch, length = (16, 512) if largest else (int(chance.integers(1, 17)), int(chance.integers(1, 513)))
    x = chance.standard_normal((batch, 4, length), dtype=np.float32)

    def right() -> Arrays:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
        y = np.maximum(sum(np.einsum("oi,nil->nol", WEIGHTS[:, :, k], padded[:, :, k : k + length]) for k in range(3)), 0)
        return y, y.sum(2)

    return {"x": x, "w": WEIGHTS}, right


def nonzero(chance: np.random.Generator, largest: bool) -> tuple[Feeds, Callable[[], Arrays]]:
    rows, columns = (64, 128) if largest else (int(chance.integers(1, 65)), int(chance.integers(1, 129)))
    density = 1.0 if largest else chance.random() * 1.2 - 0.1  # none and all of them too
    x = (chance.random((rows, columns), dtype=np.float32) < density).astype(np.float32)
    return {"x": x}, lambda: (np.array(np.nonzero(x)),)


def loop(chance: np.random.Generator, largest: bool) -> tuple[Feeds, Callable[[], Arrays]]:
    trips, size = (40, 256) if largest else (int(chance.integers(0, 41)), int(chance.integers(1, 257)))
    x = chance.standard_normal(size, dtype=np.float32)
    return {"trips": np.array(trips), "x": x}, lambda: (x * (trips + 1), x * np.arange(2, trips + 2, dtype=np.float32)[:, None])


def resident() -> int:
    """Bytes of this process in memory now."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("body,draw", [(SIZES, conv), (COUNTED, nonzero), (LOOP, loop)], ids=["sizes", "count", "loop"])
def test_memory_is_flat(tmp_path: Path, body: str, draw: Callable[..., tuple[Feeds, Callable[[], Arrays]]]) -> None:
    model, chance, settled = built(tmp_path, body), np.random.default_rng(3), 0
    for number in range(RUNS):
        if number == SETTLING:
            settled = resident()
        feeds, right = draw(chance, number in (0, SETTLING - 1))
        outputs = model.run(dict(feeds))
        if number % CHECKED == 0 or number == SETTLING - 1:
            for have, want in zip(outputs.values(), right(), strict=True):
                assert have.shape == want.shape
                np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-3)
    assert resident() - settled <= GROWTH
