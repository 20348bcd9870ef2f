"""Real networks through the unchanged runtime and the software driver; `python -m tests.cuda.real_networks` does all, with all checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.real_networks import FIGURES, NETWORKS, build, figure, measured, results


@pytest.mark.parametrize(("name", "precision"), [("detector", "fp32"), ("detector", "fp16"), ("minilm", "fp16")])
def test_network(name: str, precision: str, tmp_path: Path) -> None:
    report = build(name, precision, tmp_path)
    for output, found in measured(name, precision, report, tmp_path, checked=False).items():
        assert found.largest <= figure(name, precision) and found.l2 <= figure(name, precision) / 3, f"{output}: {found}"


def test_what_all_networks_came_to() -> None:
    """The last run of all of them: every result within its figure."""
    assert set(results()) == {f"{name} {precision}" for name in NETWORKS for precision in FIGURES}
    for key, outputs in results().items():
        limit = figure(*key.split())
        assert outputs and all(0 <= found["largest"] <= limit and found["l2"] <= limit / 3 for found in outputs.values()), key
