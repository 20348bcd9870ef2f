"""A handful of the table's networks, generation with a cache. All of it: `python -m tests.models --run all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import generation, results
from tests.models.catalogue import cases, rows
from tests.models.measure import measure

HANDFUL = [
    ("torchvision/squeezenet1_1", "torch"), ("transformers/bert", "onnx"), ("transformers/qwen2", "torch"), ("transformers/whisper-decoder", "torch"),
    ("transformers/vit", "torch"), ("transformers/resnet", "torch"),
]  # fmt: skip


@pytest.mark.parametrize("name,via", HANDFUL)
def test_network(name: str, via: str) -> None:
    assert measure(cases()[name], via)["batches"] == [1, 3]


@pytest.mark.parametrize("name", generation.NAMES)
def test_generation_with_the_cache_in_the_session(name: str, tmp_path: Path) -> None:
    model = generation.network(name)
    want = generation.by_torch(model)
    assert len(set(want)) > 10
    generation.build_with_states(model, tmp_path / "model.so")
    assert generation.with_states(tmp_path / "model.so") == want


def test_generation_with_the_cache_passed_from_run_to_run(tmp_path: Path) -> None:
    model = generation.network("gpt2")
    generation.build_with_passed_cache(model, tmp_path / "model.so")
    assert generation.with_passed_cache(tmp_path / "model.so", model) == generation.by_torch(model)


def test_the_page_is_made_of_the_results() -> None:
    assert results.PAGE.read_text() == results.page(results.load(), rows()), "run python -m tests.models --page"


def test_every_network_agrees() -> None:
    found = results.load()
    missing = [each for each in rows() if "largest" not in found.get(results.key(*each), {})]
    assert not missing, "run python -m tests.models --run all --failed"
