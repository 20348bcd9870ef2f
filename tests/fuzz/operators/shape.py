"""Operators that move values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from tests.fuzz.builder import ALL, FLOATS, Builder, Skip, Value

Add = Callable[[Builder], object]
ANY = (*FLOATS, "int64", "int32", "uint8", "bool", "int8", "int16", "uint16", "uint32", "uint64")
SOLID = (1, 2, 3, 4)  # ranks with an axis


def _axis(g: Builder, value: Value) -> int:
    return g.integer(0, value.rank - 1) if g.flag() else -g.integer(1, value.rank)


def _permutation(g: Builder, count: int) -> list[int]:
    left = list(range(count))
    return [left.pop(g.integer(0, len(left) - 1)) for _ in range(count)]


def transpose(g: Builder) -> object:
    a = g.value(ANY)
    return g.node("Transpose", [a], perm=_permutation(g, a.rank) if a.rank else None)


def reshape(g: Builder) -> object:
    """Factors of the size, one of them perhaps -1, and 0 for what stays."""
    a = g.value(ANY)
    left, sizes = a.array.size, []
    for _ in range(g.integer(0, 3)):
        factors = [n for n in range(1, min(left, 64) + 1) if left % n == 0] or [1]
        sizes.append(g.choose(factors))
        left //= max(sizes[-1], 1)
    sizes.insert(g.integer(0, len(sizes)), left)
    if a.array.size and g.flag():
        sizes[g.integer(0, len(sizes) - 1)] = -1
    if a.array.size and sizes and a.shape and sizes[0] == a.shape[0] and g.flag():
        sizes[0] = 0
    return g.node("Reshape", [a, g.ints(*sizes)], allowzero=1 if a.array.size == 0 else None)


def flatten(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    return g.node("Flatten", [a], axis=g.integer(-a.rank, a.rank))


def squeeze(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    ones = [axis for axis, size in enumerate(a.shape) if size == 1]
    if not ones:
        raise Skip
    axes = [axis - a.rank if g.flag() else axis for axis in ones if g.choose((True, True, False))]
    return g.node("Squeeze", [a, g.ints(*axes)] if axes else [a])


def unsqueeze(g: Builder) -> object:
    a = g.value(ANY, (2, 1, 0, 3))
    count = g.integer(1, 2)
    axes = sorted({g.integer(0, a.rank + count - 1) for _ in range(count)})
    return g.node("Unsqueeze", [a, g.ints(*axes)])


def expand(g: Builder) -> object:
    a = g.value(ANY, (2, 1, 3, 0))
    target = [g.choose((2, 3, 5)) if size == 1 else g.choose((size, 1)) for size in a.shape]
    lead = [g.choose((1, 2, 3)) for _ in range(g.integer(0, 2))]
    return g.node("Expand", [a, g.ints(*lead, *target)])


def tile(g: Builder) -> object:
    a = g.value(ANY, SOLID[:3])
    return g.node("Tile", [a, g.ints(*(g.choose((1, 2, 3, 0)) for _ in a.shape))])


def concat(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    axis = _axis(g, a)
    others = []
    for _ in range(g.integer(1, 3)):
        shape = list(a.shape)
        shape[axis] = g.choose((a.shape[axis], 1, 2, 5, 0))
        others.append(g.like(a, shape))
    parts = [a, *others]
    return g.node("Concat", [parts[i] for i in _permutation(g, len(parts))], axis=axis)


def split(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    axis = _axis(g, a)
    size = a.shape[axis]
    if g.flag():
        count = g.integer(1, max(1, min(size, 4)))
        return g.node("Split", [a], outputs=count, axis=axis, num_outputs=count)
    first = g.integer(0, size)
    second = g.integer(0, size - first)
    return g.node("Split", [a, g.ints(first, second, size - first - second)], outputs=3, axis=axis)


def slice_(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    axes = [axis for axis in range(a.rank) if g.choose((True, False))] or [0]
    begins, ends, steps = [], [], []
    for axis in axes:
        size = a.shape[axis]
        steps.append(g.choose((1, 1, 2, -1, 3, -2)))
        begins.append(g.choose((0, 1, -1, size, -size, -size - 2, size + 3)))
        far = 2**31 - 1 if steps[-1] > 0 else -(2**31)  # the other one is clamped, but not by ONNX Runtime
        ends.append(g.choose((size, -1, far, 1, size + 1)))
    return g.node("Slice", [a, g.ints(*begins), g.ints(*ends), g.ints(*axes), g.ints(*steps)])


def pad(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32", "uint8", "bool"), SOLID)
    mode = g.choose(("constant", "edge", "reflect", "wrap"))
    low, high = [], []
    for size in a.shape:
        most = 2 if mode == "constant" else min(2, size - 1)
        least = -1 if mode == "constant" and size > 2 else 0
        if most < 0:
            raise Skip
        low.append(g.choose(range(least, most + 1)))
        high.append(g.choose(range(least, most + 1)))
    value = g.constant(g.choose((0, 1)), a.dtype) if mode == "constant" and g.flag() else None
    return g.node("Pad", [a, g.ints(*low, *high), value], mode=mode)


def trilu(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32", "bool"), (2, 3, 4))
    return g.node("Trilu", [a, g.constant(g.integer(-3, 3), "int64")] if g.flag() else [a], upper=g.integer(0, 1))


def eye_like(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32"), (2,))
    return g.node("EyeLike", [a], k=g.choose((0, 1, -1)), dtype=g.choose((None, TensorProto.FLOAT, TensorProto.INT64)))


def depth_to_space(g: Builder) -> object:
    block = g.choose((2, 1, 3))
    a = g.input(
        g.array(g.choose(("float32", "float64")), (g.choose((1, 2, 0)), block * block * g.choose((1, 2)), *g.shape(2, (3, 1, 2, 5))))
    )
    return g.node("DepthToSpace", [a], blocksize=block, mode=g.choose(("DCR", "CRD")))


def space_to_depth(g: Builder) -> object:
    block = g.choose((2, 1, 3))
    height, width = (block * g.choose((1, 2, 3)) for _ in range(2))
    return g.node("SpaceToDepth", [g.input(g.array("float32", (g.choose((1, 2, 0)), g.choose((1, 3)), height, width)))], blocksize=block)


def reverse_sequence(g: Builder) -> object:
    a = g.value(("float32", "int64", "bool", "float64", "uint8"), (2, 3, 4), lambda v: v.shape[0] > 0 and v.shape[1] > 0)
    time = g.integer(0, 1)
    lengths = g.rng.integers(1, a.shape[time] + 1, a.shape[1 - time]).astype(np.int64)
    return g.node("ReverseSequence", [a, g.constant(lengths) if g.flag() else g.input(lengths)], time_axis=time, batch_axis=1 - time)


def constant_of_shape(g: Builder) -> object:
    """The shape of a tensor, computed on, filled."""
    a = g.value(ALL, (2, 1, 3))
    (shape,) = g.node("Shape", [a])
    return g.node("ConstantOfShape", [shape])


def size_of(g: Builder) -> object:
    return g.node("Size", [g.value(ALL)])


def computed_reshape(g: Builder) -> object:
    """Shape, Gather, Concat and Reshape, as exporters write a flattening that keeps the batch."""
    a = g.value(ANY, (2, 3, 4), lambda v: 0 not in v.shape)
    (shape,) = g.node("Shape", [a])
    (batch,) = g.node("Gather", [shape, g.constant([g.integer(0, a.rank - 1)], "int64")], axis=0)
    (joined,) = g.node("Concat", [batch, g.ints(-1)], axis=0)
    return g.node("Reshape", [a, joined])


def range_(g: Builder) -> object:
    dtype = g.choose(("int64", "float32", "int32", "float64"))
    start, limit, delta = g.choose(((0, 7, 1), (1, 10, 3), (5, -4, -2), (3, 3, 1)))
    return g.node("Range", [g.constant(number, dtype) for number in (start, limit, delta)])


def center_crop_pad(g: Builder) -> object:
    a = g.value(("float32", "int64"), (2, 3), lambda v: 0 not in v.shape)
    return g.node("CenterCropPad", [a, g.ints(*(g.choose((2, 5, 3, 8)) for _ in a.shape))])


OPERATORS: dict[str, Add] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Expand": expand,
    "Tile": tile,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Trilu": trilu,
    "EyeLike": eye_like,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "ReverseSequence": reverse_sequence,
    "ConstantOfShape": constant_of_shape,
    "Size": size_of,
    "Shape, Gather, Concat, Reshape": computed_reshape,
    "Range": range_,
    "CenterCropPad": center_crop_pad,
}
