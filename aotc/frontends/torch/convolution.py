"""Recipes of ATen's convolutions, pools and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, rank_of, shape_of
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr

aten = torch.ops.aten


def _per_axis(values: Any, count: int) -> tuple[int, ...]:
    """torch's lists of sizes, where one value stands for all axes."""
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    return values * count if len(values) == 1 else values


def aten_convolution(
    b: Builder,
    x: Expr,
    weight: Expr,
    bias: Expr | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Expr:
    count = rank_of(weight) - 2
    pads = _per_axis(padding, count) * 2
    sizes = {"strides": _per_axis(stride, count), "padding": pads, "dilation": _per_axis(dilation, count), "groups": groups}
    batched = rank_of(x) == count + 2
    x = x if batched else b.reshape(x, (1, *shape_of(x)))
    if transposed:
        y = b.emit(ops.conv_transpose, x, weight, output_padding=_per_axis(output_padding, count), **sizes)
    else:
        y = b.emit(ops.conv, x, weight, **sizes)
    if bias is not None:
        y = b.emit(ops.add, y, b.reshape(bias, (*shape_of(bias), *(1,) * count)))
    return y if batched else b.reshape(y, shape_of(y)[1:])


def _forward_convolution(count: int) -> Recipe:
    def recipe(
        b: Builder, x: Expr, weight: Expr, bias: Expr | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Expr:
        return aten_convolution(
            b, x, weight, bias, _per_axis(stride, count), _per_axis(padding, count), _per_axis(dilation, count), False, (0,), groups
        )

    return recipe


def _same_convolution(count: int) -> Recipe:
    """Padding by name: ``valid``, or ``same``, whose odd element goes to the end."""

    def recipe(
        b: Builder,
        x: Expr,
        weight: Expr,
        bias: Expr | None = None,
        stride: Any = 1,
        padding: str = "valid",
        dilation: Any = 1,
        groups: int = 1,
    ) -> Expr:
        steps = _per_axis(dilation, count)
        total = [step * (int(size) - 1) for step, size in zip(steps, shape_of(weight)[2:], strict=True)]  # type: ignore[arg-type]
        if padding == "valid":
            total = [0] * count
        if all(pad % 2 == 0 for pad in total):
            return _forward_convolution(count)(b, x, weight, bias, stride, [pad // 2 for pad in total], dilation, groups)
        free = rank_of(x) - count
        x = b.emit(ops.pad, x, before=(0,) * free + tuple(t // 2 for t in total), after=(0,) * free + tuple(t - t // 2 for t in total))
        return _forward_convolution(count)(b, x, weight, bias, stride, 0, dilation, groups)

    return recipe


def _transposed_convolution(count: int) -> Recipe:
    def recipe(
        b: Builder,
        x: Expr,
        weight: Expr,
        bias: Expr | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Expr:
        sizes = [_per_axis(each, count) for each in (stride, padding, dilation, output_padding)]
        return aten_convolution(b, x, weight, bias, sizes[0], sizes[1], sizes[2], True, sizes[3], groups)

    return recipe


# Pools: torch also takes tensors without the batch axis, which is added and taken away. -----------------------------


def _batched(b: Builder, x: Expr, count: int, build: Callable[[Expr], Expr]) -> Expr:
    if rank_of(x) == count + 2:
        return build(x)
    y = build(b.reshape(x, (1, *shape_of(x))))
    return b.reshape(y, shape_of(y)[1:])


def _window(x: Expr, kernel: Any, stride: Any, padding: Any, count: int, clip: bool) -> dict[str, Any]:
    """``clip``, for ceil mode: a window may be longer than its axis, and then takes what there is."""
    sizes, pads = _per_axis(kernel, count), _per_axis(padding, count)
    steps = _per_axis(stride, count) if stride not in ([], (), None) else sizes
    if clip and not any(pads):
        lengths = shape_of(x)[rank_of(x) - count :]
        sizes = tuple(min(k, n) if isinstance(n, int) and n > 0 else k for k, n in zip(sizes, lengths, strict=True))
    return {"kernel": sizes, "strides": steps, "padding": pads * 2}


def _max_pool(count: int) -> Recipe:
    def recipe(b: Builder, x: Expr, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Expr:
        window = _window(x, kernel, stride, padding, count, ceil_mode and dilation in (1, [1] * count))
        dilations = _per_axis(dilation, count)
        return _batched(b, x, count, lambda x: b.emit(ops.max_pool, x, **window, dilation=dilations, ceil_mode=ceil_mode))

    return recipe


def _max_pool_with_indices(count: int) -> Recipe:
    """torch's indices count within one channel; ours within the whole tensor."""

    def recipe(b: Builder, x: Expr, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
        if 1 not in b.used_outputs:
            return _max_pool(count)(b, x, kernel, stride, padding, dilation, ceil_mode), None
        batched = x if rank_of(x) == count + 2 else b.reshape(x, (1, *shape_of(x)))
        window = _window(x, kernel, stride, padding, count, ceil_mode and dilation in (1, [1] * count))
        both = b.emit(ops.max_pool_with_indices, batched, **window, dilation=_per_axis(dilation, count), ceil_mode=ceil_mode)
        values, indices = b.item(both, 0), b.item(both, 1)
        indices = b.emit(ops.modulo, indices, b.tensor(product(shape_of(batched)[2:]), "int64"))
        if batched is not x:
            values, indices = b.reshape(values, shape_of(values)[1:]), b.reshape(indices, shape_of(indices)[1:])
        return values, indices

    return recipe


def _avg_pool(count: int) -> Recipe:
    def recipe(
        b: Builder,
        x: Expr,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:
        window = _window(x, kernel, stride, padding, count, ceil_mode)
        how = {
            "dilation": (1,) * count,
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
            "divisor_override": divisor_override,
        }
        return _batched(b, x, count, lambda x: b.emit(ops.avg_pool, x, **window, **how))

    return recipe


def _adaptive_avg_pool(count: int) -> Recipe:
    def recipe(b: Builder, x: Expr, output_size: Any) -> Expr:
        sizes = _per_axis(output_size, count)
        if all(size == 1 for size in sizes):
            return b.emit(ops.mean, x, axes=tuple(range(rank_of(x) - count, rank_of(x))), keepdims=True)
        return _batched(b, x, count, lambda x: b.emit(ops.adaptive_avg_pool, x, output_size=sizes))

    return recipe


def _adaptive_max_pool(count: int) -> Recipe:
    def recipe(b: Builder, x: Expr, output_size: Any) -> Any:
        if 1 in b.used_outputs:
            raise b.unsupported("the indices of an adaptive max pool")
        sizes = _per_axis(output_size, count)
        return _batched(b, x, count, lambda x: b.emit(ops.adaptive_max_pool, x, output_size=sizes)), None

    return recipe


# Resizing -----------------------------------------------------------------------------------------------------------


def _resized(b: Builder, x: Expr, factors: Sequence[float | None], **how: Any) -> Expr:
    """``factors`` of the spatial axes, where torch uses them in place of output size / input size."""
    shape = b.shape
    scales = (None,) * (len(shape) - len(factors)) + tuple(None if factor is None else float(factor) for factor in factors)
    return b.emit(ops.resize, x, shape=shape, scales=scales, **how)


def _factors(given: Any, count: int) -> list[float | None]:
    return [None] * count if not given else [each if each is None else float(each) for each in given]


LINEAR = {"mode": "linear"}
NEAREST = {"mode": "nearest", "coordinate": "asymmetric", "nearest": "floor"}
NEAREST_EXACT = {"mode": "nearest", "coordinate": "half_pixel", "nearest": "round_prefer_ceil"}
CUBIC = {"mode": "cubic", "cubic_a": -0.75}
ANTIALIASED_LINEAR = {"mode": "linear", "antialias": True, "exclude_outside": True}
ANTIALIASED_CUBIC = {"mode": "cubic", "cubic_a": -0.5, "antialias": True, "exclude_outside": True}


def _nearest(count: int, how: dict[str, Any]) -> Recipe:
    """Both forms: (x, output_size, scale_factors) and (x, output_size, scale of each axis)."""

    def recipe(b: Builder, x: Expr, output_size: Any, *scales: Any, **named: Any) -> Expr:
        given = _scale_list(scales, named)
        return _resized(b, x, _factors(given, count), **how)

    return recipe


def _smooth(count: int, how: dict[str, Any]) -> Recipe:
    """(x, output_size, align_corners, scale_factors) or one scale per axis in place of the last."""

    def recipe(b: Builder, x: Expr, output_size: Any, align_corners: bool, *scales: Any, **named: Any) -> Expr:
        given = [None] * count if align_corners else _factors(_scale_list(scales, named), count)
        return _resized(b, x, given, coordinate="align_corners" if align_corners else "half_pixel", **how)

    return recipe


def _scale_list(scales: tuple[Any, ...], named: dict[str, Any]) -> Any:
    values = [*scales, *named.values()]
    return values[0] if len(values) == 1 and isinstance(values[0], (list, tuple)) else [v for v in values if v is not None] and values


def aten_pixel_shuffle(b: Builder, x: Expr, factor: int) -> Expr:
    """[.., C * r * r, H, W] to [.., C, H * r, W * r]."""
    *batch, channels, height, width = shape_of(x)
    n, r = len(batch), factor
    split = b.reshape(x, (*batch, channels // (r * r), r, r, height, width))
    return b.reshape(b.transpose(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2]), b.shape)


def aten_pixel_unshuffle(b: Builder, x: Expr, factor: int) -> Expr:
    *batch, channels, height, width = shape_of(x)
    n, r = len(batch), factor
    split = b.reshape(x, (*batch, channels, height // r, r, width // r, r))
    return b.reshape(b.transpose(split, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), b.shape)


def aten_channel_shuffle(b: Builder, x: Expr, groups: int) -> Expr:
    batch, channels, *spatial = shape_of(x)
    split = b.reshape(x, (batch, groups, channels // groups, *spatial))
    return b.reshape(b.transpose(split, [0, 2, 1, *range(3, len(spatial) + 3)]), shape_of(x))


def aten_unfold(b: Builder, x: Expr, dimension: int, size: int, step: int) -> Expr:
    """Windows of ``size`` along an axis, each ``step`` further, as a new last axis."""
    shape = shape_of(x)
    if not shape:
        return b.reshape(x, (1,))
    axis = dimension % len(shape)
    count: Dim = b.shape[axis]
    begins = b.reshape(b.emit(ops.arange, start=0, step=step, count=count, dtype="int64"), (count, 1))
    places = b.emit(ops.add, begins, b.constant(list(range(size)), "int64"))
    windows = b.emit(ops.gather, x, places, axis=axis)
    order = [i for i in range(len(shape) + 1) if i != axis + 1]
    return b.transpose(windows, [*order, axis + 1])


def _rows(table: dict[str, Recipe]) -> dict[Any, Recipe]:
    """Recipes by ATen operator, from ``name.overload``; names that this torch lacks are left out."""
    rows: dict[Any, Recipe] = {}
    for name, recipe in table.items():
        packet, overload = name.split(".")
        operator = getattr(getattr(aten, packet, None), overload, None)
        if operator is not None:
            rows[operator] = recipe
    return rows


def _of_each_rank(names: str, make: Callable[[int], Recipe]) -> dict[str, Recipe]:
    return {names.format(n=n): make(n) for n in (1, 2, 3)}


def _both_forms(name: str, recipe: Recipe) -> dict[str, Recipe]:
    return {f"{name}.default": recipe, f"{name}.vec": recipe}


RECIPES: dict[Any, Recipe] = _rows(
    {
        "convolution.default": aten_convolution,
        **_of_each_rank("conv{n}d.default", _forward_convolution),
        **_of_each_rank("conv{n}d.padding", _same_convolution),
        "conv_transpose1d.default": _transposed_convolution(1),
        "conv_transpose2d.input": _transposed_convolution(2),
        "conv_transpose3d.input": _transposed_convolution(3),
        **_of_each_rank("max_pool{n}d.default", _max_pool),
        **_of_each_rank("max_pool{n}d_with_indices.default", _max_pool_with_indices),
        **_of_each_rank("avg_pool{n}d.default", _avg_pool),
        **_of_each_rank("adaptive_avg_pool{n}d.default", _adaptive_avg_pool),
        "_adaptive_avg_pool2d.default": _adaptive_avg_pool(2),
        "_adaptive_avg_pool3d.default": _adaptive_avg_pool(3),
        **_of_each_rank("adaptive_max_pool{n}d.default", _adaptive_max_pool),
        **{key: r for n in (1, 2, 3) for key, r in _both_forms(f"upsample_nearest{n}d", _nearest(n, NEAREST)).items()},
        **{key: r for n in (1, 2, 3) for key, r in _both_forms(f"_upsample_nearest_exact{n}d", _nearest(n, NEAREST_EXACT)).items()},
        **_both_forms("upsample_linear1d", _smooth(1, LINEAR)),
        **_both_forms("upsample_bilinear2d", _smooth(2, LINEAR)),
        **_both_forms("upsample_trilinear3d", _smooth(3, LINEAR)),
        **_both_forms("upsample_bicubic2d", _smooth(2, CUBIC)),
        **_both_forms("_upsample_bilinear2d_aa", _smooth(2, ANTIALIASED_LINEAR)),
        **_both_forms("_upsample_bicubic2d_aa", _smooth(2, ANTIALIASED_CUBIC)),
        "pixel_shuffle.default": aten_pixel_shuffle,
        "pixel_unshuffle.default": aten_pixel_unshuffle,
        "channel_shuffle.default": aten_channel_shuffle,
        "native_channel_shuffle.default": aten_channel_shuffle,
        "unfold.default": aten_unfold,
    }
)
