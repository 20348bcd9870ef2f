"""A third of ONNX's node tests, and the page that says which pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aotc.onnx_backend as backend
from aotc.errors import InvalidOption
from tests.onnx import results
from tests.onnx.pool import reason_of
from tools import coverage

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["1/6", "4/6"])  # together a third of all tests, cut in two for two processes
def test_what_passed_before_passes(shard: str) -> None:
    command = [sys.executable, "-m", "tests.onnx", "run", "--check", "--shard", shard]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64", "cuda"])
def test_some_pass_on_other_machines(target: str) -> None:
    """As Arm code, and on the software GPU: the first of those that the committed runs drew."""
    command = [sys.executable, "-m", "tests.onnx", "run", "--check", "--target", target, "--draw", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize(("target", "least"), [("aarch64", 200), ("cuda", 150)])
def test_as_many_as_were_drawn_pass_on_other_machines(target: str, least: int) -> None:
    found = results.read(target).values()
    assert len(found) >= least and all(result.outcome == results.PASS for result in found)


def test_enough_pass() -> None:
    found = list(results.read("host").values())
    passed, failed = (sum(result.outcome == outcome for result in found) for outcome in (results.PASS, results.FAIL))
    assert len(found) == 1884
    assert passed >= 0.97 * (passed + failed)


def test_the_page_is_up_to_date() -> None:
    assert coverage.PAGE.read_text() == coverage.page(), "run python -m tools.coverage"


def _scaled_sum() -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y", "z")]
    nodes = [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("Mul", ["s", "s"], ["z"])]
    return helper.make_model(
        helper.make_graph(nodes, "g", values[:2], values[2:]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


def test_the_backend_runs_models_and_nodes() -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2, np.float32)
    (z,) = backend.run_model(_scaled_sum(), [x, y])
    np.testing.assert_array_equal(z, (x + y) ** 2)
    (again,) = backend.prepare(_scaled_sum(), "CPU").run({"y": y, "x": x})
    np.testing.assert_array_equal(again, z)
    (half,) = backend.run_node(helper.make_node("Mul", ["a", "b"], ["c"]), [x.astype(np.float16), np.float16(0.5)])
    np.testing.assert_array_equal(half, x.astype(np.float16) / 2)


def test_what_the_backend_cannot_do_is_said() -> None:
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA") and not backend.supports_device("TPU")
    unknown = helper.make_node("NoSuchOperator", ["x", "y"], ["z"])
    model = _scaled_sum()
    assert backend.is_compatible(model)
    del model.graph.node[:]
    model.graph.node.append(unknown)
    assert not backend.is_compatible(model)
    with pytest.raises(InvalidOption, match=r"the model has 2 inputs \(x, y\), got 1 arrays"):
        backend.run_model(_scaled_sum(), [np.zeros((2, 3), np.float32)])
    with pytest.raises(InvalidOption, match="the device 'CUDA' is not supported; expected 'CPU'"):
        backend.prepare(_scaled_sum(), "CUDA")


def test_reasons_are_one_line() -> None:
    with pytest.raises(AssertionError) as caught:
        np.testing.assert_allclose(np.zeros(3), np.ones(3))
    assert "Mismatched elements: 3 / 3" in reason_of(caught.value) and "\n" not in reason_of(caught.value)
