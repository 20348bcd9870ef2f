"""Fourier transforms, mel filters."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.dims import Dim, floordiv
from aotc.ir.expr import Constant, Expr
from aotc.ops.signal import rotations_for


def _number(node: Node, index: int, what: str) -> Dim | None:
    """An input of one number; None where it is left out."""
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
    if node.rank(x) != 3 or not isinstance(step, int) or step < 1:
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
    """Triangular filters, evenly spaced in mel, over the bins of a spectrum; all inputs are known."""
    bins, length, rate, low, high = (node.static_array(i, name) for i, name in enumerate(("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")))  # fmt: skip
    values = [each.reshape(-1)[0].item() for each in (bins, length, rate, low, high) if each is not None and each.size == 1]
    if len(values) != 5 or values[0] < 1 or values[1] < 1 or values[2] < 1:
        node.invalid("takes one number for each of num_mel_bins, dft_length, sample_rate and the two edges")
    dtype = dtype_of(node.integer("output_datatype", 1), f"the result of {node.origin!r}")
    return Constant(mel_filters(*values).astype(dtype), node.origin)


def mel_filters(bins: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """[length // 2 + 1, bins], as ONNX's reference computes them: edges are whole bins, and the distance between them is
    the range's over ``bins + 2``."""
    edges_mel = 2595 * np.log10(1 + np.array([low, high]) / 700)
    centres = edges_mel[0] + np.arange(bins + 2) * (edges_mel[1] - edges_mel[0]) / (bins + 2)
    points = ((length + 1) * 700 * (10 ** (centres / 2595) - 1) // rate).astype(int)
    result = np.zeros((length // 2 + 1, bins))
    row = np.arange(length // 2 + 1)
    for i, (left, centre, right) in enumerate(zip(points[:-2], points[1:-1], points[2:], strict=True)):
        rising, falling = (row >= left) & (row <= centre), (row >= centre) & (row < right)
        result[rising, i] = (row[rising] - left) / (centre - left) if centre > left else 1
        if right > centre:
            result[falling, i] = (right - row[falling]) / (right - centre)
    return result


HANDLERS: dict[str, Handler] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weight_matrix}
