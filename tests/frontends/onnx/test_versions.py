"""Operators whose attributes became inputs, or whose meaning changed, at every version; against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.errors import UnsupportedModel
from aotc.frontends.onnx import import_onnx
from tests.frontends.onnx.helpers import check, in_onnxruntime, parse, random, run

X = random(2, 3, 4, 5)
FEEDS = {"x": X}


def wrap(body: str, result: str = "float y") -> str:
    return f"(float[2,3,4,5] x) => ({result}) {{ {body} }}"


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (7, "y = Clip <min=-0.5, max=0.5> (x)"),
        (7, "y = Clip <max=0.5> (x)"),
        (11, "lo = Constant <value_float=-0.5> () hi = Constant <value_float=0.5> () y = Clip (x, lo, hi)"),
        (13, "hi = Constant <value_float=0.5> () y = Clip (x, , hi)"),
        (13, "y = Clip (x)"),
        (9, "y = Slice <starts=[1, -3], ends=[3, 9223372036854775807], axes=[2, 3]> (x)"),
        (13, "s = Constant <value_ints=[3, -1]> () e = Constant <value_ints=[-9, -100]> () a = Constant <value_ints=[2, 3]> () "
             "t = Constant <value_ints=[-2, -1]> () y = Slice (x, s, e, a, t)"),
        (13, "s = Constant <value_ints=[5]> () e = Constant <value_ints=[1]> () a = Constant <value_ints=[-1]> () y = Slice (x, s, e, a)"),
        (11, "u = Unsqueeze <axes=[0, 5]> (x) y = Squeeze <axes=[5, 0]> (u)"),
        (13, "a = Constant <value_ints=[0, -1]> () u = Unsqueeze (x, a) y = Squeeze (u, a)"),
        (13, "a = Constant <value_ints=[1]> () u = Unsqueeze (x, a) y = Squeeze (u)"),
        (8, "y = Softmax (x)"),
        (8, "y = Softmax <axis=2> (x)"),
        (8, "y = LogSoftmax <axis=3> (x)"),
        (8, "y = Hardmax <axis=1> (x)"),
        (13, "y = Softmax (x)"),
        (13, "y = LogSoftmax <axis=1> (x)"),
        (13, "y = Hardmax <axis=-2> (x)"),
        (9, "y = Pad <mode=\"reflect\", pads=[0,0,1,2,0,0,3,1]> (x)"),
        (9, "y = Pad <value=1.5, pads=[0,0,-1,2,0,0,1,-1]> (x)"),
        (13, "p = Constant <value_ints=[0,0,-1,2,0,0,1,-1]> () v = Constant <value_float=1.5> () y = Pad (x, p, v)"),
        (13, "p = Constant <value_ints=[0,0,1,2,0,0,1,2]> () y = Pad <mode=\"edge\"> (x, p)"),
        (18, "p = Constant <value_ints=[1,2]> () a = Constant <value_ints=[-1]> () y = Pad <mode=\"reflect\"> (x, p, , a)"),
        (19, "p = Constant <value_ints=[1,2]> () a = Constant <value_ints=[2]> () y = Pad <mode=\"wrap\"> (x, p, , a)"),
        (11, "y = ReduceSum <axes=[1, -1], keepdims=0> (x)"),
        (13, "a = Constant <value_ints=[1, -1]> () y = ReduceSum <keepdims=0> (x, a)"),
        (13, "y = ReduceSum (x)"),
        (13, "y = ReduceSum <noop_with_empty_axes=1> (x)"),
        (13, "y = ReduceMean <axes=[1, -1]> (x)"),
        (18, "a = Constant <value_ints=[1, -1]> () y = ReduceMean (x, a)"),
        (13, "y = ReduceLogSumExp <axes=[2], keepdims=0> (x)"),
        (18, "a = Constant <value_ints=[0]> () y = ReduceL2 (x, a)"),
        (11, "a, b, c = Split <axis=3, split=[1, 3, 1]> (x) y = Concat <axis=3> (c, b, a)"),
        (13, "s = Constant <value_ints=[1, 3, 1]> () a, b, c = Split <axis=3> (x, s) y = Concat <axis=3> (c, b, a)"),
        (18, "a, b = Split <axis=-1, num_outputs=2> (x) y = Concat <axis=3> (b, a)"),
        (11, "a, b = Split <axis=2> (x) y = Add (a, b)"),
        (7, "y = Dropout <ratio=0.3> (x)"),
        (12, "y = Dropout (x)"),
        (7, "s = Constant <value=int64[3] {0, -1, 10}> () y = Reshape (x, s)"),
        (9, "y = Flatten <axis=2> (x)"),
        (11, "y = Flatten <axis=-1> (x)"),
        (9, "y = Flatten <axis=0> (x)"),
        (7, "y = Sum (x, x, x)"),
        (13, "y = Mean (x, x)"),
        (13, "a = Constant <value=float[3,1,1] {1.0,2.0,3.0}> () y = Max (x, a)"),
        (13, "y = Elu <alpha=0.7> (x)"),
    ],
)  # fmt: skip
def test_one_version(opset: int, body: str) -> None:
    check(wrap(body), FEEDS, opset=opset)


@pytest.mark.parametrize(("opset", "attribute"), [(9, True), (10, False), (11, False), (24, False)])
def test_top_k(opset: int, attribute: bool) -> None:
    if attribute:
        body = "y, i = TopK <k=2, axis=1> (x)"
    else:
        extra = ", largest=0" if opset >= 11 else ""
        body = f"k = Constant <value=int64[1] {{2}}> () y, i = TopK <axis=-1{extra}> (x, k)"
    check(wrap(body, "float y, int64 i"), FEEDS, opset=opset)


def test_a_mask_of_dropout_keeps_everything() -> None:
    for opset, dtype in ((7, "float"), (10, "bool"), (13, "bool")):
        module = import_onnx(parse(wrap("y, m = Dropout (x)", f"float y, {dtype} m"), opset))
        y, mask = run(module, FEEDS)
        np.testing.assert_array_equal(y, X)
        assert mask.shape == X.shape and mask.all() and mask.dtype == (np.float32 if opset == 7 else np.bool_)


def test_dropout_in_training_scales_what_it_keeps() -> None:
    """Which elements it keeps is its own choice, the same in each run; the mask says which."""
    body = "t = Constant <value=bool {1}> () r = Constant <value=float {0.25}> () y, mask = Dropout (x, r, t)"
    model = parse(f"(float[2,3,40,50] x) => (float y, bool mask) {{ {body} }}", 13)
    feeds = {"x": random(2, 3, 40, 50)}
    y, mask = run(import_onnx(model), feeds)
    assert abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y, np.where(mask, feeds["x"] / np.float32(0.75), 0), rtol=1e-6)
    np.testing.assert_array_equal(run(import_onnx(model), feeds)[1], mask)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm(opset: int) -> None:
    weights = "a = Constant <value=float[3] {1.0, 2.0, 0.5}> ()"
    check(wrap(f"{weights} y = BatchNormalization <epsilon=0.01> (x, a, a, a, a)"), FEEDS, opset=opset)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 0.5, 0.6), (1.0, 1.0, 2.0, 0.6)])
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_upsample_and_the_first_resize(opset: int, scales: tuple[float, ...], mode: str) -> None:
    if opset < 10 and min(scales) < 1:
        pytest.skip("Upsample only grows")
    if opset == 7:
        node, weights = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=scales), []
    else:
        node = helper.make_node("Upsample" if opset == 9 else "Resize", ["x", "s"], ["y"], mode=mode)
        weights = [numpy_helper.from_array(np.array(scales, np.float32), "s")]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4), FEEDS)


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
@pytest.mark.parametrize("by", ["scales", "sizes"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize"])
def test_case_24_resize_at_every_version(opset: int, by: str, coordinate: str) -> None:
    values = {"roi": np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.8], np.float32)}
    values[by] = np.array((1, 1, 2.5, 0.6), np.float32) if by == "scales" else np.array((2, 3, 7, 3), np.int64)
    empty = "" if opset >= 13 else "none"
    if opset < 13:
        values["none"] = np.zeros(0, np.float32)
    names = ["x", "roi", "scales" if by == "scales" else empty, *(["sizes"] if by == "sizes" else [])]
    for mode in ("nearest", "linear", "cubic"):
        node = helper.make_node("Resize", names, ["y"], mode=mode, coordinate_transformation_mode=coordinate, nearest_mode="floor")
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in values.items()],
        )  # fmt: skip
        check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6), FEEDS)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_of_chosen_axes_under_one_scale(policy: str) -> None:
    body = f'n = Constant <value_ints=[9, 9]> () y = Resize <axes=[2, 3], keep_aspect_ratio_policy="{policy}", mode="linear"> (x, , , n)'
    check(wrap(body), FEEDS, opset=18)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool", "ConvTranspose"])
def test_auto_pad_on_odd_sizes(operator: str, auto: str) -> None:
    x, w = random(1, 2, 7, 9), random(2, 2, 3, 2, seed=1)
    kernel = "" if operator in ("Conv", "ConvTranspose") else "kernel_shape=[3, 2], "
    second = ", w" if not kernel else ""
    body = f'(float[1,2,7,9] x, float[2,2,3,2] w) => (float y) {{ y = {operator} <{kernel}strides=[2, 2], auto_pad="{auto}"> (x{second}) }}'
    model = parse(body, 13)
    (expected,) = in_onnxruntime(model, {"x": x, "w": w})
    (result,) = run(import_onnx(model), {"x": x, "w": w})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_auto_pad_of_dynamic_sizes() -> None:
    body = "(float[1,2,H,W] x) => (float y) {{ y = {} (x) }}"
    for size in ((7, 9), (8, 6)):
        check(body.format('MaxPool <kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER">'), {"x": random(1, 2, *size)}, opset=13)


@pytest.mark.parametrize(
    "attributes",
    [
        "strides=[2, 2], output_padding=[1, 1]",
        "strides=[3, 2], output_shape=[20, 17]",
        'strides=[3, 2], output_shape=[20, 17], auto_pad="SAME_UPPER"',
        'strides=[3, 2], output_shape=[20, 17], auto_pad="SAME_LOWER"',
        "dilations=[2, 3], pads=[1, 2, 0, 1]",
    ],
)
def test_case_23_conv_transpose(attributes: str) -> None:
    x, w = random(1, 2, 7, 9), random(2, 3, 3, 2, seed=1)
    body = f"(float[1,2,7,9] x, float[2,3,3,2] w) => (float y) {{ y = ConvTranspose <{attributes}> (x, w) }}"
    check(parse(body, 13), {"x": x, "w": w})


def test_case_23_depthwise_transposed_over_one_axis() -> None:
    x, w = random(1, 4, 6, 1), random(4, 1, 32, 1, seed=1)
    body = "(float[1,4,6,1] x, float[4,1,32,1] w) => (float y) { y = ConvTranspose <group=4, strides=[16, 1], pads=[8, 0, 8, 0]> (x, w) }"
    check(parse(body, 13), {"x": x, "w": w})


def test_group_norm_before_and_after_its_correction() -> None:
    x = random(2, 6, 4)
    per_group, per_channel = np.array([1.0, 2.0, 3.0], np.float32), np.repeat(np.array([1.0, 2.0, 3.0], np.float32), 2)
    old = parse("(float[2,6,4] x, float[3] s) => (float y) { y = GroupNormalization <num_groups=3> (x, s, s) }", 18)
    new = parse("(float[2,6,4] x, float[6] s) => (float y) { y = GroupNormalization <num_groups=3> (x, s, s) }", 21)
    (before,) = run(import_onnx(old), {"x": x, "s": per_group})
    (after,) = run(import_onnx(new), {"x": x, "s": per_channel})
    np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(after, in_onnxruntime(new, {"x": x, "s": per_channel})[0], rtol=1e-5, atol=1e-5)


def test_opsets_outside_of_the_range_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"opset 6; aotc reads 7 to \d+. onnx.version_converter"):
        import_onnx(parse(wrap("y = Add (x, x)"), 6))
    with pytest.raises(UnsupportedModel, match=f"opset 99; aotc with onnx {onnx.__version__} reads 7 to"):
        import_onnx(parse(wrap("y = Relu (x)"), 99))
