"""Mutants of tests.hostile.files that its command does not run."""

from __future__ import annotations

from tests.hostile import files


def test_mutants() -> None:
    verdicts, faults = files.run(list(range(10_000, 10_250)))
    assert not faults
    assert sum(verdicts.values()) == 500 and verdicts["cut refused"] and verdicts["elf refused"]
