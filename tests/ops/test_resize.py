"""Resize against ONNX Runtime and the ONNX specification (case 24), and against torch."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import TensorType, tensor
from aotc.ops.resize import COORDINATES, NEAREST, resize

X = np.random.default_rng(5).standard_normal((1, 2, 5, 7)).astype(np.float32)
WAYS = [
    ("scales", (1, 1, 2, 3)),
    ("scales", (1, 1, 0.5, 0.5)),
    ("scales", (1, 1, 0.6, 0.4)),
    ("scales", (1, 1, 1.7, 0.8)),
    ("sizes", (1, 2, 10, 14)),
    ("sizes", (1, 2, 11, 4)),
    ("sizes", (1, 2, 3, 20)),
    ("sizes", (1, 2, 1, 1)),
]
ROI = (0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.8, 1.1)


def onnx_model(how: str, factors: tuple[float, ...], x: np.ndarray = X, roi: tuple[float, ...] | None = None, **attributes: object):  # type: ignore[no-untyped-def]
    values = {how: np.array(factors, np.float32 if how == "scales" else np.int64)}
    if roi:
        values["roi"] = np.array(roi, np.float32)
    names = ["x", *(name if name in values else "" for name in ("roi", "scales", "sizes"))]
    while not names[-1]:
        names.pop()
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node("Resize", names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def in_onnxruntime(model: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def ours(how: str, factors: tuple[float, ...], x: np.ndarray = X, **attributes: object) -> np.ndarray:
    if how == "sizes":
        shape, scales = tuple(factors), (None,) * x.ndim
    else:
        shape = tuple(int(np.floor(np.float32(f) * n)) for f, n in zip(factors, x.shape, strict=True))
        scales = tuple(float(np.float32(f)) for f in factors)
    expression = resize(Var("x", TensorType(x.shape, str(x.dtype))), shape=shape, scales=scales, **attributes)
    result = resize.reference(expression.attrs, x)
    assert expression.type == TensorType(result.shape, str(result.dtype))
    return result


@pytest.mark.parametrize("how, factors", WAYS)
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("nearest", NEAREST)
def test_case_24_nearest(coordinate: str, nearest: str, how: str, factors: tuple[float, ...]) -> None:
    roi = ROI if coordinate == "tf_crop_and_resize" else None
    model = onnx_model(how, factors, roi=roi, mode="nearest", coordinate_transformation_mode=coordinate, nearest_mode=nearest)
    result = ours(how, factors, mode="nearest", coordinate=coordinate, nearest=nearest, roi=roi)
    expected = in_onnxruntime(model)
    if not np.array_equal(result, expected):
        # A position that is whole or half in exact arithmetic, and not in ONNX Runtime's float32: the specification decides.
        assert coordinate in ("half_pixel", "half_pixel_symmetric") and nearest == "floor"
        np.testing.assert_array_equal(result, ReferenceEvaluator(model).run(None, {"x": X})[0])


@pytest.mark.parametrize("how, factors", WAYS)
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode, exclude", [("linear", False), ("cubic", False), ("cubic", True)])
def test_case_24_linear_and_cubic(mode: str, exclude: bool, antialias: bool, coordinate: str, how: str, factors: tuple[float, ...]) -> None:
    roi = ROI if coordinate == "tf_crop_and_resize" else None
    model = onnx_model(
        how, factors, roi=roi, mode=mode, coordinate_transformation_mode=coordinate, antialias=int(antialias),
        exclude_outside=int(exclude), cubic_coeff_a=-0.6, extrapolation_value=5.0,
    )  # fmt: skip
    result = ours(
        how, factors, mode=mode, coordinate=coordinate, antialias=antialias, exclude_outside=exclude, cubic_a=-0.6,
        extrapolation=5.0, roi=roi,
    )  # fmt: skip
    np.testing.assert_allclose(result, in_onnxruntime(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(10, 14), (3, 4), (13, 5)])
def test_torchs_interpolation(size: tuple[int, int]) -> None:
    x, shape = torch.from_numpy(X), (1, 2, *size)
    for mode, corners in (("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)):
        expected = functional.interpolate(x, size, mode=mode, align_corners=corners).numpy()
        coordinate = "align_corners" if corners else "half_pixel"
        result = ours("sizes", shape, mode="linear" if mode == "bilinear" else "cubic", coordinate=coordinate)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    expected = functional.interpolate(x, size, mode="nearest").numpy()
    np.testing.assert_array_equal(ours("sizes", shape, coordinate="asymmetric", nearest="floor"), expected)


@pytest.mark.parametrize("shape", [(2, 3, 9), (1, 2, 3, 4, 5)])
def test_other_ranks(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    mode = {3: "linear", 5: "trilinear"}[len(shape)]
    expected = functional.interpolate(torch.from_numpy(x), scale_factor=2, mode=mode).numpy()
    factors = (1.0, 1.0, *[2.0] * (len(shape) - 2))
    np.testing.assert_allclose(ours("scales", factors, x, mode="linear"), expected, rtol=1e-4, atol=1e-5)


def test_integers_round_half_to_even_within_their_range() -> None:
    x = np.array([[[[0, 255, 255, 1]]]], np.uint8)
    result = ours("scales", (1, 1, 1, 2), x, mode="cubic")
    assert result.dtype == np.uint8 and result.max() == 255 and result.min() == 0
    assert ours("sizes", (1, 1, 1, 2), x, mode="linear").ravel().tolist() == [128, 128]


def test_symbolic_shapes() -> None:
    h = symbol("h", 1)
    x = Var("x", tensor("float32", 1, 2, h, 7))
    assert resize(x, shape=(1, 2, h * 2, 14), scales=(1.0, 1.0, 2.0, 2.0)).type == tensor("float32", 1, 2, h * 2, 14)


def test_what_does_not_fit_is_refused() -> None:
    x = Var("x", tensor("float32", 1, 2, 5, 7))
    with pytest.raises(InvalidModel, match="mode must be one of nearest, linear, cubic, not 'area'"):
        resize(x, shape=(1, 2, 3, 3), scales=(None,) * 4, mode="area")
    with pytest.raises(InvalidModel, match="one output dim and one scale for each axis"):
        resize(x, shape=(3, 3), scales=(None,) * 2)
    with pytest.raises(InvalidModel, match="scales must be above 0"):
        resize(x, shape=(1, 2, 3, 3), scales=(1.0, 1.0, 0.0, 1.0))
    with pytest.raises(InvalidModel, match="needs a roi of 8 numbers"):
        resize(x, shape=(1, 2, 3, 3), scales=(None,) * 4, coordinate="tf_crop_and_resize")
