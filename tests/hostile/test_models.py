"""A share of the mutants of tests.hostile.models."""

from __future__ import annotations

import pytest

from tests.hostile import models


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_share_of_the_mutants(kind: str) -> None:
    verdicts = models.run(kind, list(range(2000, 2060)), 1)
    assert not [f"{seed}: {verdict}" for seed, verdict in verdicts.items() if not verdict.isalpha()]
    assert "refused" in verdicts.values()
