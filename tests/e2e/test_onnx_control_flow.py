"""If, Loop, Scan and sequences from built files, beside ONNX Runtime. (Case 31.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.errors import AotcError, UnsupportedModel
from tests.e2e.onnx_text import built, check_built, ints, noise

TRUE, FALSE = np.array(True), np.array(False)


def test_branches_capture_nest_and_differ_in_size(tmp_path: Path) -> None:
    body = """(float[N, 3] x, bool flag, bool inner) => (float[M, 3] y, float[3] total) {
        twice = Add (x, x)
        y = If (flag) <
            then_branch = a () => (float[A, 3] ya) {
                ya = If (inner) <
                    then_branch = b () => (float[B, 3] yb) { yb = Concat <axis = 0> (x, twice) },
                    else_branch = c () => (float[C, 3] yc) { yc = Exp (x) }>
            },
            else_branch = d () => (float[D, 3] yd) {
                zero = Constant <value_ints = [0]> ()
                one = Constant <value_ints = [1]> ()
                yd = Slice (twice, zero, one, zero)
            }>
        axes = Constant <value_ints = [0]> ()
        total = ReduceSum <keepdims = 0> (y, axes)
    }"""
    feeds = [{"x": noise(n, 3, seed=n), "flag": a, "inner": b} for n in (2, 5) for a in (TRUE, FALSE) for b in (TRUE, FALSE)]
    check_built(tmp_path, body, *feeds)


def test_a_loop_whose_carried_value_grows_until_a_condition(tmp_path: Path) -> None:
    """Captured values from two levels outside; the trip count and the condition are data."""
    body = """(int64 most, bool go, float[2] start, float bound, float[2] step) => (float[L, 2] grown, float last, float[T, 2] rows) {
        first = Constant <value_ints = [1, 2]> ()
        grown0 = Reshape (start, first)
        last0 = Constant <value_float = 0.0> ()
        grown, last, rows = Loop (most, go, grown0, last0) <body = b (int64 i, bool c, float[K, 2] g, float l)
            => (bool c2, float[K2, 2] g2, float l2, float[2] row) {
            number = Cast <to = 1> (i)
            row = Add (step, number)
            flat = Reshape (row, first)
            g2 = Concat <axis = 0> (g, flat)
            axes = Constant <value_ints = [0, 1]> ()
            l2 = ReduceSum <keepdims = 0> (g2, axes)
            c2 = Less (l2, bound)
        }>
    }"""
    feeds = [
        {"most": np.array(most), "go": go, "start": noise(2), "bound": np.array(bound, np.float32), "step": np.float32([0.5, 1])}
        for most, go, bound in ((4, TRUE, 1e9), (100, TRUE, 30), (0, TRUE, 1), (9, FALSE, 9), (3, TRUE, 1e9))
    ]
    check_built(tmp_path, body, *feeds)


def test_loops_in_loops_with_a_branch(tmp_path: Path) -> None:
    body = """(float[N] xs, int64 m, int64 n) => (float sum, float[M, K] table) {
        zero = Constant <value_float = 0.0> ()
        yes = Constant <value = bool {1}> ()
        sum, table = Loop (m, yes, zero) <body = outer (int64 i, bool c, float s) => (bool c2, float s2, float[K] row) {
            c2 = Identity (c)
            x = Gather (xs, i)
            s2, row = Loop (n, yes, s) <body = inner (int64 j, bool d, float t) => (bool d2, float t2, float cell) {
                d2 = Identity (d)
                y = Gather (xs, j)
                below = Less (x, y)
                cell = If (below) <
                    then_branch = a () => (float u) { u = Sub (y, x) },
                    else_branch = b () => (float v) { v = Mul (x, y) }>
                t2 = Add (t, cell)
            }>
        }>
    }"""
    for m, n in ((2, 3), (4, 1)):
        xs = noise(4, seed=m)
        want = np.where(xs[:m, None] < xs[None, :n], xs[None, :n] - xs[:m, None], xs[:m, None] * xs[None, :n])
        model = built(tmp_path, body) if m == 2 else model  # noqa: F821
        got = model.run({"xs": xs, "m": np.array(m), "n": np.array(n)})
        np.testing.assert_allclose(got["table"], want, rtol=1e-5)
        np.testing.assert_allclose(got["sum"], want.sum(), rtol=1e-5)


def test_a_slice_that_grows_with_the_iteration(tmp_path: Path) -> None:
    body = """(float[6] x, int64 n) => (float[T] sums) {
        yes = Constant <value = bool {1}> ()
        zero = Constant <value_ints = [0]> ()
        sums = Loop (n, yes) <body = b (int64 i, bool c) => (bool c2, float s) {
            c2 = Identity (c)
            one = Constant <value_ints = [1]> ()
            at = Reshape (i, one)
            end = Add (at, one)
            part = Slice (x, zero, end)
            s = ReduceSum <keepdims = 0> (part, zero)
        }>
    }"""
    check_built(tmp_path, body, *({"x": noise(6), "n": np.array(n)} for n in (6, 2, 0)))


def test_a_scan_over_chosen_axes_and_backwards(tmp_path: Path) -> None:
    body = """(float[2] start, float[3, T] xs, float[T, 2] ys, float[2] shift) => (float[2] last, float[2, T] states, float[T] dots) {
        last, states, dots = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
            scan_output_axes = [1, 0], scan_output_directions = [0, 1],
            body = b (float[2] s, float[3] x, float[2] y) => (float[2] s2, float[2] row, float dot) {
                axes = Constant <value_ints = [0]> ()
                dot = ReduceSum <keepdims = 0> (x, axes)
                moved = Add (y, shift)
                grown = Mul (moved, dot)
                s2 = Add (s, grown)
                row = Identity (s2)
            }> (start, xs, ys)
    }"""
    feeds = [{"start": noise(2), "xs": noise(3, t), "ys": noise(t, 2, seed=1), "shift": noise(2, seed=2)} for t in (5, 1, 8)]
    check_built(tmp_path, body, *feeds)


def test_sequences(tmp_path: Path) -> None:
    """Split by lengths that are data, changed, mapped, chosen by a branch, and joined."""
    body = """(float[6, 2] x, int64[3] lengths, int64 at, bool flag, float[2, 2] z)
        => (float[L, 2] joined, float[4, 2, 2] stacked, float[2, 2] chosen, int64 count) {
        parts = SplitToSequence <axis = 0> (x, lengths)
        more = SequenceInsert (parts, z)
        second = Constant <value_int = 1> ()
        fewer = SequenceErase (more, second)
        doubled = SequenceMap <body = m (float[A, 2] item) => (float[A, 2] out) { out = Add (item, item) }> (fewer)
        joined = ConcatFromSequence <axis = 0> (doubled)
        count = SequenceLength (fewer)
        w = Neg (z)
        pair = If (flag) <
            then_branch = a () => (seq(float[2, 2]) s) { s = SequenceConstruct (z, w) },
            else_branch = b () => (seq(float[2, 2]) t) { v = Exp (z)  t = SequenceConstruct (v, z) }>
        sum = Add (z, z)
        three = SequenceInsert (pair, sum, at)
        four = SequenceInsert (three, z, at)
        stacked = ConcatFromSequence <axis = 0, new_axis = 1> (four)
        chosen = SequenceAt (three, at)
    }"""
    feeds = [
        {"x": noise(6, 2), "lengths": ints(*lengths), "at": np.array(at), "flag": flag, "z": noise(2, 2, seed=1)}
        for lengths, at, flag in (((1, 2, 3), 0, TRUE), ((4, 0, 2), 1, FALSE), ((2, 2, 2), -1, TRUE))
    ]
    model = check_built(tmp_path, body, *feeds)
    with pytest.raises(AotcError, match="parts"):
        model.run({**feeds[0], "lengths": ints(1, 2, 4)})


def test_what_control_flow_cannot_have_is_refused_by_name(tmp_path: Path) -> None:
    rows = """(int64 n, float[9] x) => (float[T, K] rows) {
        yes = Constant <value = bool {1}> ()
        rows = Loop (n, yes) <body = b (int64 i, bool c) => (bool c2, float[K] row) {
            c2 = Identity (c)
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            end = Reshape (i, one)
            row = Slice (x, zero, end)
        }>
    }"""
    with pytest.raises(UnsupportedModel, match=r"Loop at 'rows'.*differ from one iteration"):
        built(tmp_path, rows)
    endless = """(float x) => (float y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (, yes, x) <body = b (int64 i, bool c, float a) => (bool c2, float a2) { c2 = Identity (c)  a2 = Add (a, a) }>
    }"""
    with pytest.raises(UnsupportedModel, match=r"Loop at 'y'.*neither a trip count nor a condition"):
        built(tmp_path, endless)
