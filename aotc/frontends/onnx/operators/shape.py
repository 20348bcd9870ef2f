"""Operators that move elements: reshape and its kin, slices, pads, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotc import ops
from aotc.frontends.onnx.assume import Assumption, solve_equal
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import run_time
from aotc.ir.dims import Dim, bounds, floordiv, maximum, minimum, product
from aotc.ir.expr import Expr
from aotc.ops.base import broadcast_shapes

BEYOND = 2**31 - 1  # ends from here on mean "to the end"


def _reshape(node: Node) -> Results:
    """0 keeps a dim of the input (unless allowzero), and -1 takes what is left."""
    x = node.input(0)
    if not node.is_known(1) and node.type(node.input(1)).is_static:
        return run_time.reshape(node, x, node.input(1), node.flag("allowzero"))
    wanted = node.dims(1, "the shape")
    if wanted is None:
        node.invalid("the shape is missing")
    old, shape = node.shape(x), list(wanted)
    if not node.flag("allowzero"):
        for axis, dim in enumerate(shape):
            if dim == 0:
                if axis >= len(old):
                    node.invalid(f"the 0 at place {axis} of the shape {list(wanted)} stands for a dim that {node.type(x)} lacks")
                shape[axis] = old[axis]
    free = [axis for axis, dim in enumerate(shape) if dim == -1]
    if len(free) > 1:
        node.invalid(f"the shape {list(wanted)} has more than one -1")
    if free:
        rest = product(dim for dim in shape if dim != -1)
        if rest == 0:
            node.invalid(f"the -1 in {_text(wanted)} cannot be found beside a dim of 0")
        size = product(old)
        if isinstance(size, int) and isinstance(rest, int) and size % rest:
            node.invalid(f"{node.type(x)} has {size} elements, which do not divide into {_text(wanted)}")
        shape[free[0]] = floordiv(size, rest)
    x = require_equal(node, x, product(old), product(shape), f"whether {node.type(x)} has as many elements as {_text(shape)}")
    return _reshaped(node, x, shape)


def require_equal(node: Node, x: Expr, left: Dim, right: Dim, question: str) -> Expr:
    """``x``. Two sizes that differ only where a dynamic dim says so must be equal: taken as a fact, checked at run where a run
    gives them, or refused. A kernel would else read beyond the data."""
    if left == right or (isinstance(left, int) and isinstance(right, int)):
        return x
    if node.dynamic.concerns(left, right):
        return node.dynamic.check(x, [(left, right)], node.origin)
    values = solve_equal(left, right)
    if values is None:
        node.unsupported(f"{question} is known only at run time; fix the input's shape")
    raise Assumption(values)


def _reshaped(node: Node, x: Expr, shape: Sequence[Dim]) -> Expr:
    return x if tuple(shape) == node.shape(x) else node.call(ops.reshape, x, shape=tuple(shape))


def _text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _flatten(node: Node) -> Results:
    x = node.input(0)
    axis, rank, shape = node.integer("axis", 1), node.rank(x), node.shape(x)
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis <= rank:
        node.invalid(f"axis {axis} is not in a tensor of rank {rank}")
    return _reshaped(node, x, (product(shape[:axis]), product(shape[axis:])))


def _axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """Axes, an attribute before opset 13 and an input after, counted from the front; None where they are left out."""
    axes = node.static_integers(1, "axes") if node.opset >= 13 else node.integers("axes") if node.has("axes") else None
    if axes is None:
        return None
    plain = tuple(node.axis(axis, rank) for axis in axes)
    if len(set(plain)) != len(plain):
        node.invalid(f"axes {list(axes)} name one axis twice")
    return plain


def _squeeze(node: Node) -> Results:
    x = node.input(0)
    shape = node.shape(x)
    axes = _axes(node, len(shape))
    if axes is None:
        axes = tuple(axis for axis, dim in enumerate(shape) if dim == 1)
    for axis in axes:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            node.invalid(f"axis {axis} of {node.type(x)} is not 1 and cannot be squeezed")
    return _reshaped(node, x, [dim for axis, dim in enumerate(shape) if axis not in axes])


def _unsqueeze(node: Node) -> Results:
    x = node.input(0)
    count = node.static_integers(1, "axes") if node.opset >= 13 else node.integers("axes")
    if count is None:
        node.invalid("axes are missing")
    axes = _axes(node, node.rank(x) + len(count)) or ()
    old = iter(node.shape(x))
    return _reshaped(node, x, [1 if axis in axes else next(old) for axis in range(node.rank(x) + len(axes))])


def _transpose(node: Node) -> Results:
    x = node.input(0)
    axes = node.integers("perm", tuple(reversed(range(node.rank(x)))))
    return x if axes == tuple(range(len(axes))) else node.call(ops.transpose, x, axes=axes)


def _concat(node: Node) -> Results:
    inputs = node.given()
    axis = node.axis(node.integer("axis"), node.rank(inputs[0]))
    return inputs[0] if len(inputs) == 1 else node.call(ops.concat, *inputs, axis=axis)


def _split(node: Node) -> Results:
    """Sizes are an attribute before opset 13, an input after, or equal parts of which the last may be smaller."""
    x = node.input(0)
    axis = node.axis(node.integer("axis", 0), node.rank(x))
    total, count = node.shape(x)[axis], len(node.outputs)
    sizes: Sequence[Dim] | None = node.dims(1, "split") if node.opset >= 13 else node.integers("split") if node.has("split") else None
    if sizes is None:
        if node.integer("num_outputs", count) != count:
            node.invalid(f"num_outputs is {node.integer('num_outputs')}, and there are {count} outputs")
        part = -floordiv(-total, count)
        sizes = [part] * (count - 1) + [total - part * (count - 1)]
    if len(sizes) < len(node.outputs):
        node.invalid(f"there are {len(sizes)} parts for {len(node.outputs)} outputs")
    whole = total_of(sizes)
    if isinstance(whole, int) and isinstance(total, int) and whole != total:
        node.invalid(f"parts of {_text(sizes)} do not make up axis {axis} of {node.type(x)}")
    x = require_equal(node, x, whole, total, f"whether parts of {_text(sizes)} make up axis {axis} of {node.type(x)}")
    results, begin = [], 0
    for size in sizes:
        results.append(_window(node, x, axis, begin, begin + size))
        begin = begin + size  # type: ignore[assignment]
    return results


def total_of(dims: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for dim in dims:
        total = total + dim
    return total


def _window(node: Node, x: Expr, axis: int, begin: Dim, end: Dim) -> Expr:
    shape = node.shape(x)
    begins = tuple(begin if i == axis else 0 for i in range(len(shape)))
    ends = tuple(end if i == axis else dim for i, dim in enumerate(shape))
    return node.call(ops.slice_, x, begins=begins, ends=ends, steps=(1,) * len(shape))


def _slice(node: Node) -> Results:
    """Starts and ends are attributes before opset 10 and inputs after."""
    x = node.input(0)
    shape = node.shape(x)
    axes: Sequence[int] | None
    if node.opset < 10:
        starts: Sequence[Dim] | None = node.integers("starts")
        ends: Sequence[Dim] | None = node.integers("ends")
        axes, steps = (node.integers("axes") if node.has("axes") else None), None
    else:
        axes = node.static_integers(3, "axes")
        if not all(node.is_known(i) for i in (1, 2, 4)):
            return _slice_at_run(node, x, axes)
        starts, ends = node.dims(1, "starts"), node.dims(2, "ends")
        steps = node.static_integers(4, "steps")
    if starts is None or ends is None or len(starts) != len(ends):
        node.invalid("starts and ends must be there and of one length")
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if len(axes) != len(starts) or len(steps) != len(starts) or len(starts) > len(shape):
        node.invalid(f"starts, ends, axes and steps must have one length, not {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}")
    parts: list[tuple[Dim, Dim, int]] = [(0, dim, 1) for dim in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if step == 0:
            node.invalid("a step must not be 0")
        axis = node.axis(axis, len(shape))
        parts[axis] = _normalised(start, end, step, shape[axis])
    if parts == [(0, dim, 1) for dim in shape]:
        return x
    begins, stops, strides = zip(*parts, strict=True)
    return node.call(ops.slice_, x, begins=begins, ends=stops, steps=strides)


def _slice_at_run(node: Node, x: Expr, axes: Sequence[int] | None) -> Expr:
    starts, ends = node.input(1), node.input(2)
    count = node.type(starts).size
    if not isinstance(count, int) or node.type(ends).size != count or count > node.rank(x):
        node.unsupported(f"starts and ends are {node.type(starts)} and {node.type(ends)}, and should be as many as axes")
    places = [node.axis(axis, node.rank(x)) for axis in (range(count) if axes is None else axes)]
    steps: Sequence[int] | Expr = [1] * count
    if node.optional(4) is not None:
        known = node.static_integers(4, "steps") if node.is_known(4) else None
        steps = node.input(4) if known is None else known
    return run_time.parts(node, x, places, starts, ends, steps)


def _normalised(start: Dim, end: Dim, step: int, dim: Dim) -> tuple[Dim, Dim, int]:
    """Begin and end within the axis. A symbolic start or end that may be negative is taken not to be."""
    if step > 0:
        return _clamped(start, dim, 0, dim), _clamped(end, dim, 0, dim), step
    begin, stop = _clamped(start, dim, -1, dim - 1), _clamped(end, dim, -1, dim - 1)
    return (0, 0, step) if begin == -1 else (begin, stop, step)


def _clamped(position: Dim, dim: Dim, low: int, high: Dim) -> Dim:
    """A position that counts from the end where it is negative, between ``low`` and ``high``."""
    if isinstance(position, int) and position >= BEYOND:
        return high
    if isinstance(position, int) and position < -BEYOND:
        return low
    greatest = bounds(position)[1]
    if greatest is not None and greatest < 0:
        position = position + dim
    return maximum(minimum(position, high), low)


def _pad(node: Node) -> Results:
    """Pads are an attribute before opset 11, an input after, for chosen axes since 18. Negative ones cut off."""
    x = node.input(0)
    rank = node.rank(x)
    at_run = node.opset >= 11 and not node.is_known(1)
    pads: Sequence[Dim] | None = None if at_run else node.dims(1, "pads") if node.opset >= 11 else node.integers("pads")
    axes = (node.static_integers(3, "axes") if node.opset >= 18 else None) or tuple(range(rank))
    if at_run:
        return _pad_at_run(node, x, [node.axis(axis, rank) for axis in axes])
    if pads is None or len(pads) != 2 * len(axes):
        node.invalid(f"pads must be two numbers for each of {len(axes)} axes, not {pads}")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i, axis in enumerate(axes):
        axis = node.axis(axis, rank)
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    x = _cropped(node, x, before, after)
    kept = [tuple(0 if isinstance(pad, int) and pad < 0 else pad for pad in side) for side in (before, after)]
    return _grown(node, x, kept)


def _pad_at_run(node: Node, x: Expr, axes: Sequence[int]) -> Expr:
    shape = node.shape(x)
    if node.type(node.input(1)).size != 2 * len(axes):
        node.unsupported(f"pads are {node.type(node.input(1))}, and should be two numbers for each of {len(axes)} axes")
    amounts = run_time.pad_amounts(node, node.input(1), axes, shape)
    before, after, cut_before, cut_after = (_per_axis(part, axes, len(shape)) for part in amounts)
    ends = tuple(dim - cut for dim, cut in zip(shape, cut_after, strict=True))
    x = node.call(ops.slice_, x, begins=tuple(cut_before), ends=ends, steps=(1,) * len(shape))
    return _grown(node, x, [tuple(before), tuple(after)])


def _per_axis(values: Sequence[Dim], axes: Sequence[int], rank: int) -> list[Dim]:
    result: list[Dim] = [0] * rank
    for axis, value in zip(axes, values, strict=True):
        result[axis] = value
    return result


def _grown(node: Node, x: Expr, kept: Sequence[tuple[Dim, ...]]) -> Expr:
    """``x`` with elements added before and after each axis."""
    mode = node.text("mode", "constant")
    if not any(dim != 0 for side in kept for dim in side):
        return x
    value = _pad_value(node) if mode == "constant" else 0
    if isinstance(value, (int, float)):
        return node.call(ops.pad, x, before=kept[0], after=kept[1], mode=mode, value=value)
    return _padded_with(node, x, kept[0], kept[1], value)


def _pad_value(node: Node) -> Any:
    """A number where it is known, else the expression."""
    if node.opset < 11:
        return node.number("value", 0.0)
    expr = node.optional(2)
    known = None if expr is None else node.known.get(expr)
    if expr is None:
        return 0
    return expr if known is None or known.dtype == object else known.reshape(-1)[0].item()


def _padded_with(node: Node, x: Expr, before: tuple[Dim, ...], after: tuple[Dim, ...], value: Expr) -> Expr:
    """Padding by a value that is computed: it shows where a mask of ones ends."""
    ones = node.call(ops.full, shape=node.shape(x), value=True, dtype="bool")
    inside = node.call(ops.pad, ones, before=before, after=after, value=False)
    scalar = node.call(ops.reshape, value, shape=())
    return node.call(ops.where, inside, node.call(ops.pad, x, before=before, after=after, value=0), scalar)


def _cropped(node: Node, x: Expr, before: Sequence[Dim], after: Sequence[Dim]) -> Expr:
    cuts = [[-pad if isinstance(pad, int) and pad < 0 else 0 for pad in side] for side in (before, after)]
    if not any(cuts[0]) and not any(cuts[1]):
        return x
    ends = tuple(dim - cut for dim, cut in zip(node.shape(x), cuts[1]))
    for begin, end, dim in zip(cuts[0], ends, node.shape(x)):
        if isinstance(end, int) and end < begin:
            node.invalid(f"pads {list(before)} and {list(after)} cut off more than an axis of {dim} has")
    return node.call(ops.slice_, x, begins=tuple(cuts[0]), ends=ends, steps=(1,) * len(ends))


def _expand(node: Node) -> Results:
    x = node.input(0)
    if not node.is_known(1) and node.type(node.input(1)).is_static:
        return run_time.expand(node, x, node.input(1))
    wanted = node.dims(1, "the shape")
    if wanted is None:
        node.invalid("the shape is missing")
    shape = broadcast_shapes(node.shape(x), wanted)
    return x if shape == node.shape(x) else node.call(ops.broadcast_to, x, shape=shape)


def _tile(node: Node) -> Results:
    x = node.input(0)
    repeats = node.dims(1, "repeats")
    if repeats is None or len(repeats) != node.rank(x):
        node.invalid(f"repeats must be one number for each axis of {node.type(x)}, not {repeats}")
    return x if all(count == 1 for count in repeats) else node.call(ops.tile, x, repeats=repeats)


def _depth_to_space(node: Node) -> Results:
    """DCR takes the block's place from the slow part of the channels, CRD from the fast one."""
    x, block = node.input(0), node.integer("blocksize")
    n, c, h, w = _image(node, x)
    depth, mode = floordiv(c, block * block), node.text("mode", "DCR")
    split: tuple[Dim, ...] = (n, block, block, depth, h, w) if mode == "DCR" else (n, depth, block, block, h, w)
    axes = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}.get(mode)
    if axes is None:
        node.invalid(f"mode must be DCR or CRD, not {mode!r}")
    moved = node.call(ops.transpose, node.call(ops.reshape, x, shape=split), axes=axes)
    return node.call(ops.reshape, moved, shape=(n, depth, h * block, w * block))


def _space_to_depth(node: Node) -> Results:
    x, block = node.input(0), node.integer("blocksize")
    n, c, h, w = _image(node, x)
    axes = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}.get(mode := node.text("mode", "DCR"))
    if axes is None:
        node.invalid(f"mode must be DCR or CRD, not {mode!r}")
    rows, columns = floordiv(h, block), floordiv(w, block)
    moved = node.call(ops.transpose, node.call(ops.reshape, x, shape=(n, c, rows, block, columns, block)), axes=axes)
    return node.call(ops.reshape, moved, shape=(n, c * block * block, rows, columns))


def _image(node: Node, x: Expr) -> tuple[Dim, Dim, Dim, Dim]:
    if node.rank(x) != 4 or node.integer("blocksize") < 1:
        node.invalid(f"takes data [N, C, H, W] and a blocksize of at least 1, not {node.type(x)} and {node.integer('blocksize')}")
    n, c, h, w = node.shape(x)
    return n, c, h, w


def _trilu(node: Node) -> Results:
    x = node.input(0)
    if not node.is_known(1):
        return run_time.trilu(node, x, node.input(1), node.flag("upper", True))
    k = node.static_integers(1, "k") or (0,)
    limit = 1 << 30
    return node.call(ops.trilu, x, upper=node.flag("upper", True), k=max(-limit, min(limit, k[0])))


def _center_crop_pad(node: Node) -> Results:
    """Each axis cut or padded around its centre; of an odd difference the larger half lies at the end."""
    x = node.input(0)
    shape = node.shape(x)
    wanted = node.dims(1, "the shape") or ()
    axes = [node.axis(axis, len(shape)) for axis in node.integers("axes", range(len(shape)))]
    if len(wanted) != len(axes) or any(isinstance(dim, int) and dim < 0 for dim in wanted):
        node.invalid(f"the shape must be {len(axes)} numbers of at least 0, not {list(wanted)}")
    begins: list[Dim] = [0] * len(shape)
    before, after, ends = list(begins), list(begins), list(shape)
    for axis, size in zip(axes, wanted, strict=True):
        cut, added = maximum(shape[axis] - size, 0), maximum(size - shape[axis], 0)
        begins[axis] = floordiv(cut, 2)
        ends[axis] = shape[axis] - (cut - begins[axis])
        before[axis] = floordiv(added, 2)
        after[axis] = added - before[axis]
    x = node.call(ops.slice_, x, begins=tuple(begins), ends=tuple(ends), steps=(1,) * len(shape))
    return node.call(ops.pad, x, before=tuple(before), after=tuple(after), value=0)


def _reverse_sequence(node: Node) -> Results:
    """The first ``lengths[b]`` elements of each row reversed: a gather by computed positions."""
    x, lengths = node.input(0), node.input(1)
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    shape = node.shape(x)
    if {time, batch} != {0, 1} or len(shape) < 2:
        node.invalid(f"time_axis and batch_axis must be 0 and 1, not {time} and {batch}")
    line = tuple(-1 if axis == time else 1 for axis in range(len(shape)))
    across = tuple(shape[axis] if axis == batch else 1 for axis in range(len(shape)))
    count = node.call(ops.arange, start=0, step=1, count=shape[time], dtype="int64")
    step = node.call(ops.reshape, count, shape=tuple(shape[time] if n == -1 else 1 for n in line))
    length = node.call(ops.reshape, node.call(ops.cast, lengths, dtype="int64"), shape=across)
    mirrored = node.call(ops.subtract, node.call(ops.subtract, length, node.constant(1, "int64")), step)
    index = node.call(ops.where, node.call(ops.less, step, length), mirrored, step)
    return node.call(ops.gather_elements, x, node.call(ops.broadcast_to, index, shape=shape), axis=time)


HANDLERS: dict[str, Handler] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "CenterCropPad": _center_crop_pad,
    "ReverseSequence": _reverse_sequence,
}
