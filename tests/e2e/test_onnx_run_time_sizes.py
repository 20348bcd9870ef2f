"""Shapes, axes, counts and pads that only a run tells, from built files beside ONNX Runtime. (Cases 33, 35 and 36.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.errors import AotcError
from tests.e2e.onnx_text import check_built, ints, noise


def test_shapes_that_are_inputs(tmp_path: Path) -> None:
    """Reshape with 0 and -1, Expand, Tile, ConstantOfShape, OneHot, Range, TopK, Split."""
    body = """(float[N, 6] x, int64[3] shape, int64[3] wide, int64[2] repeats, int64[2] filled, int64 depth, int64 k, int64[2] parts,
        int64 from, int64 to, int64 by)
        => (float[A, B, C] reshaped, float[D, E, F] expanded, float[G, H] tiled, float[I, J] zeros, float[K, L] hot,
            int64[M] counted, float[N, O] best, int64[N, O] places, float[N, P] left, float[N, Q] right) {
        reshaped = Reshape (x, shape)
        row = Constant <value_ints = [1, -1]> ()
        line = Slice (x, zero, one)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        expanded = Expand (line, wide)
        tiled = Tile (x, repeats)
        zeros = ConstantOfShape (filled)
        values = Constant <value_floats = [0.0, 1.0]> ()
        one_depth = Reshape (depth, one)
        hot = OneHot (filled, one_depth, values)
        counted = Range (from, to, by)
        one_k = Reshape (k, one)
        best, places = TopK (x, one_k)
        left, right = Split <axis = 1> (x, parts)
    }"""
    feeds = [
        {
            "x": noise(n, 6, seed=n), "shape": ints(*shape), "wide": ints(*wide), "repeats": ints(*repeats), "filled": ints(*filled),
            "depth": np.array(depth), "k": np.array(k), "parts": ints(*parts), "from": np.array(a), "to": np.array(b), "by": np.array(c),
        }
        for n, shape, wide, repeats, filled, depth, k, parts, (a, b, c) in (
            (4, (2, -1, 3), (2, 1, 6), (1, 2), (3, 2), 4, 2, (2, 4), (0, 9, 2)),
            (2, (0, 3, 2), (1, 5, 1), (3, 1), (0, 1), 2, 6, (6, 0), (5, -5, -3)),
            (1, (-1, 1, 1), (1, 1, 6), (0, 2), (1, 1), 3, 1, (1, 5), (3, 3, 1)),
        )
    ]  # fmt: skip
    model = check_built(tmp_path, body, *feeds)
    with pytest.raises(AotcError, match="reshaped"):
        model.run({**feeds[0], "shape": ints(5, 1, 1)})


def test_slices_and_axes_that_are_inputs(tmp_path: Path) -> None:
    body = """(float[N, 5] x, int64[2] starts, int64[2] ends, int64[2] steps, int64[1] axis, int64 k)
        => (float[A, B] part, float[C, D] backwards, float[E] summed, float[F, G, H] longer, float[N, 5] running, float[N, 5] upper) {
        axes = Constant <value_ints = [0, 1]> ()
        part = Slice (x, starts, ends, axes)
        backwards = Slice (x, starts, ends, axes, steps)
        summed = ReduceSum <keepdims = 0> (x, axis)
        longer = Unsqueeze (x, axis)
        running = CumSum (x, axis)
        upper = Trilu (x, k)
    }"""
    feeds = [
        {"x": noise(n, 5, seed=n), "starts": ints(*s), "ends": ints(*e), "steps": ints(*t), "axis": ints(axis), "k": np.array(k)}
        for n, s, e, t, axis, k in (
            (4, (1, -3), (3, 2**40), (1, 2), 0, 1),
            (3, (-1, 9), (-9, 0), (-1, -2), 1, -1),
            (2, (0, 2), (0, 2), (1, 1), -1, 0),
            (5, (-(2**62), 4), (2**62, -(2**62)), (3, -1), 0, 7),
        )
    ]
    check_built(tmp_path, body, *feeds)


def test_top_k_of_axes_of_any_length(tmp_path: Path) -> None:
    """k is an input, what a detector takes of the boxes that it found, or a half, which may be none."""
    body = """(float[N, 2] x, int64[1] k) => (float[A, 2] best, int64[A, 2] places, float[B] some, float[C, 2] half, int64[C, 2] lowest) {
        best, places = TopK <axis = 0> (x, k)
        zero = Constant <value_float = 0.0> ()
        positive = Greater (x, zero)
        three = Constant <value_ints = [3]> ()
        two = Constant <value_ints = [2]> ()
        pairs = NonZero (positive)
        turned = Transpose (pairs)
        found = GatherND (x, turned)
        many = Shape (found)
        least = Min (many, three)
        some, _ = TopK (found, least)
        rows = Shape <end = 1> (x)
        halved = Div (rows, two)
        half, lowest = TopK <axis = 0, largest = 0> (x, halved)
    }"""
    feeds = [{"x": x, "k": ints(k)} for x, k in ((noise(9, 2), 4), (-np.abs(noise(1, 2)), 1), (noise(4, 2), 0), (np.abs(noise(1, 2)), 1))]
    model = check_built(tmp_path, body, *feeds)
    with pytest.raises(AotcError, match="best"):
        model.run({"x": noise(2, 2), "k": ints(3)})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_that_are_inputs(tmp_path: Path, mode: str) -> None:
    """Negative ones cut off; axes are an input too."""
    body = f"""(float[N, 5] x, int64[4] all, int64[2] some, int64[1] axis) => (float[A, B] y, float[C, D] z) {{
        y = Pad <mode = "{mode}"> (x, all)
        z = Pad <mode = "{mode}"> (x, some, , axis)
    }}"""
    rows = [(4, (1, 2, 0, 3), (1, 2), 0), (6, (0, -1, -2, 2), (2, 0), 1), (3, (0, 0, 0, 0), (0, 1), -1)]
    feeds = [{"x": noise(n, 5, seed=n), "all": ints(*a), "some": ints(*s), "axis": ints(axis)} for n, a, s, axis in rows]
    if mode == "constant":
        feeds.append({"x": noise(2, 5), "all": ints(-1, -2, -1, -2), "some": ints(3, -1), "axis": ints(0)})
    check_built(tmp_path, body, *feeds, opset=19)


def test_sizes_that_data_decides(tmp_path: Path) -> None:
    """NonZero, Compress and Unique with none, some and all; what follows computes on the true size."""
    body = """(float[N, 3] x, bool[4] mask, int64[8] labels) => (int64[2, A] where, float[A] found, float[N, B] chosen, float[C] flat,
            int64[D] values, int64[D] first, int64[8] group, int64[D] counts, int64[E] once, float mean, int64[1] many) {
        zero = Constant <value_float = 0.0> ()
        positive = Greater (x, zero)
        where = NonZero (positive)
        pairs = Transpose <perm = [1, 0]> (where)
        found = GatherND (x, pairs)
        axes = Constant <value_ints = [0]> ()
        mean = ReduceSum <keepdims = 0> (found, axes)
        many = Shape (found)
        three = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [3]> ()
        short = Slice (mask, three, end)
        chosen = Compress <axis = 1> (x, short)
        flat = Compress (x, mask)
        values, first, group, counts = Unique (labels)
        once = Unique <sorted = 0> (labels)
    }"""
    every, none = np.ones(4, bool), np.zeros(4, bool)
    feeds = [
        {"x": noise(3, 3), "mask": np.array([True, False, True, False]), "labels": ints(5, 2, 5, 9, 2, 2, 0, 5)},
        {"x": -np.abs(noise(2, 3)), "mask": none, "labels": ints(*[4] * 8)},
        {"x": np.abs(noise(5, 3)), "mask": every, "labels": ints(*range(8, 0, -1))},
    ]
    check_built(tmp_path, body, *feeds)


def test_unique_rows(tmp_path: Path) -> None:
    body = """(float[N, 3] x) => (float[A, 3] rows, int64[A] first, int64[N] group, int64[A] counts, float[N, B] columns) {
        rows, first, group, counts = Unique <axis = 0> (x)
        columns = Unique <axis = 1, sorted = 0> (x)
    }"""
    x = np.float32([[2, 1, 2], [0, 5, 0], [2, 1, 2], [0, 4, 0], [2, 1, 2]])
    check_built(tmp_path, body, {"x": x}, {"x": x[:1]}, {"x": x[[1, 3, 1]]})


@pytest.mark.parametrize("center", [0, 1])
def test_case_33_boxes(tmp_path: Path, center: int) -> None:
    """Two in the batch, three classes; none above the threshold; at most none; thresholds that are data."""
    body = f"""(float[2, N, 4] boxes, float[2, 3, N] scores, int64[1] most, float[1] iou, float[1] least)
        => (int64[A, 3] kept, float[A, 4] chosen) {{
        kept = NonMaxSuppression <center_point_box = {center}> (boxes, scores, most, iou, least)
        columns = Constant <value_ints = [0, 2]> ()
        places = Gather <axis = 1> (kept, columns)
        chosen = GatherND (boxes, places)
    }}"""
    random = np.random.default_rng(0)
    feeds = []
    for n, most, iou, least in ((12, 5, 0.3, 0.2), (12, 5, 0.3, 2.0), (7, 0, 0.5, 0.1), (30, 100, 0.0, 0.0), (1, 1, 1.0, 0.5)):
        corner, size = random.random((2, n, 2)), random.random((2, n, 2)) * 0.5 + 0.05
        boxes = np.concatenate([corner, size if center else corner + size], axis=2).astype(np.float32)
        scores = random.permutation(6 * n).reshape(2, 3, n).astype(np.float32) / (6 * n)
        feeds.append({"boxes": boxes, "scores": scores, "most": ints(most), "iou": np.float32([iou]), "least": np.float32([least])})
    check_built(tmp_path, body, *feeds)


def test_case_35_empty_tensors_of_run_time_sizes(tmp_path: Path) -> None:
    body = """(float[4, 3] x, int64[1] n, float[3, 2] w) => (float[A, 3] rows, float[A, 2] product, float[1, 3] most, float[B] flat,
            float[C, 3] joined, float[A, 3] soft) {
        zero = Constant <value_ints = [0]> ()
        rows = Slice (x, zero, n)
        product = MatMul (rows, w)
        most = ReduceSum (rows, zero)
        every = Constant <value_ints = [-1]> ()
        six = Concat <axis = 0> (n, three)
        three = Constant <value_ints = [3]> ()
        flat = Reshape (product, every)
        joined = Concat <axis = 0> (rows, rows, x)
        soft = Softmax (rows)
    }"""
    check_built(tmp_path, body, *({"x": noise(4, 3), "n": ints(n), "w": noise(3, 2, seed=1)} for n in (2, 0, 4)))


def test_resizes_by_sizes_and_scales_that_are_inputs(tmp_path: Path) -> None:
    body = """(float[1, 2, H, W] x, int64[4] sizes, float[4] scales) => (float[1, 2, A, B] a, float[1, 2, C, D] b) {
        a = Resize <mode = "linear"> (x, , , sizes)
        b = Resize <mode = "nearest"> (x, , scales)
    }"""
    feeds = [
        {"x": noise(1, 2, h, w, seed=h), "sizes": ints(1, 2, *sizes), "scales": np.float32([1, 1, *scales])}
        for h, w, sizes, scales in ((4, 6, (8, 3), (2, 1.5)), (5, 5, (5, 5), (0.6, 0.5)), (3, 7, (1, 20), (1, 3)))
    ]
    check_built(tmp_path, body, *feeds)
