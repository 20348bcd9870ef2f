"""Mutants of tests.hostile.files that its command does not run."""

from __future__ import annotations

from tests.hostile import files


def test_mutants() -> None:
    verdicts = files.run(list(range(10_000, 10_042)))
    assert not [f"{seed}: {verdict}" for seed, verdict in verdicts.items() if verdict.startswith("FAULT")]
    assert "cut refused refused" in verdicts.values() and "elf refused refused" in verdicts.values()
