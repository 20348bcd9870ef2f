"""A sixteenth of torch's own samples of its core operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.onnx import results

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_what_passed_before_passes() -> None:
    command = [sys.executable, "-m", "tests.aten", "--check", "--shard", "1/16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_enough_pass() -> None:
    found = [result.outcome for result in results.read("aten").values()]
    assert found.count(results.PASS) >= 0.9 * (found.count(results.PASS) + found.count(results.FAIL))
