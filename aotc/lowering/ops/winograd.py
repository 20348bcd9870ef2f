"""Tensor expression of winograd_conv: the transforms as products with small matrices, the sum over channels between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, constant, int_constant
from aotc.lowering.ops.conv import padded
from aotc.ops.winograd import INPUT_TRANSFORMS, OUTPUT_TRANSFORMS

NEAR, FAR = math.sqrt(0.5), math.sqrt(2.0)

STAGES = 5
"""Sums among the stages; the last is the result."""


def positions(tile: int, outputs: int) -> tuple[int, ...]:
    """The points that the first ``outputs`` outputs of a tile need, along one axis."""
    if tile == 2:
        return (0, 1, 2, 3)[: outputs + 2]
    return {4: (0, 1, 2, 3, 4, 5), 3: (0, 1, 2, 3, 4), 2: (0, 1, 2, 5), 1: (0, 1, 2)}[outputs]


def transform_input(tile: int, d: Sequence[Any], outputs: int) -> list[Any]:
    """B' d along one axis for the points of ``positions``, for anything that adds and multiplies by floats.

    The last of three outputs does without infinity, since only the fourth depends on it. One or two outputs of a tile of 4 do
    with a transform of their own over points whose weights are the same.
    """
    if tile == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]][: outputs + 2]
    if outputs <= 2:
        even, odd = d[2] * 0.75, d[1] * (0.75 * NEAR)
        return [d[0] - d[2] - d[2], even + odd, even - odd, d[3] - d[1] * 0.5][: outputs + 2]
    near, near_odd = d[2] - d[4] * 0.5, d[1] * NEAR - d[3] * (NEAR / 2)
    far, far_odd = d[4] - d[2] * 0.5, d[3] * FAR - d[1] * NEAR
    first, last = d[0] + d[4] - d[2] * 2.5, d[1] + d[5] - d[3] * 2.5
    return [first, near + near_odd, near - near_odd, far + far_odd, far - far_odd, last][: outputs + 2]


def transform_output(tile: int, m: Sequence[Any], outputs: int) -> list[Any]:
    """The first ``outputs`` of A' m along one axis, for anything that adds and multiplies by floats; ``m`` belongs to the points
    of ``positions``."""
    if tile == 2:
        return [m[0] + m[1] + m[2], *([m[1] - m[2] + m[3]] if outputs == 2 else [])]
    if outputs <= 2:
        return [m[0] + m[1] + m[2], *([m[3] + (m[1] - m[2]) * NEAR] if outputs == 2 else [])]
    near, near_odd, far, far_odd = m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]
    found = [m[0] + near + far * 0.5, (near_odd + far_odd) * NEAR, far + near * 0.5]
    return [*found, m[5] + near_odd * (NEAR / 2) + far_odd * FAR] if outputs == 4 else found


def _winograd(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, u = inputs
    dtype, tile = results[0].dtype, attrs.tile
    wide, m = int_constant(tile + 2), int_constant(tile)
    shape = common.extents(scope, results[0].shape)
    batch, blocks, rows, columns, block = shape
    down, across = (tirx.floordiv(extent + int_constant(tile - 1), m) for extent in (rows, columns))
    spare = [tile - 1 + pad for pad in attrs.padding[2:]]
    data = padded(x, 2, attrs.padding[:2], spare)
    to_input = _matrix(INPUT_TRANSFORMS[tile], dtype, "input_transform")
    to_output = _matrix(OUTPUT_TRANSFORMS[tile], dtype, "output_transform")

    def summed(extents: list[Expr], over: Expr, body: Any, name: str) -> te.Tensor:
        k = te.reduce_axis((0, over), "k")
        return common.compute(extents, lambda *i: te.sum(body(k.var, *i), axis=[k]), name)

    n, c, b = x.shape[0], x.shape[1], x.shape[4]
    rows_done = summed(
        [n, c, down, wide, data.shape[3], b],
        wide,
        lambda k, n, c, t, i, w, v: to_input(i, k) * data(n, c, t * m + k, w, v),
        "winograd_rows",
    )
    transformed = summed(
        [n, c, down, across, wide, wide, b],
        wide,
        lambda k, n, c, t, s, i, j, v: to_input(j, k) * rows_done(n, c, t, i, s * m + k, v),
        "winograd_input",
    )
    panel = u.shape[3]

    def weight(o: Expr, at: Expr, k: Expr, v: Expr) -> Expr:
        lane = o * block + v
        return u(tirx.floordiv(lane, panel), at, k, tirx.floormod(lane, panel))

    products = summed(
        [batch, blocks, down, across, wide, wide, block],
        u.shape[2],
        lambda k, n, o, t, s, i, j, v: transformed(n, tirx.floordiv(k, b), t, s, i, j, tirx.floormod(k, b)) * weight(o, i * wide + j, k, v),
        "winograd_products",
    )
    columns_done = summed(
        [batch, blocks, down, across, m, wide, block],
        wide,
        lambda k, n, o, t, s, i, j, v: to_output(i, k) * products(n, o, t, s, k, j, v),
        "winograd_columns",
    )

    def result(k: Expr, n: Expr, o: Expr, y: Expr, x: Expr, v: Expr) -> Expr:
        at = columns_done(n, o, tirx.floordiv(y, m), tirx.floordiv(x, m), tirx.floormod(y, m), k, v)
        return to_output(tirx.floormod(x, m), k) * at

    return [summed(list(shape), wide, result, "winograd_conv")]


def _matrix(values: np.ndarray, dtype: str, name: str) -> te.Tensor:
    """A matrix of constants."""

    def element(i: Expr, j: Expr) -> Expr:
        value: Expr = constant(0, dtype)
        for (row, column), number in np.ndenumerate(values):
            if number:
                value = tirx.Select(tirx.all(i == int_constant(row), j == int_constant(column)), constant(float(number), dtype), value)
        return value

    return common.compute(list(map(int_constant, values.shape)), element, name)


EXPRESSIONS: dict[str, Expression] = {"winograd_conv": _winograd}
