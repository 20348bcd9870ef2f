"""Heavy kernels that write over an operand of what follows them: rows that do not divide into tiles are the hard case."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.expr import Call, Var
from aotc.lowering.kernel import lower_function
from tests.lowering.harness import Runner, function_of, var
from tests.lowering.test_conv import agrees, blocked, blocked_weights, expected

RNG = np.random.default_rng(0)


def over_the_last(call: Call, params: list[Var], arrays: list[np.ndarray]) -> np.ndarray:
    """The result written over the last parameter."""
    function = function_of(call, *params)
    runner = Runner(function, lower_function(function, targets.get("host"), in_place=len(params) - 1))
    memory = runner.memory(arrays, {})
    memory["output"][0][...] = arrays[-1]
    for kernel in runner.lowered.kernels:
        assert ("input", len(params) - 1) not in kernel.operands
        runner.call(kernel, memory, {}, 0, int(kernel.tasks))  # type: ignore[arg-type]
    return memory["output"][0]


@pytest.mark.parametrize(("size", "kernel"), [((5, 13), 3), ((7, 7), 3), ((9, 11), 1)])
def test_blocked_conv(size: tuple[int, int], kernel: int) -> None:
    x, w = RNG.standard_normal((1, 8, *size), np.float32), RNG.standard_normal((16, 8, kernel, kernel), np.float32)
    other = RNG.standard_normal((1, 2, *size, 8), np.float32)
    arrays = [blocked(x, 8), blocked_weights(w, 8, 8), other]
    params = [var(name, "float32", *array.shape) for name, array in zip("xwr", arrays, strict=True)]
    padding = (kernel // 2,) * 4
    conv = ops.conv(params[0], params[1], padding=padding, channel_block=8, out_channels=16)
    result = over_the_last(ops.add(conv, params[2]), params, arrays)
    agrees(result, blocked(expected(x, w, (1, 1), padding, (1, 1)), 8) + other)


def test_plain_conv() -> None:
    x, w = RNG.standard_normal((1, 3, 6, 61), np.float32), RNG.standard_normal((5, 3, 3, 3), np.float32)
    arrays = [x, w, RNG.standard_normal((1, 5, 6, 61), np.float32)]
    params = [var(name, "float32", *array.shape) for name, array in zip("xwr", arrays, strict=True)]
    result = over_the_last(ops.add(ops.conv(params[0], params[1], padding=(1, 1, 1, 1)), params[2]), params, arrays)
    agrees(result, expected(x, w, (1, 1), (1, 1, 1, 1), (1, 1)) + arrays[2])


@pytest.mark.parametrize(("rows", "columns"), [(13, 16), (7, 21), (205, 9)])
def test_matmul(rows: int, columns: int) -> None:
    arrays = [RNG.standard_normal(shape, np.float32) for shape in ((rows, 12), (12, columns), (rows, columns))]
    params = [var(name, "float32", *array.shape) for name, array in zip("abr", arrays, strict=True)]
    result = over_the_last(ops.add(ops.matmul(params[0], params[1]), params[2]), params, arrays)
    agrees(result, arrays[0].astype(np.float64) @ arrays[1] + arrays[2])


def test_a_product_in_parts_of_its_depth() -> None:
    """The kernel writes unfinished sums to scratch and the result over the operand."""
    x, w = RNG.standard_normal((45, 6000), np.float32), RNG.standard_normal((40, 6000), np.float32)
    other = RNG.standard_normal((45, 40), np.float32)
    packed = np.zeros((48, 6000), np.float32)
    packed[:40] = w
    arrays = [x, np.ascontiguousarray(packed.reshape(3, 16, 6000).transpose(0, 2, 1)), other]
    params = [var(name, "float32", *array.shape) for name, array in zip("xwr", arrays, strict=True)]
    result = over_the_last(ops.add(ops.packed_dense(params[0], params[1], units=40), params[2]), params, arrays)
    reference = x.astype(np.float64) @ w.T + other
    assert np.abs(result - reference).max() <= 1e-5 * np.abs(reference).max()
