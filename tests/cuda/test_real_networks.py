"""Real networks through the unchanged runtime and the software driver; `python -m tests.cuda networks` does all, with all checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.real_networks import FIGURES, build, measured


@pytest.mark.parametrize(
    ("name", "precision"), [("detector", "fp32"), ("detector", "fp16"), ("minilm", "fp16"), ("ocr_recognition", "fp32"), ("silero", "fp32")]
)
def test_network(name: str, precision: str, tmp_path: Path) -> None:
    report = build(name, precision, tmp_path)
    for output, found in measured(name, precision, report, tmp_path, checked=False).items():
        assert found.largest <= FIGURES[precision] and found.l2 <= FIGURES[precision] / 3, f"{output}: {found}"
