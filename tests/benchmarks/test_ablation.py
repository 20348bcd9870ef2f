"""Builds with something left out: each computes the same, and leaves out what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import aotc
from aotc import ops
from aotc.ir.expr import Constant, Function, Module, Var
from aotc.ir.types import tensor
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from aotc.targets import get
from benchmarks import ablation
from benchmarks.ablation import EVERYTHING, VARIANTS

SHAPE = (1, 8, 12, 12)


def _network() -> tuple[Module, np.ndarray, np.ndarray]:
    """Two convolutions with a residual sum, an input and torch's result."""
    random = np.random.default_rng(0)
    array = random.standard_normal(SHAPE, dtype=np.float32)
    weights = [random.standard_normal((8, 8, 3, 3), dtype=np.float32) / 8 for _ in range(2)]
    x = Var("x", tensor("float32", *SHAPE))
    hidden = ops.relu(ops.conv(x, Constant(weights[0]), padding=(1, 1, 1, 1)))
    result = ops.relu(ops.add(ops.conv(hidden, Constant(weights[1]), padding=(1, 1, 1, 1)), hidden))
    value = torch.conv2d(torch.from_numpy(array), torch.from_numpy(weights[0]), padding=1).relu()
    expected = (torch.conv2d(value, torch.from_numpy(weights[1]), padding=1) + value).relu()
    return Module({"main": Function((x,), result, "main")}, {"main": ("y",)}), array, expected.numpy()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_each_variant_computes_the_same(variant: ablation.Variant, tmp_path: Path) -> None:
    module, x, expected = _network()
    ablation.build(module, variant, tmp_path / "model.so", get("host"), jobs=0)
    np.testing.assert_allclose(aotc.load(tmp_path / "model.so").run({"x": x})["y"], expected, atol=1e-4)


def test_variants_leave_out_what_they_say(tmp_path: Path) -> None:
    module = _network()[0]
    entries = {}
    for variant in VARIANTS:
        ablation.build(module, variant, tmp_path / "model.so", get("host"), jobs=0)
        entries[variant.name] = read_plan(read_packaged(str(tmp_path / "model.so")).plan).entry_points[0]
    whole, unfused, plain = (entries[name] for name in (EVERYTHING.name, "no fusion", "plain layout"))
    assert len(unfused.steps) > len(whole.steps)
    assert not any("layout_transform" in step.label for step in plain.steps)
    unplanned = entries["memory not planned"]
    assert unplanned.arena_size == sum(-(-buffer.size // 64) * 64 for buffer in unplanned.buffers)  # type: ignore[operator]


def test_measured_ratios_are_to_everything(tmp_path: Path) -> None:
    module, x, expected = _network()
    files = {variant.name: tmp_path / f"{number}.so" for number, variant in enumerate(VARIANTS[:2])}
    for variant in VARIANTS[:2]:
        ablation.build(module, variant, files[variant.name], get("host"), jobs=0)
    found = ablation.measure(files, x, rounds=2, seconds=0.001)
    assert found[EVERYTHING.name].slowdown.median == 1
    assert max(ablation.differences(files, x, expected).values()) < 1e-5
    text = "\n".join(ablation.section({"tiny": found}))
    assert "| no fusion |" in text
    assert "| everything |" in text
