"""Compiled matrix products and convolutions through whatever schedule applies, against references and PyTorch in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.ir.dims import symbol
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 1)


def normal(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape)
    return (values * 3).astype(dtype) if dtype.startswith("int") else values.astype(dtype)


def product(op: Any, arrays: list[np.ndarray], terms: int, attrs: dict[str, Any] | None = None, **more: Any) -> Case:
    """A sum of ``terms`` products of size 1: each addition rounds a partial sum, which grows with the root of their number."""
    return Case(op, arrays, attrs or {}, ulp=2, scale=max(terms, 1), **more)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64"])
def test_matmul(dtype: str) -> None:
    shapes = [
        ((3, 5), (5, 4)),
        ((2, 3, 20), (20, 33)),
        ((2, 1, 3, 7), (4, 7, 16)),
        ((5,), (5, 3)),
        ((3, 5), (5,)),
        ((9,), (9,)),
        ((1, 1), (1, 1)),
    ]
    shapes += [((3, 0), (0, 4)), ((0, 3), (3, 4)), ((17, 65), (65, 47))]
    cases = [product(ops.matmul, [normal(dtype, *a), normal(dtype, *b, seed=1)], a[-1]) for a, b in shapes]
    dense = [((3, 5), (4, 5)), ((2, 3, 64), (37, 64)), ((7,), (3, 7)), ((1, 33), (1, 33)), ((19, 48), (64, 48))]
    cases += [product(ops.dense, [normal(dtype, *x), normal(dtype, *w, seed=1)], x[-1]) for x, w in dense]
    for units, block in [(37, 16), (8, 8), (5, 8)]:
        x, packed = normal(dtype, 6, 40), np.zeros((-(-units // block) * block, 40), dtype)
        packed[:units] = normal(dtype, units, 40, seed=1)
        w = np.ascontiguousarray(packed.reshape(-1, block, 40).transpose(0, 2, 1))
        cases.append(product(ops.packed_dense, [x, w], 40, {"units": units}))
    check(cases)


def test_symbolic_matmul() -> None:
    cases = []
    for b, s in [(1, 1), (2, 7), (3, 40)]:
        q, k, known = normal("float32", b, 4, s, 16), normal("float32", b, 4, 16, s, seed=1), {"b": b, "s": s}
        x, w = normal("float32", b, s, 24), normal("float32", 33, 24, seed=1)
        cases += [
            product(ops.matmul, [q, k], 16, shapes=[(B, 4, S, 16), (B, 4, 16, S)], symbols=known),
            product(ops.matmul, [k, q], s, shapes=[(B, 4, 16, S), (B, 4, S, 16)], symbols=known),
            product(ops.dense, [x, w], 24, shapes=[(B, S, 24), (33, 24)], symbols=known),
        ]
    check(cases)


def _conv_by_torch(attrs: dict[str, Any], transposed: bool = False) -> Any:
    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        n = x.ndim - 2
        begins, ends = attrs["padding"][:n], attrs["padding"][n:]
        wide, weight = torch.from_numpy(x).double(), torch.from_numpy(w).double()
        if not transposed:
            widths = [w for pair in zip(reversed(begins), reversed(ends), strict=True) for w in pair]
            function = [F.conv1d, F.conv2d, F.conv3d][n - 1]
            result = function(F.pad(wide, widths), weight, stride=attrs["strides"], dilation=attrs["dilation"], groups=attrs["groups"])
        else:
            function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][n - 1]
            result = function(
                wide, weight, stride=attrs["strides"], padding=begins, output_padding=attrs["output_padding"],
                groups=attrs["groups"], dilation=attrs["dilation"],
            )  # fmt: skip
        return result.numpy().astype(x.dtype)

    return run


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {"strides": (2,), "padding": (1, 0)}),
    ((1, 4, 8, 9), (6, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 4, 8, 9), (6, 2, 3, 2), {"padding": (0, 1, 2, 0), "groups": 2, "strides": (2, 1)}),
    ((1, 5, 9, 9), (5, 1, 3, 3), {"padding": (2, 2, 2, 2), "groups": 5, "dilation": (2, 2)}),
    ((1, 3, 7, 7), (8, 3, 1, 1), {}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"padding": (1, 0, 1, 0, 1, 1), "strides": (1, 2, 1)}),
    ((2, 1, 4, 20), (1, 1, 3, 1), {}),  # one channel: other compilers crash here
    ((1, 1, 3, 10), (1, 1, 1, 2), {}),
    ((0, 3, 7, 7), (8, 3, 3, 3), {}),
    ((1, 16, 14, 14), (32, 16, 3, 3), {"padding": (1, 1, 1, 1)}),
]


def _full(attrs: dict[str, Any], n: int) -> dict[str, Any]:
    return {"strides": (1,) * n, "padding": (0,) * 2 * n, "dilation": (1,) * n, "groups": 1, **attrs}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_conv(dtype: str) -> None:
    cases = []
    for x, w, attrs in CONVS:
        whole = _full(attrs, len(x) - 2)
        arrays = [normal(dtype, *x), normal(dtype, *w, seed=1)]
        cases.append(product(ops.conv, arrays, math.prod(w[1:]), whole, expected=_conv_by_torch(whole)))
    check(cases)


def test_symbolic_conv() -> None:
    cases = []
    for b, s in [(1, 7), (2, 16)]:
        attrs = _full({"padding": (1, 1, 1, 1), "strides": (2, 2)}, 2)
        arrays, known = [normal("float32", b, 3, s, 9), normal("float32", 5, 3, 3, 3, seed=1)], {"b": b, "s": s}
        cases.append(product(ops.conv, arrays, 27, attrs, shapes=[(B, 3, S, 9), (5, 3, 3, 3)], symbols=known))
    check(cases)


def test_blocked_conv() -> None:
    cases = []
    for block, (c, o), padding in itertools.product((4, 8), ((8, 8), (16, 24), (5, 7)), ((0, 0, 0, 0), (1, 0, 1, 1))):
        cb, ob = -(-c // block), -(-o // block)
        x, w = normal("float32", 2, cb, 7, 8, block), normal("float32", ob, cb, 3, 3, block, block, seed=1)
        attrs = _full({"padding": padding, "channel_block": block, "out_channels": o}, 2)
        cases.append(product(ops.conv, [x, w], cb * block * 9, attrs))
        attrs = _full({"padding": padding, "channel_block": block, "out_channels": c, "groups": c, "strides": (2, 1)}, 2)
        cases.append(product(ops.conv, [x, normal("float32", cb, 3, 3, block, seed=2)], 9, attrs))
    check(cases)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (3, 4, 3), {"strides": (2,), "padding": (1, 1), "output_padding": (1,)}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 0)}),
    ((1, 4, 5, 6), (4, 2, 2, 2), {"strides": (2, 2), "groups": 2}),
    ((1, 3, 5, 1), (3, 1, 32, 1), {"strides": (16, 1), "padding": (8, 0, 8, 0), "groups": 3}),
    ((1, 2, 4, 4), (2, 3, 3, 3), {"dilation": (2, 2), "strides": (3, 1)}),
    ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), {"strides": (2, 1, 2)}),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_conv_transpose(dtype: str) -> None:
    cases = []
    for x, w, attrs in TRANSPOSED:
        whole = {"output_padding": (0,) * (len(x) - 2), **_full(attrs, len(x) - 2)}
        arrays = [normal(dtype, *x), normal(dtype, *w, seed=1)]
        cases.append(product(ops.conv_transpose, arrays, math.prod(w), whole, expected=_conv_by_torch(whole, True)))
    check(cases)


def test_determinant() -> None:
    """Pivots of zero, permutations, singular matrices; float16 is eliminated in float32."""
    rng = np.random.default_rng(0)
    special = rng.normal(size=(4, 4, 4)).astype("float32")
    special[0, 0, 0] = 0
    special[1] = np.eye(4)[[1, 0, 2, 3]]
    special[2, 3] = special[2, 1]
    cases = [
        Case(ops.determinant, [rng.normal(size=shape).astype("float32")], scale=60) for shape in [(1, 1), (2, 2), (5, 3, 3), (2, 3, 7, 7)]
    ]
    cases += [Case(ops.determinant, [special], scale=8), Case(ops.determinant, [rng.normal(size=(9, 3, 3)).astype("float16")], scale=4)]
    check([*cases, Case(ops.determinant, [rng.normal(size=(9, 5, 5))], scale=60)])
