"""Plain, grouped and transposed convolutions against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.ir.expr import Call, Var
from aotc.lowering.kernel import lower_function
from tests.lowering.harness import Runner, function_of, var
from tests.lowering.test_conv import agrees, expected

RNG = np.random.default_rng(0)

# input channels, output channels, groups, size, kernel, strides, padding (begins, ends), dilation
CASES = {
    "3x3": (5, 7, 1, (9, 21), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "strided, asymmetric": (4, 6, 1, (10, 40), (3, 2), (2, 3), (0, 1, 2, 0), (1, 1)),
    "dilated": (3, 4, 1, (12, 30), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    "grouped": (12, 18, 3, (6, 9), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "depthwise": (5, 5, 5, (8, 50), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "depthwise, two outputs each": (4, 8, 4, (5, 5), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "pointwise": (6, 11, 1, (7, 9), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "grouped pointwise": (12, 6, 3, (3, 2), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "one pixel": (3, 2, 1, (1, 1), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "no padding": (3, 4, 1, (6, 34), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    "1d": (4, 4, 2, (40,), (5,), (2,), (2, 1), (1,)),
    "3d": (2, 3, 1, (4, 5, 6), (3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 1), (1, 1, 1)),
}

# input channels, output channels, groups, size, kernel, strides, padding (begins, ends), output padding, dilation
TRANSPOSED = {
    "2x2": (4, 6, 1, (5, 20), (2, 2), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1)),
    "4x4": (3, 5, 1, (6, 7), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1)),
    "3x3": (3, 2, 1, (6, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (1, 1)),
    "odd output": (3, 2, 1, (6, 7), (3, 3), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1)),
    "stride beyond the kernel": (2, 2, 1, (3, 4), (2, 2), (3, 3), (0, 0, 0, 0), (1, 2), (1, 1)),
    "dilated": (2, 3, 1, (5, 6), (3, 3), (2, 1), (1, 2, 1, 2), (1, 0), (2, 2)),
    "grouped": (6, 4, 2, (5, 33), (3, 3), (1, 2), (1, 0, 1, 0), (0, 0), (1, 1)),
    "asymmetric": (2, 2, 1, (5, 5), (3, 4), (2, 2), (0, 1, 1, 2), (0, 0), (1, 1)),
    "1d": (3, 2, 1, (9,), (4,), (3,), (1, 1), (0,), (1,)),
    "3d": (2, 2, 1, (2, 3, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0, 0, 0, 0), (0, 0, 0), (1, 1, 1)),
}


def compiled(call: Call, *params: Var) -> Runner:
    function = function_of(call, *params)
    return Runner(function, lower_function(function, targets.get("host")))


@pytest.mark.parametrize("name", CASES)
def test_conv(name: str) -> None:
    c, o, groups, size, kernel, strides, padding, dilation = CASES[name]
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((o, c // groups, *kernel), np.float32)
    data, weight = var("x", "float32", *x.shape), var("w", "float32", *w.shape)
    call = ops.conv(data, weight, strides=strides, padding=padding, dilation=dilation, groups=groups)
    (result,) = compiled(call, data, weight)(x, w)
    agrees(result, expected(x, w, strides, padding, dilation, groups))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str) -> None:
    c, o, groups, size, kernel, strides, padding, output_padding, dilation = TRANSPOSED[name]
    n = len(strides)
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((c, o // groups, *kernel), np.float32)
    data, weight = var("x", "float32", *x.shape), var("w", "float32", *w.shape)
    call = ops.conv_transpose(
        data, weight, strides=strides, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups
    )
    (result,) = compiled(call, data, weight)(x, w)
    agrees(result, transposed(x, w, strides, padding, output_padding, dilation, groups, n))


def transposed(
    x: np.ndarray,
    w: np.ndarray,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    n: int,
) -> np.ndarray:
    """torch's, unpadded, zeros added at the end as far as the output padding goes, then the padding cut off."""
    function = (torch.nn.functional.conv_transpose1d, torch.nn.functional.conv_transpose2d, torch.nn.functional.conv_transpose3d)[n - 1]
    full = function(torch.from_numpy(x).double(), torch.from_numpy(w).double(), None, strides, 0, 0, groups, dilation).numpy()
    full = np.pad(full, [(0, 0), (0, 0), *((0, more) for more in output_padding)])
    return full[(..., *(slice(padding[a], full.shape[2 + a] - padding[n + a]) for a in range(n)))]


@pytest.fixture(scope="module")
def any_size() -> dict[str, Runner]:
    x = var("x", "float32", symbol("n", 1), 3, symbol("h", 1), symbol("w", 1))
    w, t = var("w", "float32", 4, 3, 3, 3), var("t", "float32", 3, 4, 2, 2)
    return {
        "conv": compiled(ops.relu(ops.conv(x, w, strides=(1, 2), padding=(1, 1, 1, 1))), x, w),
        "transposed": compiled(ops.conv_transpose(x, t, strides=(2, 2)), x, t),
    }


@pytest.mark.parametrize("size", [(1, 1), (3, 7), (4, 16), (5, 61)])
def test_sizes_known_at_run_time(any_size: dict[str, Runner], size: tuple[int, int]) -> None:
    x, w, t = (RNG.standard_normal(shape, np.float32) for shape in ((2, 3, *size), (4, 3, 3, 3), (3, 4, 2, 2)))
    symbols = {"n": 2, "h": size[0], "w": size[1]}
    (result,) = any_size["conv"](x, w, symbols=symbols)
    agrees(result, np.maximum(expected(x, w, (1, 2), (1, 1, 1, 1), (1, 1)), 0))
    (result,) = any_size["transposed"](x, t, symbols=symbols)
    agrees(result, transposed(x, t, (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 1, 2))
