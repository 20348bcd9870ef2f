"""Winograd convolutions against torch: odd shapes, paddings, epilogues, ranges of tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.ir.expr import Expr, Var
from aotc.lowering.kernel import lower_function
from aotc.lowering.ops.winograd import positions, transform_input, transform_output
from aotc.ops.winograd import INPUT_TRANSFORMS, OUTPUT_TRANSFORMS, WEIGHT_TRANSFORMS, transform_weight
from tests.lowering.harness import Runner, function_of, var
from tests.lowering.test_conv import agrees, blocked, plain

RNG = np.random.default_rng(0)

# input channels, output channels, block, size, padding (begins, ends)
CASES = {
    "odd": (16, 24, 8, (7, 9), (1, 1, 1, 1)),
    "asymmetric padding": (8, 16, 8, (6, 5), (0, 2, 1, 0)),
    "full padding": (8, 8, 8, (5, 8), (2, 2, 2, 2)),
    "one pixel": (8, 8, 8, (1, 1), (1, 1, 1, 1)),
    "filled channels": (16, 13, 8, (10, 10), (1, 1, 1, 1)),
    "block of 4": (8, 12, 4, (8, 9), (1, 1, 1, 1)),
    "block of 16": (16, 32, 16, (8, 9), (1, 1, 1, 1)),
    "many tiles": (8, 8, 8, (57, 62), (1, 1, 1, 1)),
    "many channels": (256, 64, 8, (13, 13), (1, 1, 1, 1)),
    "one output left": (8, 16, 8, (9, 5), (1, 1, 1, 1)),
    "two outputs left": (16, 16, 8, (14, 10), (1, 1, 1, 1)),
}


def expected(x: np.ndarray, w: np.ndarray, padding: tuple[int, ...]) -> np.ndarray:
    top, left, bottom, right = padding
    image = torch.nn.functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    return torch.nn.functional.conv2d(image, torch.from_numpy(w).double()).numpy()


def conv(
    n: object, c: int, o: int, block: int, size: tuple[int, int], padding: tuple[int, ...], tile: int, panel: int = 1
) -> tuple[Expr, Var, Var]:
    data = var("x", "float32", n, c // block, *size, block)  # type: ignore[arg-type]
    weight = var("u", "float32", -(-o // (panel * block)), (tile + 2) ** 2, c, panel * block)
    return ops.winograd_conv(data, weight, tile=tile, padding=padding, channel_block=block, out_channels=o), data, weight


@pytest.mark.parametrize(("name", "tile"), [*((name, 4) for name in CASES), *((name, 2) for name in ("odd", "full padding", "many tiles"))])
def test_shapes(name: str, tile: int) -> None:
    c, o, block, size, padding = CASES[name]
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((o, c, 3, 3), np.float32)
    body, data, weight = conv(2, c, o, block, size, padding, tile)
    function = function_of(body, data, weight)
    (result,) = Runner(function, lower_function(function, targets.get("host")))(blocked(x, block), transform_weight(w, tile, block))
    agrees(plain(result)[:, :o], expected(x, w, padding))


@pytest.mark.parametrize(("panel", "block"), [(2, 8), (4, 4)])
def test_panels_of_weights(panel: int, block: int) -> None:
    """The kernel, and the tensor expression under the generic schedule, read weights whose panels hold several blocks."""
    x, w = RNG.standard_normal((1, 16, 11, 7), np.float32), RNG.standard_normal((64, 16, 3, 3), np.float32)
    body, data, weight = conv(1, 16, 64, block, (11, 7), (1, 1, 1, 1), 4, panel)
    arrays, reference = [blocked(x, block), transform_weight(w, 4, panel * block)], expected(x, w, (1, 1, 1, 1))
    function = function_of(body, data, weight)
    agrees(plain(Runner(function, lower_function(function, targets.get("host")))(*arrays)[0]), reference)
    function = function_of(ops.transpose(body, axes=(4, 0, 1, 2, 3)), data, weight)
    agrees(plain(np.moveaxis(Runner(function, lower_function(function, targets.get("host")))(*arrays)[0], 0, -1)), reference)


@pytest.mark.parametrize("size", [(28, 28), (14, 13)])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_any_cores(size: tuple[int, int], cores: int) -> None:
    """However tiles are shared among tasks."""
    x, w = RNG.standard_normal((1, 32, *size), np.float32), RNG.standard_normal((64, 32, 3, 3), np.float32)
    body, data, weight = conv(1, 32, 64, 16, size, (1, 1, 1, 1), 4, 2)
    function = function_of(body, data, weight)
    runner = Runner(function, lower_function(function, replace(targets.get("host"), cores=cores)))
    (result,) = runner(blocked(x, 16), transform_weight(w, 4, 32), workers=cores)
    agrees(plain(result), expected(x, w, (1, 1, 1, 1)))


def test_epilogue_with_any_batch_and_any_ranges() -> None:
    """A bias, a residual, relu; the same bits however the tasks are cut."""
    size, padding, tile = (15, 14), (1, 1, 1, 1), 4
    body, data, weight = conv(symbol("n"), 16, 16, 8, size, padding, tile)
    bias, other = var("bias", "float32", 1, 2, 1, 1, 8), var("other", "float32", symbol("n"), 2, *size, 8)
    function = function_of(ops.relu(ops.add(ops.add(body, bias), other)), data, weight, bias, other)
    x, w = RNG.standard_normal((3, 16, *size), np.float32), RNG.standard_normal((16, 16, 3, 3), np.float32)
    b, r = RNG.standard_normal((1, 2, 1, 1, 8), np.float32), RNG.standard_normal((3, 16, *size), np.float32)
    runner = Runner(function, lower_function(function, targets.get("host")))
    arrays = [blocked(x, 8), transform_weight(w, tile, 8), b, blocked(r, 8)]
    results = [runner(*arrays, symbols={"n": 3}, workers=workers)[0] for workers in (1, 2, 5)]
    agrees(plain(results[0]), np.maximum(expected(x, w, padding) + b.reshape(1, 16, 1, 1) + r, 0))
    assert all(np.array_equal(results[0], result) for result in results[1:])


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("block", [8, 16])
def test_every_core_has_a_task(cores: int, block: int) -> None:
    """Also where all output channels fit the registers at once, so that they are one part."""
    body, data, weight = conv(1, 64, 64, block, (56, 56), (1, 1, 1, 1), 4, 64 // block)
    compiled = lower_function(function_of(body, data, weight), replace(targets.get("host"), cores=cores))
    assert all(kernel.tasks >= cores for kernel in compiled.kernels)


@pytest.mark.parametrize("tile", [2, 4])
def test_formulas_are_the_matrices(tile: int) -> None:
    for formula, matrix in ((transform_input, INPUT_TRANSFORMS[tile]), (transform_output, OUTPUT_TRANSFORMS[tile])):
        np.testing.assert_allclose(np.array(formula(tile, list(np.eye(tile + 2)), tile)), matrix, rtol=1e-15)


@pytest.mark.parametrize(("tile", "outputs"), [(2, 1), (4, 1), (4, 2), (4, 3)])
def test_short_tiles_use_the_weights_of_whole_ones(tile: int, outputs: int) -> None:
    d, w = RNG.standard_normal(tile + 2), RNG.standard_normal(3)
    weights = (WEIGHT_TRANSFORMS[tile] @ w)[list(positions(tile, outputs))]
    found = transform_output(tile, list(weights * transform_input(tile, list(d), outputs)), outputs)
    np.testing.assert_allclose(found, [d[i : i + 3] @ w for i in range(outputs)], rtol=1e-12)
