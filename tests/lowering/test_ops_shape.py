"""Compiled operators that move elements, make them, or pick and place them by index: exact for every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import ops
from aotc.ir.dims import ceildiv, symbol
from aotc.ir.types import DTYPES
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 1)


def values(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape)
    return numbers.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_of_every_dtype(dtype: str) -> None:
    x = values(dtype, 3, 5, 18)
    has_zero = dtype != "float8_e8m0fnu"  # without one there is nothing to pad blocks of channels with
    check(
        [
            Case(ops.reshape, [x], {"shape": (15, 2, 9)}),
            Case(ops.transpose, [x], {"axes": (2, 0, 1)}),
            Case(ops.broadcast_to, [x[:, :1]], {"shape": (2, 3, 5, 18)}),
            Case(ops.tile, [x], {"repeats": (2, 1, 3)}),
            Case(ops.slice_, [x], {"begins": (0, 4, 17), "ends": (3, -1, 0), "steps": (2, -1, -3)}),
            Case(ops.concat, [x, values(dtype, 3, 1, 18, seed=1), values(dtype, 3, 7, 18, seed=2)], {"axis": 1}),
            Case(ops.pad, [x], {"before": (0, 1, 2), "after": (1, 0, 3), "value": 1}),
            *([Case(ops.layout_transform, [x], {"block": 4, "channels": 5})] if has_zero else []),
            Case(ops.trilu, [x], {"upper": False, "k": -1}),
            Case(ops.full, [], {"shape": (3, 5), "value": 1, "dtype": dtype}),
            Case(ops.gather, [x, np.array([[4, 0], [-1, 2]])], {"axis": 1}),
            Case(ops.one_hot, [np.array([1, -1, 9]), values(dtype, 2)], {"depth": 4, "axis": -1}),
        ]
    )


def test_reshapes() -> None:
    shapes = [
        ((2, 3, 4), (24,)),
        ((24,), (2, 1, 3, 4)),
        ((2, 3, 4), (2, 12)),
        ((6, 4), (3, 8)),
        ((1,), ()),
        ((), (1, 1)),
        ((2, 0, 4), (0, 7)),
    ]
    cases: list[Case] = [Case(ops.reshape, [values("float32", *old)], {"shape": new}) for old, new in shapes]
    for b, s in [(1, 1), (3, 7)]:
        x, known = values("float32", b, s, 12), {"b": b, "s": s}
        for shape in [(B * S, 12), (B, S, 3, 4), (B, S * 12), (B, S * 3, 4), (12, B, S), (B * S * 12,)]:
            cases.append(Case(ops.reshape, [x], {"shape": shape}, [(B, S, 12)], known))
    check(cases)


def test_transposes_and_broadcasts() -> None:
    x = values("float32", 2, 3, 4, 37)
    cases: list[Case] = [Case(ops.transpose, [x], {"axes": axes}) for axes in [(0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2), (1, 0, 2, 3)]]
    cases += [Case(ops.transpose, [values("float32", 2, 5, 3)], {"axes": (0, 2, 1)}, [(B, S, 3)], {"b": 2, "s": 5})]
    cases += [Case(ops.broadcast_to, [values("float32", 2, 1, 3)], {"shape": (B, S, 3)}, [(B, 1, 3)], {"b": 2, "s": 5})]
    cases += [Case(ops.tile, [values("float32", 2, 5)], {"repeats": (3, S)}, [(B, S)], {"b": 2, "s": 5})]
    check(cases)


def test_slices() -> None:
    x = values("int32", 9, 20)
    rows: list[Any] = [((0, 0), (9, 20), (1, 1)), ((2, 3), (7, 19), (1, 4)), ((8, 19), (-1, -1), (-1, -2)), ((5, 5), (5, 9), (1, 1))]
    cases = [Case(ops.slice_, [x], {"begins": b, "ends": e, "steps": s}) for b, e, s in rows]
    symbolic = {"begins": (0, S - 2), "ends": (B, S), "steps": (1, 1)}
    cases.append(Case(ops.slice_, [x], symbolic, [(B, S)], {"b": 9, "s": 20}))
    cases.append(Case(ops.slice_, [x], {"begins": (B - 1, 0), "ends": (-1, S), "steps": (-1, 2)}, [(B, S)], {"b": 9, "s": 20}))
    check(cases)


def test_concat() -> None:
    parts = [values("float32", 3, n, 5, seed=n) for n in (2, 1, 0, 40)]
    cases: list[Case] = [Case(ops.concat, parts, {"axis": 1}), Case(ops.concat, [parts[0]], {"axis": 0})]
    cases += [Case(ops.concat, [values("float32", 4, n) for n in (16, 33)], {"axis": -1})]
    # Large enough to become one loop nest for each input.
    cases += [Case(ops.concat, [values("float32", 3, n, 50) for n in (20, 10, 40)], {"axis": 1})]
    cases += [Case(ops.concat, [values("float32", 100, n) for n in (20, 70)], {"axis": 1})]
    cases += [Case(ops.concat, [values("float32", 100, n) for n in (20, 70)], {"axis": 1}, [(100, B), (100, S)], {"b": 20, "s": 70})]
    cases += [Case(ops.concat, [values("float32", n, 4, 3) for n in (2, 9)], {"axis": 0}, [(B, 4, 3), (S, 4, 3)], {"b": 2, "s": 9})]
    cases += [
        Case(ops.concat, [values("float32", 3, n, 4) for n in (2, 9, 1)], {"axis": 1}, [(3, B, 4), (3, S, 4), (3, 1, 4)], {"b": 2, "s": 9})
    ]
    check(cases)


def test_pads() -> None:
    x = values("float32", 2, 3, 6, 19)
    widths: list[Any] = [
        ((0, 0, 2, 1), (0, 0, 0, 3)),
        ((0, 1, 0, 0), (1, 0, 0, 0)),
        ((0, 0, 0, 5), (0, 0, 0, 5)),
        ((0, 2, 5, 0), (0, 0, 0, 18)),
    ]
    cases = [
        Case(ops.pad, [x], {"before": before, "after": after, "mode": mode, "value": 2.5})
        for before, after in widths
        for mode in ("constant", "reflect", "edge", "wrap")
        if mode != "reflect" or all(w < n for pair in (before, after) for w, n in zip(pair, x.shape, strict=True))
    ]
    y = values("float32", 4, 9)
    for mode in ("constant", "reflect", "edge", "wrap"):
        cases.append(Case(ops.pad, [y], {"before": (0, 3), "after": (1, B), "mode": mode}, [(B, S)], {"b": 4, "s": 9}))
    cases.append(Case(ops.pad, [values("float32", 2, 3, 60, 57)], {"before": (0, 0, 1, 2), "after": (0, 0, 3, 1)}))
    cases.append(Case(ops.pad, [values("float32", 40, 90)], {"before": (0, 3), "after": (1, B)}, [(B, S)], {"b": 40, "s": 90}))
    check([*cases, Case(ops.pad, [values("float32", 0, 3)], {"before": (1, 0), "after": (1, 2), "value": 7})])


def test_layouts() -> None:
    cases = []
    for channels in (3, 8, 13, 16):
        for block in (4, 8):
            x = values("float32", 2, channels, 5, 7)
            cases.append(Case(ops.layout_transform, [x], {"block": block, "channels": channels}))
            y = values("float32", 2, int(ceildiv(channels, block)), 5, 7, block)
            cases.append(Case(ops.layout_transform, [y], {"block": block, "channels": channels, "inverse": True}))
    x = values("float32", 2, 13, 5, 7)
    cases.append(Case(ops.layout_transform, [x], {"block": 8, "channels": 13}, [(B, 13, S, 7)], {"b": 2, "s": 5}))
    check(cases)


def test_made_from_nothing() -> None:
    cases: list[Case] = [
        Case(ops.arange, [], {"start": 3, "step": -2, "count": 7, "dtype": "int64"}),
        Case(ops.arange, [], {"start": 0.1, "step": 0.3, "count": 100, "dtype": "float32"}, ulp=0),
        Case(ops.arange, [], {"start": 1.5, "step": 1, "count": 5, "dtype": "int32"}),
        Case(ops.arange, [], {"start": 0, "step": 1, "count": 0, "dtype": "float64"}),
        Case(ops.full, [], {"shape": (), "value": 2.5, "dtype": "float16"}),
        Case(ops.full, [], {"shape": (2, 3), "value": 2**63 + 5, "dtype": "uint64"}),
        Case(ops.full, [], {"shape": (2, 3), "value": float("-inf"), "dtype": "float32"}),
        Case(ops.dims, [], {"values": (3, 2**40, 5)}),
        Case(ops.dims, [], {"values": (3,), "scalar": True}),
        Case(ops.shape_of, [values("float32", 2, 5, 3)]),
        Case(ops.shape_of, [values("float32", 2, 5, 3)], {}, [(B, S, 3)], {"b": 2, "s": 5}, expected=lambda x: np.array(x.shape)),
        Case(ops.trilu, [values("float32", 2, 5, 7)], {"k": 2}),
        Case(ops.trilu, [values("float32", 7, 5)], {"upper": False, "k": -20}),
    ]
    check(cases)


def test_gathers() -> None:
    x, rng = values("float32", 5, 6, 20), np.random.default_rng(1)
    cases = []
    for dtype in ("int32", "int64", "uint8", "int8"):
        low = 0 if dtype.startswith("u") else -5
        cases.append(Case(ops.gather, [x, rng.integers(low, 5, (2, 3)).astype(dtype)], {"axis": 0}))
    cases += [Case(ops.gather, [x, rng.integers(-20, 20, 7)], {"axis": 2}), Case(ops.gather, [x, np.int64(-1)], {"axis": 1})]
    cases += [Case(ops.gather_elements, [x, rng.integers(-6, 6, (5, 9, 20))], {"axis": 1})]
    cases += [Case(ops.gather_elements, [x, rng.integers(-20, 20, (4, 3, 7))], {"axis": -1})]
    cases += [Case(ops.gather_nd, [x, rng.integers(-5, 5, (3, 4, 2))]), Case(ops.gather_nd, [x, rng.integers(-5, 5, (3, 3))])]
    cases += [Case(ops.gather_nd, [x, rng.integers(-6, 6, (5, 4, 1))], {"batch_dims": 1})]
    cases += [Case(ops.gather, [values("float32", 100, 24), rng.integers(0, 100, (3, 7))], {}, [(100, 24), (B, S)], {"b": 3, "s": 7})]
    cases += [Case(ops.one_hot, [rng.integers(-4, 4, (3, 5)), values("float32", 2)], {"depth": 4, "axis": axis}) for axis in (0, 1, -1)]
    check(cases)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters(reduction: str) -> None:
    rng = np.random.default_rng(2)
    cases = []
    for dtype in ("float32", "int64", "uint8"):
        x, unique = values(dtype, 5, 6), np.array([[0, 2, 1], [3, 4, 0]])
        indices = unique if reduction == "none" else rng.integers(-5, 5, (4, 6))
        cases.append(Case(ops.scatter_elements, [x, indices, values(dtype, *indices.shape, seed=3)], {"axis": 0, "reduction": reduction}))
        places = np.array([[1], [-2]]) if reduction == "none" else np.array([[1], [-2], [1]])
        cases.append(Case(ops.scatter_nd, [x, places, values(dtype, len(places), 6, seed=4)], {"reduction": reduction}))
        cases.append(Case(ops.scatter_nd, [x, np.array([[1, -1], [2, 3]]), values(dtype, 2, seed=4)], {"reduction": reduction}))
    check(cases)
