"""Builds and helpers that the tests of both loaders share."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aotc.packaging.manifest import TargetInfo
from tests.packaging.sample import HOST, build_sample


@functools.cache
def sample_bytes(target: TargetInfo = HOST) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        build_sample(Path(folder) / "model.so", target)
        return (Path(folder) / "model.so").read_bytes()


def impossible_features() -> TargetInfo:
    """This machine, with instructions that no machine of the tests has."""
    return replace(HOST, name="future", features=("amx-fp8", "avx512fp16", "sve2", "amx-bf16", "i8mm"))


def mutants(data: bytes, weights: tuple[int, int], count: int) -> Iterator[bytes]:
    """Cut files, and files with bytes changed outside the weights: in the tables at both ends more than elsewhere."""
    chance = random.Random(1)
    for number in range(count):
        if number % 4 == 0:
            yield data[: chance.randrange(len(data))]
            continue
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 3, 8))):
            edge = min(4096, len(data))
            place = chance.choice((chance.randrange(edge), len(data) - 1 - chance.randrange(edge), chance.randrange(len(data))))
            if not weights[0] <= place < weights[0] + weights[1]:
                changed[place] = chance.choice((0, 0xFF, changed[place] ^ 1 << chance.randrange(8), chance.randrange(256)))
        yield bytes(changed)
