"""Products of bytes by packed weights, with forbidden memory around all arrays, exact against numpy in 64 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.lowering.kernel import lower_function
from aotc.passes.byte_layout import matmul_weight
from tests.lowering.harness import Runner, function_of, var

HOST = targets.get("host")
SHAPES = [((1, 64), 48), ((7, 37), 19), ((2, 9, 16), 33), ((40, 3), 16), ((130,), 70), ((65, 130), 32), ((1, 1), 1)]


@pytest.mark.parametrize("dots", [True, False])
@pytest.mark.parametrize(("shape", "columns"), SHAPES)
def test_exact(shape: tuple[int, ...], columns: int, dots: bool) -> None:
    target = HOST if dots else replace(HOST, features=tuple(f for f in HOST.features if "vnni" not in f))
    _check(shape, shape, columns, target)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_rows_known_only_at_run_time(rows: int) -> None:
    _check((rows, 36), (symbol("n", 1), 36), 24, HOST, {"n": rows})


def _check(shape: tuple[int, ...], dims: tuple, columns: int, target: targets.Target, symbols: dict[str, int] | None = None) -> None:  # type: ignore[type-arg]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, shape).astype("uint8")
    x[rng.random(shape) < 0.3] = 255
    w = rng.integers(-128, 128, (shape[-1], columns)).astype("int8")
    bias = rng.integers(-1000, 1000, columns).astype("int32")
    packed = matmul_weight(w, 4 if target.adds_byte_products else 2)
    params = [var("x", "uint8", *dims), var("w", "int8", *packed.shape), var("b", "int32", columns)]
    function = function_of(ops.add(ops.byte_matmul(*params[:2], columns=columns), params[2]), *params)
    (result,) = Runner(function, lower_function(function, target))(x, packed, bias, symbols=symbols)
    assert np.array_equal(result, x.astype("int64") @ w.astype("int64") + bias)
