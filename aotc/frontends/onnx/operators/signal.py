"""Fourier transforms, mel filters."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.frontends.onnx.dynamic import LARGEST
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.dims import Dim, floordiv
from aotc.ir.expr import Constant, Expr, Function
from aotc.ops.interpret import interpret
from aotc.ops.signal import rotations_for


def _number(node: Node, index: int, what: str) -> Dim | None:
    """An input of one number, of at least 1 where only a run tells it; None where it is left out."""
    expr = node.optional(index)
    if expr is not None and not node.is_known(index):
        return node.measured(node.call(ops.reshape, expr, shape=(1,)), what, [(1, LARGEST)])[0]
    found = node.dims(index, what)
    if found is not None and len(found) != 1:
        node.invalid(f"{what} must be one number, not {list(found)}")
    return None if found is None else found[0]


def _transform(node: Node, x: Expr, axis: int, length: Dim, inverse: bool, onesided: bool) -> Expr:
    """Along any axis but the last, whose elements are the parts of complex numbers."""
    rank = node.rank(x)
    moved = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    back = [moved.index(i) for i in range(rank)]
    if axis != rank - 2:
        x = node.call(ops.transpose, x, axes=tuple(moved))
    y = node.call(ops.fourier, x, rotations_for(node.type(x), length, node.origin), length=length, inverse=inverse, onesided=onesided)
    return y if axis == rank - 2 else node.call(ops.transpose, y, axes=tuple(back))


def _dft(node: Node) -> Results:
    """The axis is an attribute, by default 1, before opset 20 and an input, by default the last but one, after."""
    x, inverse, onesided = node.input(0), node.flag("inverse"), node.flag("onesided")
    rank = node.rank(x)
    if node.opset < 20:
        chosen: Dim = node.integer("axis", 1)
    else:
        chosen = found if (found := _number(node, 2, "the axis")) is not None else -2
    if rank < 2 or not isinstance(chosen, int):
        node.invalid(f"takes data with an axis of complex parts and a known axis to transform, not {node.type(x)} and {chosen}")
    axis = node.axis(chosen, rank)
    if axis == rank - 1:
        node.invalid(f"axis {chosen} holds the parts of complex numbers and cannot be transformed")
    length = _number(node, 1, "dft_length")
    if length is None:
        length = node.shape(x)[axis]
        length = (length - 1) * 2 if inverse and onesided else length
    return _transform(node, x, axis, length, inverse, onesided)


def _stft(node: Node) -> Results:
    """Frames, a window's weights, and the transform of each frame."""
    x, window = node.input(0), node.optional(2)
    step, length = _number(node, 1, "frame_step"), _number(node, 3, "frame_length")
    if node.rank(x) == 2:
        x = node.call(ops.reshape, x, shape=(*node.shape(x), 1))
    if node.rank(x) != 3 or step is None or (isinstance(step, int) and step < 1):
        node.invalid(f"takes signals [N, length, 1 or 2] and a frame_step of 1 or more, not {node.type(x)} and {step}")
    total = node.shape(x)[1]
    span = node.shape(window)[0] if window is not None else length if length is not None else total
    length = span if length is None else length
    frames = floordiv(total - length, step) + 1
    first = node.call(ops.arange, start=0, step=step, count=frames, dtype="int64")
    within = node.call(ops.arange, start=0, step=1, count=span, dtype="int64")
    places = node.call(ops.add, node.call(ops.reshape, first, shape=(frames, 1)), within)
    cut = node.call(ops.gather, x, places, axis=1)
    if window is not None:
        cut = node.call(ops.multiply, cut, node.call(ops.reshape, window, shape=(span, 1)))
    return _transform(node, cut, 2, length, False, node.flag("onesided", True))


def _mel_weight_matrix(node: Node) -> Results:
    """Triangular filters, evenly spaced in mel, over the bins of a spectrum: [length // 2 + 1, bins].

    As ONNX's reference has them: the edges are whole bins, and the distance between them is the range's over ``bins + 2``.
    """
    bins, length = _number(node, 0, "num_mel_bins"), _number(node, 1, "dft_length")
    if bins is None or length is None:
        node.invalid("num_mel_bins and dft_length are missing")
    dtype = dtype_of(node.integer("output_datatype", 1), f"the result of {node.origin!r}")
    rate, low, high = (node.call(ops.cast, node.call(ops.reshape, node.input(i), shape=()), dtype="float64") for i in (2, 3, 4))
    width, count = (_wide(node, dim) for dim in (length + 1, bins + 2))
    start, end = (_to_mel(node, each) for each in (low, high))
    steps = node.call(ops.arange, start=0, step=1, count=bins + 2, dtype="float64")
    mel = node.call(ops.add, start, node.call(ops.multiply, steps, node.call(ops.divide, node.call(ops.subtract, end, start), count)))
    hertz = _scaled(node, node.call(ops.subtract, _power_of_ten(node, mel), node.constant(1, "float64")), 700)
    edges = node.call(ops.floor, node.call(ops.divide, node.call(ops.multiply, hertz, width), rate))
    left, centre, right = (node.call(ops.slice_, edges, begins=(i,), ends=(bins + i,), steps=(1,)) for i in range(3))
    rows = floordiv(length, 2) + 1
    row = node.call(ops.reshape, node.call(ops.arange, start=0, step=1, count=rows, dtype="float64"), shape=(rows, 1))
    filters = node.call(ops.cast, _triangle(node, row, left, centre, right), dtype=dtype)
    if all(node.is_known(i) for i in range(5)) and node.type(filters).is_static:
        return Constant(interpret(Function((), filters), [])[0], node.origin)
    return filters


def _wide(node: Node, dim: Dim) -> Expr:
    return node.call(ops.cast, node.call(ops.dims, values=(dim,), scalar=True), dtype="float64")


def _scaled(node: Node, x: Expr, factor: float) -> Expr:
    return node.call(ops.multiply, x, node.constant(factor, "float64"))


def _to_mel(node: Node, hertz: Expr) -> Expr:
    ratio = node.call(ops.add, _scaled(node, hertz, 1 / 700), node.constant(1, "float64"))
    return _scaled(node, node.call(ops.log, ratio), 2595 / np.log(10))


def _power_of_ten(node: Node, mel: Expr) -> Expr:
    return node.call(ops.exp, _scaled(node, mel, np.log(10) / 2595))


def _triangle(node: Node, row: Expr, left: Expr, centre: Expr, right: Expr) -> Expr:
    """Rising from ``left`` to 1 at ``centre``, and falling from there to ``right``."""
    zero, one = (node.constant(value, "float64") for value in (0, 1))

    def share(above: Expr, below: Expr, whole: Expr) -> Expr:
        return node.call(ops.divide, node.call(ops.subtract, above, below), node.call(ops.maximum, whole, one))

    flat = node.call(ops.equal, left, centre)
    rise = node.call(ops.where, flat, one, share(row, left, node.call(ops.subtract, centre, left)))
    fall = share(right, row, node.call(ops.subtract, right, centre))
    up = node.call(ops.logical_and, node.call(ops.greater_equal, row, left), node.call(ops.less_equal, row, centre))
    down = node.call(ops.logical_and, node.call(ops.greater, row, centre), node.call(ops.less, row, right))
    return node.call(ops.where, up, rise, node.call(ops.where, down, fall, zero))


HANDLERS: dict[str, Handler] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weight_matrix}
