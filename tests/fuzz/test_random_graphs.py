"""Random graphs and one network of each kind, compiled for this machine: the file computes what the references say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.ir.expr import Module
from aotc.ops.interpret import interpret
from tests.passes.helpers import random_inputs
from tests.passes.networks import NETWORKS, random_graph, random_images


def check(module: Module, path: Path) -> None:
    aotc.compile(module, output=str(path))
    sizes = {name: 3 + i for i, name in enumerate(module.symbols)}
    inputs = random_inputs(module.main, sizes)
    found = aotc.load(str(path)).run({param.name: array for param, array in zip(module.main.params, inputs, strict=True)})
    assert list(found) == list(module.output_names["main"])
    for name, expected in zip(found, interpret(module.main, inputs), strict=True):
        actual = found[name]
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
        scale = max(float(np.abs(expected.astype("float64")).max(initial=0)), 1e-6)
        assert float(np.abs(actual.astype("float64") - expected.astype("float64")).max(initial=0)) <= 1e-4 * scale, name


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, tmp_path: Path) -> None:
    check(NETWORKS[name](), tmp_path / "model.so")


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    check(random_graph(seed), tmp_path / "model.so")


@pytest.mark.parametrize("seed", range(6))
def test_random_images(seed: int, tmp_path: Path) -> None:
    check(random_images(seed), tmp_path / "model.so")
