"""Networks for boards' GPUs, built here; ``python -m tests.cuda.matrix`` builds them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aotc.cli import app
from tests.cuda.matrix import SECONDS, UNPROVEN, Cell, built, cells, faults, results


@pytest.mark.parametrize("target", ["jetson-xavier", "jetson-nano"])
def test_a_small_network(target: str, tmp_path: Path) -> None:
    cell = Cell("detector", target, "fp16")
    report, _ = built(cell, tmp_path)
    assert faults(cell, report) == []
    if target in UNPROVEN:
        told = CliRunner().invoke(app, ["check", str(report.output), "--board", UNPROVEN[target]])
        assert told.exit_code == 9 and "run it once" in " ".join(told.output.split())


def test_what_all_came_to() -> None:
    """The last run of all of them: every file as it should be, and one build within its time."""
    found = results()
    assert set(found) == {cell.name for cell in cells()}, "run python -m tests.cuda.matrix"
    assert not {name: each["faults"] for name, each in found.items() if each["faults"]}
    assert all(
        found[f"resnet50 jetson-orin {precision} {device}"]["seconds"] < SECONDS
        for precision in ("fp32", "fp16")
        for device in ("cuda", "auto")
    )
    assert all(each["compiler"] == ["11.8"] for name, each in found.items() if name.split()[1] in UNPROVEN)
