"""Resize whose scales, or region, are known only at run time: positions and weights are tensors, and elements are gathered.

One axis after another, as the interpolations are separable. Slower than the resize operator, whose kernel knows its scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc import ops
from aotc.frontends.onnx.node import Node
from aotc.frontends.onnx.operators.run_time import sizes
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr
from aotc.ir.types import FLOATS
from aotc.ops.base import OpDef

REAL = "float32"


@dataclass(frozen=True)
class Axis:
    """One axis to resize: its extent before and after, and float32 scalars: the scale, and the ends of the region."""

    number: int
    old: Dim
    new: Dim
    scale: Expr
    begin: Expr | None = None
    end: Expr | None = None


class Resizing:
    """Short names for arithmetic in the name of a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.mode, self.coordinate = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
        if node.flag("antialias"):
            node.unsupported("antialias with scales that are known only at run time; make them constants")

    def do(self, operator: OpDef, *args: Expr | float) -> Expr:
        return self.node.call(operator, *(self.node.constant(a, REAL) if isinstance(a, (int, float)) else a for a in args))

    def extent(self, dim: Dim) -> Expr:
        """A dim as a float32 scalar."""
        return self.node.call(ops.cast, self.node.call(ops.reshape, sizes(self.node, [dim]), shape=()), dtype=REAL)

    def positions(self, axis: Axis) -> Expr:
        """Where each new element lies among the old ones, float32[new]."""
        i = self.node.call(ops.cast, self.node.call(ops.arange, start=0, step=1, count=axis.new, dtype="int64"), dtype=REAL)
        old, new = self.extent(axis.old), self.extent(axis.new)
        several = self.do(ops.greater, new, 1.0)
        last = self.do(ops.maximum, self.do(ops.subtract, new, 1.0), 1.0)
        half = self.do(ops.subtract, self.do(ops.divide, self.do(ops.add, i, 0.5), axis.scale), 0.5)
        match self.coordinate:
            case "half_pixel" | "tf_half_pixel_for_nn":
                return half
            case "pytorch_half_pixel":
                return self.do(ops.where, several, half, 0.0)
            case "asymmetric":
                return self.do(ops.divide, i, axis.scale)
            case "align_corners":
                step = self.do(ops.divide, self.do(ops.subtract, old, 1.0), last)
                return self.do(ops.where, several, self.do(ops.multiply, i, step), 0.0)
            case "half_pixel_symmetric":
                adjusted = self.do(ops.divide, new, self.do(ops.multiply, axis.scale, old))
                offset = self.do(ops.multiply, self.do(ops.divide, old, 2.0), self.do(ops.subtract, 1.0, adjusted))
                return self.do(ops.add, offset, half)
            case "tf_crop_and_resize" if axis.begin is not None and axis.end is not None:
                return self.cropped(axis, i, self.do(ops.subtract, old, 1.0), several, last)
        self.node.invalid(f"coordinate_transformation_mode {self.coordinate!r} is unknown, or lacks its roi")

    def cropped(self, axis: Axis, i: Expr, reach: Expr, several: Expr, last: Expr) -> Expr:
        begin, end = axis.begin, axis.end
        assert begin is not None and end is not None
        step = self.do(ops.divide, self.do(ops.multiply, self.do(ops.subtract, end, begin), reach), last)
        spread = self.do(ops.add, self.do(ops.multiply, begin, reach), self.do(ops.multiply, i, step))
        middle = self.do(ops.multiply, self.do(ops.multiply, self.do(ops.add, begin, end), 0.5), reach)
        return self.do(ops.where, several, spread, middle)

    def along(self, x: Expr, axis: Axis) -> Expr:
        """``x`` resized along one axis."""
        at = self.positions(axis)
        if self.mode == "nearest":
            y = self.taken(x, axis, self.rounded(at))
        else:
            low = self.do(ops.floor, at)
            part = self.do(ops.subtract, at, low)
            taps = self.linear(part) if self.mode == "linear" else self.cubic(part)
            y = self.mixed(x, axis, low, taps)
        return self.extrapolated(y, axis, at) if self.coordinate == "tf_crop_and_resize" else y

    def rounded(self, at: Expr) -> Expr:
        match self.node.text("nearest_mode", "round_prefer_floor"):
            case "floor":
                return self.do(ops.floor, at)
            case "ceil":
                return self.do(ops.ceil, at)
            case "round_prefer_ceil":
                return self.do(ops.floor, self.do(ops.add, at, 0.5))
        return self.do(ops.ceil, self.do(ops.subtract, at, 0.5))

    def linear(self, part: Expr) -> list[tuple[int, Expr]]:
        return [(0, self.do(ops.subtract, 1.0, part)), (1, part)]

    def cubic(self, part: Expr) -> list[tuple[int, Expr]]:
        """Keys, Cubic convolution interpolation for digital image processing, 1981."""
        a = self.node.number("cubic_coeff_a", -0.75)

        def polynomial(t: Expr, *coefficients: float) -> Expr:
            value: Expr | float = coefficients[0]
            for coefficient in coefficients[1:]:
                value = self.do(ops.add, self.do(ops.multiply, value, t), coefficient)
            return value  # type: ignore[return-value]

        rest = self.do(ops.subtract, 1.0, part)
        near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
        outer, outer_rest = self.do(ops.add, part, 1.0), self.do(ops.add, rest, 1.0)
        return [
            (-1, polynomial(outer, *far)),
            (0, polynomial(part, *near)),
            (1, polynomial(rest, *near)),
            (2, polynomial(outer_rest, *far)),
        ]

    def mixed(self, x: Expr, axis: Axis, low: Expr, taps: Sequence[tuple[int, Expr]]) -> Expr:
        """The weighted sum of neighbours; those beyond an end are the end, or left out."""
        node, total, weights = self.node, None, [weight for _, weight in taps]
        if node.flag("exclude_outside"):
            last = self.do(ops.subtract, self.extent(axis.old), 1.0)
            places = [self.do(ops.add, low, float(shift)) for shift, _ in taps]
            inside = [node.call(ops.logical_and, self.do(ops.greater_equal, p, 0.0), self.do(ops.less_equal, p, last)) for p in places]
            weights = [self.do(ops.where, ok, weight, 0.0) for ok, weight in zip(inside, weights, strict=True)]
            whole = weights[0]
            for weight in weights[1:]:
                whole = node.call(ops.add, whole, weight)
            weights = [node.call(ops.divide, weight, whole) for weight in weights]
        for (shift, _), weight in zip(taps, weights, strict=True):
            part = node.call(
                ops.multiply, self.taken(x, axis, self.do(ops.add, low, float(shift))), self.spread(weight, axis, node.rank(x))
            )
            total = part if total is None else node.call(ops.add, total, part)
        assert total is not None
        return total

    def taken(self, x: Expr, axis: Axis, at: Expr) -> Expr:
        """Elements of ``x`` at whole positions, held within the axis."""
        node = self.node
        last = self.do(ops.subtract, self.extent(axis.old), 1.0)
        index = node.call(ops.cast, self.do(ops.minimum, self.do(ops.maximum, at, 0.0), last), dtype="int64")
        return node.call(ops.gather, x, index, axis=axis.number)

    def spread(self, vector: Expr, axis: Axis, rank: int) -> Expr:
        """A vector along one axis of a tensor of ``rank``."""
        return self.node.call(ops.reshape, vector, shape=tuple(axis.new if i == axis.number else 1 for i in range(rank)))

    def extrapolated(self, y: Expr, axis: Axis, at: Expr) -> Expr:
        last = self.do(ops.subtract, self.extent(axis.old), 1.0)
        outside = self.node.call(ops.logical_or, self.do(ops.less, at, 0.0), self.do(ops.greater, at, last))
        value = self.node.constant(self.node.number("extrapolation_value", 0.0), self.node.dtype(y))
        return self.node.call(ops.where, self.spread(outside, axis, self.node.rank(y)), value, y)


def resize(node: Node, x: Expr, axes: Sequence[int], scales: Expr, roi: Expr | None) -> Expr:
    """``x`` with ``axes`` scaled by float32 ``scales``, one each; ``roi`` has begins, then ends, of the axes."""
    resizing, shape = Resizing(node), node.shape(x)
    whole = node.call(ops.cast, sizes(node, [shape[axis] for axis in axes]), dtype=REAL)
    scaled = node.call(ops.floor, node.call(ops.multiply, whole, scales))
    new = node.measured(node.call(ops.cast, scaled, dtype="int64"), "the resized shape")
    return _resized(resizing, x, axes, new, scales, roi)


def resize_to(node: Node, x: Expr, axes: Sequence[int], wanted: Expr | None, new: Sequence[Dim], roi: Expr | None) -> Expr:
    """``x`` with ``axes`` of the sizes ``new``. ``wanted``: int64 sizes of which keep_aspect_ratio_policy takes one scale for all."""
    resizing, shape = Resizing(node), node.shape(x)
    old = node.call(ops.cast, sizes(node, [shape[axis] for axis in axes]), dtype=REAL)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if wanted is None or policy == "stretch":
        scales = node.call(ops.divide, node.call(ops.cast, sizes(node, new), dtype=REAL), old)
        return _resized(resizing, x, axes, new, scales, roi)
    ratios = node.call(ops.divide, node.call(ops.cast, wanted, dtype=REAL), old)
    scale = node.call(ops.min_ if policy == "not_larger" else ops.max_, ratios, axes=(0,), keepdims=True)
    rounded = node.call(ops.floor, resizing.do(ops.add, node.call(ops.multiply, old, scale), 0.5))
    new = node.measured(node.call(ops.cast, rounded, dtype="int64"), "the resized shape")
    return _resized(resizing, x, axes, new, node.call(ops.broadcast_to, scale, shape=(len(axes),)), roi)


def _resized(resizing: Resizing, x: Expr, axes: Sequence[int], new: Sequence[Dim], scales: Expr, roi: Expr | None) -> Expr:
    node, dtype = resizing.node, resizing.node.dtype(x)
    interpolates = resizing.mode != "nearest"
    y = node.call(ops.cast, x, dtype=REAL) if interpolates and dtype != REAL else x

    def scalar(vector: Expr, place: int) -> Expr:
        part = node.call(ops.slice_, vector, begins=(place,), ends=(place + 1,), steps=(1,))
        return node.call(ops.reshape, part, shape=())

    for place, axis in enumerate(axes):
        ends = (None, None) if roi is None else (scalar(roi, place), scalar(roi, place + len(axes)))
        y = resizing.along(y, Axis(axis, node.shape(x)[axis], new[place], scalar(scales, place), *ends))
    if not interpolates or dtype == REAL:
        return y
    return node.call(ops.cast, y if dtype in FLOATS else node.call(ops.round_, y), dtype=dtype)


def as_real(node: Node, x: Expr) -> Expr:
    return x if node.dtype(x) == REAL else node.call(ops.cast, x, dtype=REAL)
