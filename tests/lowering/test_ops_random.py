"""Random numbers: the published test vectors of Threefry, compiled numbers equal to the reference, moments that fit."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ops.random import normal, scramble, uniform
from tests.lowering.batch import Case, check
from tests.lowering.harness import run

B = symbol("b", 1)


@pytest.mark.parametrize(
    "key,stream,index,word",
    [
        # Random123's kat_vectors, threefry2x32 with 20 rounds: key, counter, first word of the result.
        ((0, 0), 0, 0, 0x6B200159),
        ((0x13198A2E, 0x03707344), 0x85A308D3, 0x243F6A88, 0xC4923A9C),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, 0xFFFFFFFF, 0x1CB996FC),
    ],
)
def test_published_vectors(key: tuple[int, int], stream: int, index: int, word: int) -> None:
    w = np.uint32
    with np.errstate(over="ignore"):
        found = scramble(w(index), w(stream), key, lambda x, r: (x << w(r)) | (x >> w(32 - r)), lambda x, t: t(x))
    assert int(found) == word


def test_compiled() -> None:
    check(
        [
            Case(ops.random_bits, [], {"shape": (5, 333), "key": (7, 2**32 - 1)}),
            Case(ops.random_bits, [], {"shape": (3,), "key": (0, 0), "stream": 1}),
            Case(ops.random_bits, [], {"shape": (), "key": (1, 2)}),
            Case(ops.random_bits, [], {"shape": (B, 40), "key": (1, 2)}, shapes=[], symbols={"b": 9}),
        ]
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_distributions(dtype: str) -> None:
    (flat,) = run(uniform((100, 1000), (1, 2), dtype), [])
    assert flat.dtype == dtype and flat.min() >= 0 and flat.max() <= 1
    wide = flat.astype("float64")
    assert abs(wide.mean() - 0.5) < 0.004 and abs(wide.std() - 12**-0.5) < 0.003
    assert abs(np.corrcoef(wide.reshape(-1)[:-1], wide.reshape(-1)[1:])[0, 1]) < 0.01
    (bell,) = run(normal((100, 1000), (1, 2), dtype), [])
    wide = bell.astype("float64")
    assert np.isfinite(wide).all() and abs(wide.mean()) < 0.012 and abs(wide.std() - 1) < 0.01
    assert abs((wide**4).mean() - 3) < 0.15
