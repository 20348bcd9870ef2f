"""What a model takes for granted about its dynamic dims."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.errors import InvalidModel
from aotc.frontends.onnx import import_onnx
from aotc.frontends.onnx.assume import solve_equal
from aotc.ir.dims import bounds, floordiv, symbol
from aotc.ir.types import tensor
from tests.frontends.onnx.helpers import check, parse, random, run

H, W = symbol("h", 1), symbol("w", 1)


def test_a_symbol_as_a_number_or_as_another() -> None:
    assert solve_equal(H, 3) == {"h": 3}
    assert solve_equal(2 * H, 6) == {"h": 3}
    assert solve_equal(2 * H, 7) is None
    assert solve_equal(W, H) == {"w": H}
    assert solve_equal(3, 4) is None
    assert solve_equal(32 * H * W, 160 * W) == {"h": 5}


def test_a_symbol_as_a_multiple() -> None:
    (value,) = (solve_equal(2 * floordiv(H + 1, 2), H) or {}).values()
    assert value == 2 * H
    (value,) = (solve_equal(4 * floordiv(H + 7, 8), 2 * floordiv(H + 3, 4)) or {}).values()
    assert value == 8 * H


def test_a_symbol_within_bounds() -> None:
    values = solve_equal(floordiv(H + 15, 48), 1)
    assert values is not None and bounds(values["h"]) == (33, 80)


def test_an_input_whose_channels_are_dynamic() -> None:
    body = "(float[N,C,H,W] x, float[2,3,3,3] w) => (float y) { y = Conv (x, w) }"
    module = check(body, {"x": random(2, 3, 6, 7), "w": random(2, 3, 3, 3)})
    assert module.main.params[0].type == tensor("float32", symbol("N"), 3, symbol("H"), symbol("W"))


def test_inputs_that_must_be_equal() -> None:
    module = check("(float[A,4] x, float[B,4] y) => (float z) { z = Add (x, y) }", {"x": random(2, 4), "y": random(2, 4)})
    assert len(module.symbols) == 1


def test_a_feature_pyramid_needs_a_multiple() -> None:
    body = """(float[1,2,H,W] x) => (float y) {
        a = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (x)
        s = Constant <value=float[4] {1.0, 1.0, 2.0, 2.0}> ()
        b = Resize (a, , s)
        y = Add (x, b)
    }"""
    module = check(body, *({"x": random(1, 2, *size)} for size in ((4, 6), (8, 2))))
    assert module.main.params[0].type == tensor("float32", 1, 2, 2 * symbol("H"), 2 * symbol("W"))
    with pytest.raises(InvalidModel, match="input 'x'"):
        run(module, {"x": np.zeros((1, 2, 5, 6), np.float32)})


def test_what_no_size_can_mend() -> None:
    with pytest.raises(InvalidModel, match="do not broadcast"):
        import_onnx(parse("(float[H] x) => (float y) { a = Concat <axis=0> (x, x, x) b = Concat <axis=0> (x, x) y = Add (a, b) }"))


def test_a_reshape_to_a_size_that_was_fixed_while_exporting() -> None:
    body = "(float[N,S,8] x) => (float y) { s = Constant <value=int64[3] {5, -1, 4}> () y = Reshape (x, s) }"
    module = import_onnx(parse(body))
    assert module.main.params[0].type == tensor("float32", 5 * symbol("N"), symbol("S"), 8)
    fixed = "(float[N,S,8] x) => (float y) { s = Constant <value=int64[3] {0, 5, 8}> () y = Reshape (x, s) }"
    assert import_onnx(parse(fixed)).main.params[0].type == tensor("float32", symbol("N"), 5, 8)


def test_factors_that_both_sides_share_do_not_matter() -> None:
    width, height = floordiv(W + 3, 8), floordiv(H + 15, 48)
    values = solve_equal(width * height * 120, width * 120)
    assert values is not None and bounds(values["h"]) == (33, 80)


def test_a_table_that_is_expanded_has_a_last_row() -> None:
    """A slice of a table of 8 positions, expanded to the input's length: lengths above 8 are out of range."""
    body = """(int64[N,L] ids) => (int64[N,L] y) {
        table = Constant <value=int64[1,8] {7,6,5,4,3,2,1,0}> ()
        start = Constant <value=int64[1] {0}> ()
        axis = Constant <value=int64[1] {1}> ()
        length = Shape <start=1> (ids)
        rows = Slice (table, start, length, axis)
        size = Shape (ids)
        y = Expand (rows, size)
    }"""
    module = check(body, *({"ids": np.ones((2, length), np.int64)} for length in (1, 5, 8)))
    assert bounds(module.main.params[0].type.shape[1])[1] == 8  # type: ignore[union-attr]


BRANCHES = """(float[N,L] x, bool slow) => (float y) {
    y = If (slow) <
        then_branch = a () => (float y1) {
            table = Constant <value=float[4] {1.0, 2.0, 3.0, 4.0}> ()
            t = Add (x, table)
            y1 = ReduceSum <keepdims=0> (t, )
        },
        else_branch = b () => (float y2) {
            w = Constant <value=float[6] {6.0, 5.0, 4.0, 3.0, 2.0, 1.0}> ()
            m = Mul (x, w)
            y2 = ReduceSum <keepdims=0> (m, )
        }
    >
}"""


def test_what_one_branch_takes_for_granted_binds_that_branch_only() -> None:
    feeds = [{"x": random(2, length), "slow": np.array(length == 4)} for length in (4, 6)]
    module = check(BRANCHES, *feeds)
    assert module.main.params[0].type == tensor("float32", symbol("N"), symbol("L"))
    for length in (4, 6):
        with pytest.raises(InvalidModel, match=f"{length} .*must be"):
            run(module, {"x": random(2, length), "slow": np.array(length != 4)})


def test_a_branch_that_needs_a_range_or_a_multiple() -> None:
    body = """(float[1,1,L] x, bool whole) => (float y) {
        y = If (whole) <
            then_branch = a () => (float y1) {
                w = Constant <value=float[1,1,3] {1.0, 2.0, 3.0}> ()
                c = Conv <strides=[48]> (x, w)
                one = Constant <value=int64 {1}> ()
                dims = Shape <start=2> (c)
                size = Squeeze (dims)
                single = Equal (size, one)
                axis = Constant <value=int64[1] {2}> ()
                y1 = If (single) <
                    then_branch = c1 () => (float z1) { z1 = Squeeze (c, axis) },
                    else_branch = d1 () => (float z2) { z2 = Identity (c) }
                >
            },
            else_branch = b () => (float y2) {
                s = Constant <value=float[3] {1.0, 1.0, 2.0}> ()
                half = MaxPool <kernel_shape=[2], strides=[2]> (x)
                up = Resize (half, , s)
                sum = Add (x, up)
                axes = Constant <value=int64[1] {2}> ()
                y2 = ReduceMax <keepdims=0> (sum, axes)
            }
        >
    }"""
    feeds = [{"x": random(1, 1, length), "whole": np.array(whole)} for length, whole in ((3, True), (50, True), (4, False), (80, False))]
    module = check(body, *feeds)
    for length, whole in ((51, True), (2, True), (5, False)):
        with pytest.raises(InvalidModel):
            run(module, {"x": random(1, 1, length), "whole": np.array(whole)})
