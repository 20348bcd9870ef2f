"""The Python loader on models with several entry points, states, outputs of unknown size and types that NumPy lacks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import aotc
from aotc.ir.types import SMALL, storage_dtype
from aotc.lowering.plan import EntryPoint, ExecutionPlan, Step, StepKind, Storage, TensorSpec, Value
from aotc.runtime import aotc_runtime
from aotc.runtime.aotc_runtime import Error
from tests.packaging.sample import HOST, build_sample
from tests.packaging.sample import kernel_object as compile_kernel
from tests.runtime.build import HERE
from tests.runtime.models import PADDED_WEIGHTS
from tests.runtime.models_control import collatz, endless, positive, states


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_kernel(HOST, tmp_path_factory.mktemp("kernels"), (HERE / "kernels.c").read_text())


def build(folder: Path, plan: ExecutionPlan, kernels: bytes) -> Path:
    return build_sample(folder / "model.so", the_plan=plan, weights=PADDED_WEIGHTS, kernel=kernels).path


@pytest.mark.parametrize("threads", [1, 2])
def test_entry_points_share_states(tmp_path: Path, kernels: bytes, threads: int) -> None:
    model = aotc.load(build(tmp_path, states(), kernels))
    first = np.arange(8, dtype=np.float32) - 3
    assert model.entry_points == ("add", "read") and [(s.name, s.shape) for s in model.states] == [("total", (8,)), ("turn", ())]
    assert [info.name for info in model.signatures["read"].outputs] == ["sum", "turns"] and not model.signatures["read"].inputs
    session, other = model.session(num_threads=threads), model.session(num_threads=threads)
    for turn in range(1, 6):
        np.testing.assert_array_equal(session.run({"x": 0.5})["sum"], first + 0.5 * turn)
        read = session.run({}, entry_point="read")
        np.testing.assert_array_equal(read["sum"], first + 0.5 * turn)
        assert read["turns"] == turn
    np.testing.assert_array_equal(other.run({}, entry_point="read")["sum"], first)  # states of its own
    session.reset()
    np.testing.assert_array_equal(session.run({}, entry_point="read")["sum"], first)
    state = session.state("total")
    state += 7
    np.testing.assert_array_equal(session.run({"x": 1.0})["sum"], first + 8)
    assert session.memory().states >= 36 and session.memory("read").states >= 36
    with pytest.raises(Error, match=r"no state 'sum', only 'total', 'turn'"):
        session.state("sum")
    with pytest.raises(Error, match=r"no entry point 'write', only 'add', 'read'"):
        session.run({}, entry_point="write")
    del session, other, model
    gc.collect()
    np.testing.assert_array_equal(state, first + 8)  # the view keeps its session


def test_the_models_own_session_has_states(tmp_path: Path, kernels: bytes) -> None:
    model = aotc.load(build(tmp_path, states(), kernels))
    model.run({"x": 2.0})
    assert model.run({}, entry_point="read")["turns"] == 1
    model.reset()
    assert model.run({}, entry_point="read")["turns"] == 0


def test_outputs_whose_size_the_data_tell(tmp_path: Path, kernels: bytes) -> None:
    session = aotc.load(build(tmp_path, positive(), kernels)).session(num_threads=1)
    random = np.random.default_rng(1)
    kept = []
    for n in (5, 0, 12, 1, 20):
        x = random.standard_normal(n, np.float32)
        found = x[x > 0]
        outputs = session.run({"x": x, "like": np.zeros(found.size, bool)})
        kept.append((outputs, found))
    for outputs, found in kept:  # copies: later runs leave them
        np.testing.assert_array_equal(outputs["found"], found)
        np.testing.assert_array_equal(outputs["halves"], found[:, None] / 2)
    assert session.outputs[0].shape == ("count",)
    with pytest.raises(Error, match=r"'found' has the shape \[count\], which is known only after a run"):
        session.run({"x": np.ones(3, "f4"), "like": np.zeros(3, bool)}, out={"found": np.zeros(3, "f4")})
    with pytest.raises(Error, match=r"step 'like' \(same size\): two sizes should be equal and are 3 and 2"):
        session.run({"x": np.ones(3, "f4"), "like": np.zeros(2, bool)})
    view = session.run({"x": np.ones(3, "f4"), "like": np.zeros(3, bool)}, copy=False)["found"]
    np.testing.assert_array_equal(view, [1, 1, 1])


def test_profile_of_a_loop(tmp_path: Path, kernels: bytes) -> None:
    session = aotc.load(build(tmp_path, collatz(), kernels)).session(num_threads=1, profile=True)
    session.run({"n": 6})
    steps = session.steps()
    assert [step.runs for step in steps] == [1, 1, 9, 9, 8, 8, 8, 8, 8, 1, 1, 1]
    assert [step.kind for step in steps[:4]] == ["copy", "shape", "kernel", "branch"] and steps[3].target == 9


def test_a_run_is_cancelled(tmp_path: Path, kernels: bytes) -> None:
    session = aotc.load(build(tmp_path, endless(), kernels)).session(num_threads=1)
    timer = threading.Timer(0.05, session.cancel)
    timer.start()
    with pytest.raises(Error, match="cancelled in the loop") as caught:
        session.run({"x": 1.0})
    timer.join()
    assert caught.value.status == 9


def copies(dtype: str) -> ExecutionPlan:
    values = (Value(dtype, (6,), Storage.INPUT), Value(dtype, (6,), Storage.OUTPUT))
    spec = TensorSpec("x", dtype, (6,))
    steps = (Step(StepKind.COPY, (0, 1), 1),)
    return ExecutionPlan((EntryPoint("main", (spec,), (TensorSpec("y", dtype, (6,)),), values, (), steps, 0, 0),), ())


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None  # as where it is not installed
sys.path[:0] = [sys.argv[1]]
import numpy as np, aotc_runtime
model = aotc_runtime.load(sys.argv[2], num_threads=1)
x = np.arange(6).astype(model.inputs[0].dtype)
print(model.inputs[0].type_name, model.inputs[0].dtype, model.run({"x": x})["y"].tolist())
"""


@pytest.mark.parametrize("dtype", SMALL)
def test_types_that_numpy_lacks(tmp_path: Path, kernels: bytes, dtype: str) -> None:
    path = build(tmp_path, copies(dtype), kernels)
    model = aotc.load(path)
    x = np.array([1, 1, 2, 1, 0.5, 1]).astype(getattr(ml_dtypes, dtype))
    found = model.run({"x": x})["y"]
    assert found.dtype == x.dtype and found.tobytes() == x.tobytes() and model.inputs[0].type_name == dtype
    if dtype not in ("bfloat16", "int4"):
        return
    command = [sys.executable, "-c", WITHOUT, str(Path(aotc_runtime.__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 2) == [dtype, storage_dtype(dtype), "[0, 1, 2, 3, 4, 5]\n"]
