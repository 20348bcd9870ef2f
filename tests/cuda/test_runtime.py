"""Files for a GPU run as ONNX Runtime does, through the unchanged runtime and the software driver."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import aotc
from aotc.compiler import BuildReport
from tests.agreement import assert_agrees
from tests.cuda.networks import NETWORKS
from tests.cuda.software import host_with_gpu, software_gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda")


@cache
def built(name: str, folder: Path) -> BuildReport:
    return aotc.compile(NETWORKS[name][0](), target=host_with_gpu(), output=folder / f"{name}.so", device="cuda")


@cache
def expected(name: str) -> list[list[np.ndarray]]:
    session = onnxruntime.InferenceSession(NETWORKS[name][0]().SerializeToString())
    return [session.run(None, inputs) for inputs in NETWORKS[name][1]]


@pytest.mark.parametrize("device", ["integrated", "discrete"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, device: str, folder: Path) -> None:
    report = built(name, folder)
    with software_gpu(report.cuda_kernels, folder / "kernels", device=device):
        model = aotc.load(report.output)
        for turn in range(3):  # the second one is captured, the third one is a graph
            for inputs, wanted in zip(NETWORKS[name][1], expected(name), strict=True):
                for got, right in zip(model.run(inputs).values(), wanted, strict=True):
                    assert_agrees(got, right, 1e-4, f"{name}, turn {turn}")
