"""Compiled sampling: grids, deformed windows, regions; against PyTorch, ONNX Runtime and the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest
import torch

from aotc import ops
from aotc.ir.dims import symbol
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 1)
MODES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def grid(*shape: int, reach: float = 1.6) -> np.ndarray:
    return np.random.default_rng(1).uniform(-reach, reach, shape).astype("float32")


def by_torch(mode: str, padding: str, align: bool) -> Any:
    def run(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        wide = torch.from_numpy(x).double(), torch.from_numpy(positions).double()
        return torch.nn.functional.grid_sample(*wide, MODES[mode], padding, align).float().numpy()

    return run


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(padding: str) -> None:
    cases = []
    for mode in MODES:
        for align in (False, True):
            attrs = {"mode": mode, "padding": padding, "align_corners": align}
            x, positions = normal(2, 3, 5, 7), grid(2, 4, 37, 2)
            cases.append(Case(ops.grid_sample, [x, positions], attrs, expected=by_torch(mode, padding, align), ulp=200, scale=10))
            if mode != "cubic":
                cube, places = normal(2, 2, 3, 4, 5), grid(2, 3, 2, 18, 3)
                cases.append(Case(ops.grid_sample, [cube, places], attrs, expected=by_torch(mode, padding, align), ulp=200, scale=10))
    check(cases)


def test_grid_sample_types_and_sizes() -> None:
    x, positions = normal(2, 3, 5, 7), grid(2, 4, 37, 2)
    positions[0, 0, :4] = [[np.nan, 0], [np.inf, 0], [-np.inf, 3e38], [0, 1e30]]
    whole = np.random.default_rng(2).integers(0, 255, (2, 3, 5, 7)).astype("uint8")
    check(
        [
            Case(ops.grid_sample, [x.astype("float16"), positions[:, 1:].astype("float16")]),
            Case(
                ops.grid_sample, [x.astype("float64"), positions[:, 1:].astype("float64")], {"mode": "cubic", "padding": "border"}, scale=4
            ),
            Case(ops.grid_sample, [whole, positions], {"mode": "nearest", "padding": "border"}),
            Case(ops.grid_sample, [x, positions], {"mode": "nearest"}, shapes=[(B, 3, S, 7), (B, 4, 37, 2)], symbols={"b": 2, "s": 5}),
            Case(ops.grid_sample, [x, positions[:, 1:]], shapes=[(2, B, 5, 7), (2, 3, S, 2)], symbols={"b": 3, "s": 37}, scale=4),
            Case(ops.grid_sample, [normal(1, 2, 1, 1), grid(1, 2, 2, 2)], {"padding": "reflection", "align_corners": True}, scale=4),
            Case(ops.grid_sample, [normal(1, 2, 9), grid(1, 6, 1)], {"mode": "cubic"}, scale=4),
            # More pieces of positions than tasks.
            Case(
                ops.grid_sample, [normal(1, 2, 5, 6), grid(1, 301, 130, 2)], {}, [(1, 2, 5, 6), (1, B, S, 2)], {"b": 301, "s": 130}, scale=4
            ),
        ]
    )


DEFORM = [
    # shape, kernel, strides, padding, dilation, groups, masked
    ((2, 4, 6, 7), (3, 3), (1, 1), (1, 1), (1, 1), 1, True),
    ((1, 4, 8, 9), (2, 3), (2, 1), (0, 2), (1, 2), 2, True),
    ((1, 3, 5, 40), (1, 3), (1, 2), (0, 1), (1, 1), 1, False),
]


def by_onnx_runtime(op: str, domain: str = "", opset: int = 22, **attrs: Any) -> Any:
    def run(*arrays: np.ndarray) -> np.ndarray:
        inputs = [oh.make_tensor_value_info(f"i{i}", oh.np_dtype_to_tensor_dtype(a.dtype), a.shape) for i, a in enumerate(arrays)]
        node = oh.make_node(op, [each.name for each in inputs], ["y"], domain=domain, **attrs)
        graph = oh.make_graph([node], "g", inputs, [oh.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)])
        model = oh.make_model(graph, opset_imports=[oh.make_opsetid(domain, opset)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {f"i{i}": a for i, a in enumerate(arrays)})[0])

    return run


@pytest.mark.parametrize("shape,kernel,strides,padding,dilation,groups,masked", DEFORM)
def test_deform_columns(shape: Any, kernel: Any, strides: Any, padding: Any, dilation: Any, groups: int, masked: bool) -> None:
    """Against ONNX Runtime's deformable convolution: with an identity for weights its result is the columns."""
    outputs = [(n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in zip(shape[2:], kernel, strides, padding, dilation)]
    count = kernel[0] * kernel[1]
    x, offsets = normal(*shape), normal(shape[0], groups * count * 2, *outputs, seed=1) * 2
    mask = np.random.default_rng(2).uniform(size=(shape[0], groups * count, *outputs)).astype("float32")
    weight = np.eye(shape[1] * count, dtype="float32").reshape(-1, shape[1], *kernel)

    def run(*given: np.ndarray) -> np.ndarray:
        deform = by_onnx_runtime("DeformConv", pads=padding * 2, strides=strides, dilations=dilation, offset_group=groups)
        return deform(given[0], weight, given[1], np.zeros(len(weight), "float32"), *([mask] if masked else []))

    arrays = [x, offsets, mask] if masked else [x, offsets]
    attrs = {"kernel": kernel, "strides": strides, "padding": padding * 2, "dilation": dilation, "groups": groups}
    check(
        [Case(ops.deform_columns, arrays, attrs, expected=run, ulp=100, scale=10), Case(ops.deform_columns, arrays, attrs, ulp=8, scale=4)]
    )


REGIONS = np.float32([[0, 0, 9, 9], [1.3, 2.6, 7.1, 8.8], [-3, -2, 4, 30], [5, 5, 5.2, 5.1], [12, 12, 20, 20], [6, 6, 2, 2]])
IMAGES = np.int64([0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [0, 2])
def test_roi_align(mode: str, aligned: bool, samples: int) -> None:
    x = normal(2, 11, 13, 12)
    attrs = {"output_size": (3, 4), "samples": samples, "scale": 0.7, "aligned": aligned, "mode": mode}
    rois = REGIONS[:-1] if aligned else REGIONS
    images = IMAGES[: len(rois)]
    run = by_onnx_runtime(
        "RoiAlign", opset=16, output_height=3, output_width=4, sampling_ratio=samples, spatial_scale=0.7, mode=mode,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
    check(
        [
            Case(ops.roi_align, [x, rois, images], attrs, expected=run, ulp=100, scale=10),
            Case(ops.roi_align, [x, REGIONS, IMAGES], attrs, ulp=8, scale=4),
            Case(ops.roi_align, [x, rois, images], attrs, [(2, 11, S, 12), (B, 4), (B,)], {"b": len(rois), "s": 13}, ulp=8, scale=4),
        ]
    )


def test_roi_pool() -> None:
    x, rois = normal(2, 5, 13, 12), np.abs(REGIONS[:5])

    def run(x: np.ndarray, rois: np.ndarray, images: np.ndarray) -> np.ndarray:
        both = np.concatenate([images[:, None].astype("float32"), rois], 1)
        return by_onnx_runtime("MaxRoiPool", opset=21, pooled_shape=(3, 4), spatial_scale=0.5)(x, both)

    attrs = {"output_size": (3, 4), "scale": 0.5}
    cases = [Case(ops.roi_pool, [x, rois, IMAGES[:5]], attrs, expected=run, ulp=0), Case(ops.roi_pool, [x, rois, IMAGES[:5]], attrs, ulp=0)]
    check(cases)


def test_fold() -> None:
    """Against PyTorch; then sizes, channels and the kernel itself known only at run time."""
    cases = []
    for kernel, strides, padding, dilation, image in (((2, 3), (1, 1), (0, 0), (1, 1), (5, 6)), ((3, 2), (2, 3), (1, 1), (1, 2), (7, 9))):
        windows = [(n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in zip(image, kernel, strides, padding, dilation)]
        x = normal(2, 3 * kernel[0] * kernel[1], windows[0] * windows[1])
        attrs = {"image": image, "kernel": kernel, "strides": strides, "padding": padding * 2, "dilation": dilation}

        def by_torch_fold(x: np.ndarray, attrs: Any = attrs) -> np.ndarray:
            wide = torch.from_numpy(x).double()
            pads, rest = attrs["padding"][:2], (attrs["image"], attrs["kernel"], attrs["dilation"])
            return torch.nn.functional.fold(wide, *rest, pads, attrs["strides"]).float().numpy()

        cases.append(Case(ops.fold, [x], attrs, expected=by_torch_fold, scale=4))
        symbols = {"h": image[0], "k": kernel[0], "b": 2}
        unknown = {**attrs, "image": (symbol("h", 1), image[1]), "kernel": (symbol("k", 1), kernel[1])}
        cases.append(Case(ops.fold, [x], unknown, [(B, *x.shape[1:])], symbols, by_torch_fold, scale=4))
    cases.append(Case(ops.fold, [normal(1, 8, 4).astype("float16")], {"image": (5,), "kernel": (2,), "strides": (1,), "padding": (0, 0), "dilation": (1,)}, scale=4))  # fmt: skip
    check(cases)
