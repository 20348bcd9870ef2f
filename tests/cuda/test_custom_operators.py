"""Operators of the user's own on a GPU: the example of the documentation, and what goes wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.errors import BuildError, InvalidOption
from aotc.ops.custom import CustomOperator, load_operators
from tests.agreement import assert_agrees
from tests.cuda.software import host_with_gpu, software_gpu
from tests.e2e.test_custom_operators import EXAMPLE, both, expected, noise


def example() -> list[CustomOperator]:
    return load_operators(EXAMPLE)


def gpu_alone() -> list[CustomOperator]:
    return [dataclasses.replace(each, source=None) if each.cuda else each for each in example()]


def changed(tmp_path: Path, before: str, after: str) -> list[CustomOperator]:
    """The example with another text in its CUDA file."""
    text = EXAMPLE.with_name("row_energy.cu").read_text()
    assert before in text
    (tmp_path / "changed.cu").write_text(text.replace(before, after))
    return [dataclasses.replace(each, cuda=tmp_path / "changed.cu") if each.cuda else each for each in example()]


@pytest.mark.parametrize("operators", [example, gpu_alone])
def test_the_example_agrees(operators: object, tmp_path: Path) -> None:
    model, weights = both()
    report = aotc.compile(model, host_with_gpu(), tmp_path / "m.so", device="cuda", operators=operators())  # type: ignore[operator]
    assert all(placed.on_device for placed in report.placement.values()) and len(report.cuda_kernels) == 2
    with software_gpu(report.cuda_kernels, tmp_path / "kernels"):
        loaded = aotc.load(report.output)
        for count in (1, 7, 33):
            x = noise(count, 24)
            assert_agrees(loaded.run({"x": x})["y"], expected(x, weights), 1e-5)


def test_files_beside_it_are_included(tmp_path: Path) -> None:
    (tmp_path / "sums.h").write_text("#pragma once\n#define ONE 1\n")
    model, _ = both(3)
    own = changed(tmp_path, '#include "aotc_operator.h"', '#include "aotc_operator.h"\n#include <math.h>\n#include "sums.h"')
    text = (tmp_path / "changed.cu").read_text()
    (tmp_path / "changed.cu").write_text(text.replace("float sum = 0", "float sum = ONE"))
    report = aotc.compile(model, host_with_gpu(), tmp_path / "m.so", device="cuda", operators=own)
    with software_gpu(report.cuda_kernels, tmp_path / "kernels"):
        x = noise(3, 24)
        assert np.all(aotc.load(report.output).run({"x": x})["y"] >= 1)


def test_faults_name_file_and_node(tmp_path: Path) -> None:
    model, _ = both(3)
    with pytest.raises(BuildError, match=r"(?s)energy: the operator example::row_energy in .*changed.cu: NVRTC.*undeclared_name"):
        aotc.compile(
            model, host_with_gpu(), tmp_path / "m.so", device="cuda", operators=changed(tmp_path, "float sum = 0", "float sum = undeclared_name")
        )  # fmt: skip


def test_written_for_the_gpu_alone(tmp_path: Path) -> None:
    model, _ = both(3)
    with pytest.raises(BuildError, match=r"energy: the operator example::row_energy is written for the GPU alone"):
        aotc.compile(model, output=tmp_path / "m.so", operators=gpu_alone())
    with pytest.raises(InvalidOption, match=r"2000 threads; a block has 1 to 1024"):
        dataclasses.replace(example()[1], threads=2000)
