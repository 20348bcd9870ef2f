"""Resize at its five versions, and Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import resize_run_time
from aotc.frontends.onnx.values import Ratio
from aotc.ir.dims import Dim, floordiv
from aotc.ir.expr import Expr


def _upsample(node: Node) -> Results:
    """Scales are an attribute before opset 9 and an input after."""
    x = node.input(0)
    if node.opset >= 9 and not node.is_known(1):
        node.unsupported("scales that are known only at run time; use Resize of opset 11 or newer")
    scales = node.numbers("scales") if node.opset < 9 else _scales(node, 1)
    return _asymmetric(node, x, scales or ())


def _resize(node: Node) -> Results:
    if node.opset < 11:
        return _asymmetric(node, node.input(0), _scales(node, 1) or ())
    x = node.input(0)
    rank = node.rank(x)
    axes = [node.axis(axis, rank) for axis in node.integers("axes", range(rank))]
    if _is_for_the_run(node):
        return _at_run(node, x, axes)
    scales = _scales(node, 2)
    sizes = node.dims(3, "sizes") if not scales else None
    given: Sequence[object] = scales or sizes or ()
    if len(given) != len(axes):
        node.invalid(f"scales or sizes must have one entry for each of the {len(axes)} axes, not {len(given)}")
    shape, factors = list(node.shape(x)), [1.0 if scales else None] * rank
    common: float | None = None
    if sizes is not None:
        sizes, common = _kept_aspect(node, [node.shape(x)[axis] for axis in axes], sizes)
    for i, axis in enumerate(axes):
        if sizes is not None:
            shape[axis], factors[axis] = sizes[i], common
        elif scales:
            shape[axis], factors[axis] = _scaled(node, shape[axis], scales[i])
    coordinate = node.text("coordinate_transformation_mode", "half_pixel")
    coordinate = "half_pixel" if coordinate == "tf_half_pixel_for_nn" else coordinate
    return _call(
        node,
        x,
        shape,
        factors,
        coordinate=coordinate,
        nearest=node.text("nearest_mode", "round_prefer_floor"),
        cubic_a=node.number("cubic_coeff_a", -0.75),
        exclude_outside=node.flag("exclude_outside"),
        extrapolation=node.number("extrapolation_value", 0.0),
        roi=_roi(node, rank, axes) if coordinate == "tf_crop_and_resize" else None,
        antialias=node.flag("antialias"),
    )


def _is_for_the_run(node: Node) -> bool:
    """Whether the positions depend on what only a run knows."""
    cropping = node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    keeping = node.text("keep_aspect_ratio_policy", "stretch") != "stretch"
    return not node.is_known(2) or (cropping and not node.is_known(1)) or (keeping and not node.is_known(3))


def _at_run(node: Node, x: Expr, axes: Sequence[int]) -> Expr:
    cropping = node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    roi = resize_run_time.as_real(node, node.input(1)) if cropping else None
    scales = node.optional(2)
    if scales is not None and node.type(scales).size != 0:
        if node.type(scales).size != len(axes):
            node.invalid(f"scales must have one entry for each of the {len(axes)} axes, not {node.type(scales)}")
        return resize_run_time.resize(node, x, axes, resize_run_time.as_real(node, scales), roi)
    new = node.dims(3, "sizes") or ()
    if len(new) != len(axes):
        node.invalid(f"sizes must have one entry for each of the {len(axes)} axes, not {len(new)}")
    return resize_run_time.resize_to(node, x, axes, node.input(3), new, roi)


def _call(node: Node, x: Expr, shape: Sequence[Dim], factors: Sequence[float | None], **attrs: object) -> Expr:
    mode = node.text("mode", "nearest")
    if tuple(shape) == node.shape(x) and all(f in (None, 1.0) for f in factors) and attrs.get("roi") is None:
        return x
    return node.call(ops.resize, x, shape=tuple(shape), scales=tuple(factors), mode=mode, **attrs)


def _asymmetric(node: Node, x: Expr, scales: Sequence[float | Ratio]) -> Expr:
    """Before opset 11: positions are i / scale; nearest rounds down where the axis grows and, as ONNX Runtime does, up
    where it shrinks."""
    if len(scales) != node.rank(x):
        node.invalid(f"scales must have one entry for each axis of {node.type(x)}, not {len(scales)}")
    for nearest, chosen in (("floor", lambda s: not s < 1), ("ceil", lambda s: s < 1)):
        shape: list[Dim] = list(node.shape(x))
        factors: list[float | None] = [1.0] * len(shape)
        for axis, scale in enumerate(scales):
            if isinstance(scale, Ratio) or chosen(scale):
                shape[axis], factors[axis] = _scaled(node, shape[axis], scale)
        mode = node.text("mode", "nearest")
        if mode != "nearest":
            both = [_scaled(node, dim, scale) for dim, scale in zip(node.shape(x), scales, strict=True)]
            shape, factors = [dim for dim, _ in both], [factor for _, factor in both]
        x = _call(node, x, shape, factors, coordinate="asymmetric", nearest=nearest)
        if mode != "nearest":
            break
    return x


def _scales(node: Node, index: int) -> list[float | Ratio] | None:
    """One scale per axis, or none where they are left out or empty."""
    value = node.value(index, "scales")
    if value is None or value.size == 0:
        return None
    return [each if isinstance(each, Ratio) else float(each) for each in value.reshape(-1)]


def _scaled(node: Node, dim: Dim, scale: float | Ratio) -> tuple[Dim, float | None]:
    """The output dim and the scale that positions are computed with: floor(scale * dim), in float32 for numbers."""
    if isinstance(scale, Ratio):
        node.unsupported(f"the scale is {scale.numerator} / {scale.denominator}, and must be a number when the model is built; use sizes")
    if not scale > 0:
        node.invalid(f"scales must be above 0, not {scale}")
    if isinstance(dim, int):
        return int(np.floor(np.float32(scale) * np.float32(dim))), float(np.float32(scale))
    exact = Fraction(float(scale)).limit_denominator(1000)
    if np.float32(float(exact)) != np.float32(scale):
        exact = Fraction(float(np.float32(scale)))
    return floordiv(dim * exact.numerator, exact.denominator), float(np.float32(scale))


def _kept_aspect(node: Node, old: Sequence[Dim], sizes: Sequence[Dim]) -> tuple[tuple[Dim, ...], float | None]:
    """The sizes, and the common scale of all axes where keep_aspect_ratio_policy asks for one."""
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return tuple(sizes), None
    if policy not in ("not_larger", "not_smaller"):
        node.invalid(f"keep_aspect_ratio_policy must be stretch, not_larger or not_smaller, not {policy!r}")
    if not all(isinstance(dim, int) for dim in (*old, *sizes)):
        node.unsupported(f"keep_aspect_ratio_policy {policy} needs a fixed input shape")
    factors = [Fraction(new, dim) for new, dim in zip(sizes, old, strict=True)]  # type: ignore[arg-type]
    scale = min(factors) if policy == "not_larger" else max(factors)
    return tuple(math.floor(scale * dim + Fraction(1, 2)) for dim in old), float(scale)  # type: ignore[operator]


def _roi(node: Node, rank: int, axes: Sequence[int]) -> tuple[float, ...]:
    """Starts, then ends, of all axes."""
    roi = node.static_array(1, "roi")
    if roi is None or roi.size != 2 * len(axes):
        node.invalid(f"roi must have {2 * len(axes)} numbers, not {0 if roi is None else roi.size}")
    starts, ends = [0.0] * rank, [1.0] * rank
    for i, axis in enumerate(axes):
        starts[axis], ends[axis] = float(roi[i]), float(roi[i + len(axes)])
    return (*starts, *ends)


HANDLERS: dict[str, Handler] = {"Resize": _resize, "Upsample": _upsample}
