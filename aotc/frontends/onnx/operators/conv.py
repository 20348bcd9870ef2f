"""Convolutions and pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.dims import Dim, ceildiv, maximum
from aotc.ir.expr import Expr

SAME = ("SAME_UPPER", "SAME_LOWER")


def windows(node: Node, x: Expr, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilation for each spatial axis."""
    spatial = node.rank(x) - 2
    if spatial < 1 or len(kernel) != spatial:
        node.invalid(f"the kernel {list(kernel)} does not fit the {spatial} spatial axes of {node.type(x)}")
    ones = (1,) * spatial
    strides, dilation = node.integers("strides", ones), node.integers("dilations", ones)
    for name, values in (("strides", strides), ("dilations", dilation), ("kernel_shape", kernel)):
        if len(values) != spatial or min(values) < 1:
            node.invalid(f"{name} must be {spatial} numbers of at least 1, not {list(values)}")
    return strides, dilation


def padded(
    node: Node, x: Expr, kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...], value: float | None = 0.0
) -> tuple[Expr, tuple[int, ...]]:
    """The data and its padding, ``auto_pad`` resolved. Where that depends on dynamic dims, or where pads are negative,
    the data comes back padded with ``value`` (None: that cannot be)."""
    auto, spatial = node.text("auto_pad", "NOTSET"), len(kernel)
    if auto == "VALID":
        return x, (0,) * 2 * spatial
    if auto == "NOTSET":
        pads: tuple[Dim, ...] = node.integers("pads", (0,) * 2 * spatial)
        if len(pads) != 2 * spatial:
            node.invalid(f"pads must be {2 * spatial} numbers, not {list(pads)}")
    elif auto in SAME:
        sizes = node.shape(x)[2:]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
        totals = [_same_total(size, span, stride) for size, span, stride in zip(sizes, spans, strides)]
        less = [total // 2 for total in totals]
        more = [total - half for total, half in zip(totals, less)]
        pads = (*less, *more) if auto == "SAME_UPPER" else (*more, *less)
    else:
        node.invalid(f"auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, not {auto!r}")
    if all(isinstance(pad, int) and pad >= 0 for pad in pads):
        return x, pads  # type: ignore[return-value]
    if any(isinstance(pad, int) and pad < 0 for pad in pads):
        node.unsupported(f"pads must be at least 0, not {list(pads)}")
    if value is None:
        node.unsupported("the padding depends on dims that are known only at run time; fix the input's shape")
    before, after = (0, 0, *pads[:spatial]), (0, 0, *pads[spatial:])
    return node.call(ops.pad, x, before=before, after=after, value=value), (0,) * 2 * spatial


def _same_total(size: Dim, span: int, stride: int) -> Dim:
    """All padding along an axis so that there is one window for each started stride."""
    if stride == 1:
        return span - 1
    return maximum((ceildiv(size, stride) - 1) * stride + span - size, 0)


def kernel_of(node: Node, w: Expr) -> tuple[int, ...]:
    shape = node.shape(w)[2:]
    kernel = node.integers("kernel_shape", shape if all(isinstance(dim, int) for dim in shape) else None)  # type: ignore[arg-type]
    if kernel != shape:
        node.invalid(f"kernel_shape {list(kernel)} is not that of the weights {node.type(w)}")
    return kernel


def with_bias(node: Node, y: Expr, index: int) -> Expr:
    bias = node.optional(index)
    if bias is None:
        return y
    if node.rank(bias) != 1:
        node.invalid(f"the bias must have one axis, not {node.type(bias)}")
    shape = (node.shape(bias)[0], *[1] * (node.rank(y) - 2))
    return node.call(ops.add, y, node.call(ops.reshape, bias, shape=shape))


def _conv(node: Node) -> Results:
    x, w = node.input(0), node.input(1)
    kernel = kernel_of(node, w)
    strides, dilation = windows(node, x, kernel)
    x, padding = padded(node, x, kernel, strides, dilation)
    groups = node.integer("group", 1)
    y = node.call(ops.conv, x, w, strides=strides, padding=padding, dilation=dilation, groups=groups)
    return with_bias(node, y, 2)


def _conv_transpose(node: Node) -> Results:
    x, w = node.input(0), node.input(1)
    kernel = kernel_of(node, w)
    strides, dilation = windows(node, x, kernel)
    spatial = len(kernel)
    extra = node.integers("output_padding", (0,) * spatial)
    if len(extra) != spatial:
        node.invalid(f"output_padding must be {spatial} numbers, not {list(extra)}")
    padding = _transposed_padding(node, x, kernel, strides, dilation, extra)
    padding, extra = _without_negative(padding, extra)
    y = node.call(
        ops.conv_transpose, x, w, strides=strides, padding=padding, output_padding=extra, dilation=dilation,
        groups=node.integer("group", 1),
    )  # fmt: skip
    return with_bias(node, y, 2)


def _transposed_padding(
    node: Node, x: Expr, kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[int, ...]:
    """``output_shape`` and ``auto_pad`` say what to cut off; it may be negative: then elements are added."""
    auto, spatial = node.text("auto_pad", "NOTSET"), len(kernel)
    wanted = node.integers("output_shape", ())[-spatial:]
    if auto == "VALID" or (auto == "NOTSET" and not wanted):
        pads = node.integers("pads", (0,) * 2 * spatial) if auto == "NOTSET" else (0,) * 2 * spatial
        if len(pads) != 2 * spatial:
            node.invalid(f"pads must be {2 * spatial} numbers, not {list(pads)}")
        return pads
    begins, ends = [], []
    for i, size in enumerate(node.shape(x)[2:]):
        span = (kernel[i] - 1) * dilation[i] + 1
        output = wanted[i] if wanted else size * strides[i]
        total = strides[i] * (size - 1) + extra[i] + span - output
        if not isinstance(total, int):
            node.unsupported(f"output_shape {list(wanted)} needs a fixed input shape, not {node.type(x)}")
        less = max(total, 0) // 2
        more = max(total, 0) - less
        begins.append(less if auto == "SAME_UPPER" else more)
        ends.append((more if auto == "SAME_UPPER" else less) + min(total, 0))
    return (*begins, *ends)


def _without_negative(padding: tuple[int, ...], extra: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Negative padding at an end as output padding."""
    n = len(extra)
    extra = tuple(e + max(-end, 0) for e, end in zip(extra, padding[n:], strict=True))
    return (*padding[:n], *(max(end, 0) for end in padding[n:])), extra


def _pool_attributes(node: Node, x: Expr, value: float | None) -> tuple[Expr, dict[str, Any]]:
    kernel = node.integers("kernel_shape")
    strides, dilation = windows(node, x, kernel)
    x, padding = padded(node, x, kernel, strides, dilation, value)
    ceil_mode = node.flag("ceil_mode") and node.text("auto_pad", "NOTSET") not in SAME
    return x, {"kernel": kernel, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}


def _max_pool(node: Node) -> Results:
    x = node.input(0)
    dtype = np.dtype(node.dtype(x))
    if dtype.kind == "b":
        node.invalid(f"takes numbers, not {node.type(x)}")
    lowest = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
    x, attributes = _pool_attributes(node, x, None if node.wants(1) else lowest)
    if not node.wants(1):
        return node.call(ops.max_pool, x, **attributes)
    both = node.call(ops.max_pool_with_indices, x, **attributes, storage_order=node.integer("storage_order", 0))
    return [node.item(both, 0), node.item(both, 1)]


def _average_pool(node: Node) -> Results:
    include = node.flag("count_include_pad")
    x, attributes = _pool_attributes(node, node.input(0), 0.0 if include else None)
    return node.call(ops.avg_pool, x, **attributes, count_include_pad=include)


def _lp_pool(node: Node) -> Results:
    """The p-th root of the sum of p-th powers."""
    p = node.integer("p", 2)
    x, attributes = _pool_attributes(node, node.input(0), 0.0)
    total = node.call(ops.avg_pool, _power(node, x, p), **attributes, divisor_override=1)
    return _root(node, total, p)


def _power(node: Node, x: Expr, p: int) -> Expr:
    if p == 1:
        return node.call(ops.abs_, x)
    if p == 2:
        return node.call(ops.multiply, x, x)
    return node.call(ops.power, node.call(ops.abs_, x), node.constant(p, node.dtype(x)))


def _root(node: Node, x: Expr, p: int) -> Expr:
    if p == 1:
        return x
    return node.call(ops.sqrt, x) if p == 2 else node.call(ops.power, x, node.constant(1 / p, node.dtype(x)))


def _spatial_axes(node: Node, x: Expr) -> tuple[int, ...]:
    if node.rank(x) < 3:
        node.invalid(f"takes data with spatial axes, not {node.type(x)}")
    return tuple(range(2, node.rank(x)))


def _global_average_pool(node: Node) -> Results:
    x = node.input(0)
    return node.call(ops.mean, x, axes=_spatial_axes(node, x), keepdims=True)


def _global_max_pool(node: Node) -> Results:
    x = node.input(0)
    return node.call(ops.max_, x, axes=_spatial_axes(node, x), keepdims=True)


def _global_lp_pool(node: Node) -> Results:
    x, p = node.input(0), node.integer("p", 2)
    total = node.call(ops.sum_, _power(node, x, p), axes=_spatial_axes(node, x), keepdims=True)
    return _root(node, total, p)


HANDLERS: dict[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "GlobalLpPool": _global_lp_pool,
}
