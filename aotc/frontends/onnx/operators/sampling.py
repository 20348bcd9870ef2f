"""Operators that sample at computed positions, and those that put pooled or unfolded data back."""

from __future__ import annotations

from collections.abc import Sequence

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.conv import kernel_of, with_bias
from aotc.ir.dims import Dim, floordiv, minimum, product
from aotc.ir.expr import Expr
from aotc.ops.base import attribute_values
from aotc.ops.fold import FoldAttributes, window_counts

GRID_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
"""The modes of opset 16 and those of opset 20."""


def _grid_sample(node: Node) -> Results:
    mode = node.text("mode", "linear")
    if mode not in GRID_MODES:
        node.invalid(f"mode must be one of {', '.join(GRID_MODES)}, not {mode!r}")
    padding, align_corners = node.text("padding_mode", "zeros"), node.flag("align_corners")
    return node.call(ops.grid_sample, node.input(0), node.input(1), mode=GRID_MODES[mode], padding=padding, align_corners=align_corners)


def _roi_align(node: Node) -> Results:
    """Since opset 16 regions are moved by half an element unless the node says otherwise."""
    coordinates = node.text("coordinate_transformation_mode", "half_pixel") if node.opset >= 16 else "output_half_pixel"
    if coordinates not in ("half_pixel", "output_half_pixel"):
        node.invalid(f"coordinate_transformation_mode must be half_pixel or output_half_pixel, not {coordinates!r}")
    return node.call(
        ops.roi_align, node.input(0), node.input(1), _as(node, node.input(2), "int64"),
        output_size=(node.integer("output_height", 1), node.integer("output_width", 1)),
        samples=node.integer("sampling_ratio", 0), scale=node.number("spatial_scale", 1.0), mode=node.text("mode", "avg").lower(),
        aligned=coordinates == "half_pixel",
    )  # fmt: skip


def _max_roi_pool(node: Node) -> Results:
    """The first number of a region is that of its image."""
    x, regions = node.input(0), node.input(1)
    if node.rank(regions) != 2 or node.shape(regions)[1] != 5:
        node.invalid(f"takes regions [R, 5], not {node.type(regions)}")
    count = node.shape(regions)[0]

    def columns(begin: int, end: int) -> Expr:
        return node.call(ops.slice_, regions, begins=(0, begin), ends=(count, end), steps=(1, 1))

    images = node.call(ops.cast, node.call(ops.reshape, columns(0, 1), shape=(count,)), dtype="int64")
    size = node.integers("pooled_shape")
    return node.call(ops.roi_pool, x, columns(1, 5), images, output_size=size, scale=node.number("spatial_scale", 1.0))


def _deform_conv(node: Node) -> Results:
    """The windows at their offsets, then a matrix product with the weights for each group."""
    x, w, offsets, mask = node.input(0), node.input(1), node.input(2), node.optional(4)
    kernel, groups = kernel_of(node, w), node.integer("group", 1)
    ones = (1,) * len(kernel)
    arrays = [x, offsets] if mask is None else [x, offsets, mask]
    columns = node.call(
        ops.deform_columns, *arrays, kernel=kernel, strides=node.integers("strides", ones), padding=node.integers("pads", (0, 0) * len(ones)),
        dilation=node.integers("dilations", ones), groups=node.integer("offset_group", 1),
    )  # fmt: skip
    batch, outputs, units = node.shape(x)[0], node.shape(columns)[2:], node.shape(w)[0]
    depth = product(node.shape(w)[1:])
    if groups < 1 or node.shape(columns)[1] != depth * groups or floordiv(units, groups) * groups != units:
        node.invalid(f"the channels of {node.type(x)} and {node.type(w)} do not fit with {groups} groups")
    weight = node.call(ops.reshape, w, shape=(groups, floordiv(units, groups), depth))
    data = node.call(ops.reshape, columns, shape=(batch, groups, depth, product(outputs)))
    y = node.call(ops.reshape, node.call(ops.matmul, weight, data), shape=(batch, units, *outputs))
    return with_bias(node, y, 3)


def _col2im(node: Node) -> Results:
    """The shapes of image and block may be known only at run time; then it is checked that the windows are those."""
    x, image, block = node.input(0), node.dims(1, "the image's shape"), node.dims(2, "the block's shape")
    if not image or not block or len(image) != len(block) or node.rank(x) != 3:
        node.invalid(
            f"takes windows [N, channels * taps, windows], image and block with one entry per axis, not {node.type(x)}, {image}, {block}"
        )
    ones = (1,) * len(block)
    attrs = FoldAttributes(
        image, block, node.integers("strides", ones), node.integers("pads", (0, 0) * len(ones)), node.integers("dilations", ones)
    )
    if not all(isinstance(dim, int) for dim in (*image, *block, *node.shape(x)[1:])):
        taps = product(block)
        pairs = [(node.shape(x)[1], floordiv(node.shape(x)[1], taps) * taps), (node.shape(x)[2], product(window_counts(attrs)))]
        x = node.dynamic.check(x, pairs, node.origin)
    return node.call(ops.fold, x, **attribute_values(attrs))


def _max_unpool(node: Node) -> Results:
    """Values go where their indices say; the indices count in the data that was pooled, over all its axes. A given
    output_shape only adds zeros at the ends, or cuts some off."""
    x, indices = node.input(0), node.input(1)
    kernel = node.integers("kernel_shape")
    spatial = node.shape(x)[2:]
    strides, pads = node.integers("strides", (1,) * len(kernel)), node.integers("pads", (0, 0) * len(kernel))
    if len(kernel) != len(spatial) or len(strides) != len(spatial) or len(pads) != 2 * len(spatial) or node.shape(indices) != node.shape(x):
        node.invalid(f"kernel_shape {kernel}, strides, pads and the indices {node.type(indices)} must fit the data {node.type(x)}")
    pooled = [(n - 1) * s - pads[i] - pads[i + len(kernel)] + k for i, (n, s, k) in enumerate(zip(spatial, strides, kernel, strict=True))]
    shape: tuple[Dim, ...] = (*node.shape(x)[:2], *pooled)
    zeros = node.call(ops.full, shape=(product(shape),), value=0, dtype=node.dtype(x))
    flat = [node.call(ops.reshape, each, shape=(product(node.shape(x)),)) for each in (indices, x)]
    y = node.call(ops.reshape, node.call(ops.scatter_elements, zeros, *flat, axis=0), shape=shape)
    wanted = node.dims(2, "output_shape")
    return y if wanted is None else _fitted(node, y, wanted)


def _fitted(node: Node, x: Expr, shape: Sequence[Dim]) -> Expr:
    """``x`` cut at its ends, or continued with zeros, to ``shape``."""
    old = node.shape(x)
    if len(shape) != len(old):
        node.invalid(f"output_shape must have {len(old)} numbers, not {len(shape)}")
    ends = tuple(minimum(have, wanted) for have, wanted in zip(old, shape, strict=True))
    if ends != old:
        x = node.call(ops.slice_, x, begins=(0,) * len(ends), ends=ends, steps=(1,) * len(ends))
    after = tuple(wanted - end for wanted, end in zip(shape, ends, strict=True))
    if any(dim != 0 for dim in after):
        x = node.call(ops.pad, x, before=(0,) * len(after), after=after, value=0)
    return node.call(ops.reshape, x, shape=tuple(shape)) if node.shape(x) != tuple(shape) else x


def _as(node: Node, x: Expr, dtype: str) -> Expr:
    return x if node.dtype(x) == dtype else node.call(ops.cast, x, dtype=dtype)


HANDLERS: dict[str, Handler] = {
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "DeformConv": _deform_conv,
    "Col2Im": _col2im,
    "MaxUnpool": _max_unpool,
}
