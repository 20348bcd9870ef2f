"""Kernels with TVM's own headers, as its dlight schedules them, run right: halves, bfloat16, shuffles, wmma, all silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

from tests.cuda import host_code
from tests.cuda.cases import Case
from tests.cuda.dlight_kernels import case
from tests.cuda.launcher import Device


def _tensor(dtype: str = "float32") -> Any:
    return te.placeholder((37, 1000), dtype, name="x")


def _matmul(dtype: str) -> list[Any]:
    a, b, k = te.placeholder((1, 128, 128), dtype, name="a"), te.placeholder((128, 128), dtype, name="b"), te.reduce_axis((0, 128), "k")
    return [a, b, te.compute((1, 128, 128), lambda n, i, j: te.sum(a[n, i, k] * b[j, k], axis=k), name="c")]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


X, HALF, BFLOAT = _tensor(), _tensor("float16"), _tensor("bfloat16")
KERNELS: dict[str, Callable[[], Case]] = {
    "softmax": lambda: case("softmax", [X, topi.nn.softmax(X)], _softmax),
    "sum": lambda: case("sum", [X, topi.sum(X, axis=1)], lambda x: x.sum(1)),
    "exp of tanh of halves": lambda: case("half", [HALF, topi.exp(topi.tanh(HALF))], lambda x: np.exp(np.tanh(x)), tolerance=1e-3),
    "exp of bfloat16": lambda: case("bfloat", [BFLOAT, topi.exp(topi.add(BFLOAT, BFLOAT))], lambda x: np.exp(2 * x), tolerance=1e-2),
    "matmul": lambda: case("matmul", _matmul("float32"), lambda a, b: a @ b.T),
    "matmul of halves on tensor cores": lambda: case("matmul16", _matmul("float16"), lambda a, b: a @ b.T, tolerance=1e-2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(tmp_path))
    kernel = KERNELS[name]()
    for order in ("forward", "reverse", "random:1"):
        monkeypatch.setenv("AOTC_SOFTWARE_CUDA_ORDER", order)
        with Device(host_code.driver()) as device:
            assert not kernel.wrong(kernel.run(device, tmp_path))
