"""Operators in many shapes, odd, tiny and large, in both precisions, for every board: what ``python -m tests.cuda run`` runs.

Right values are PyTorch's, in float64. Boards take turns, so that each schedule meets GPUs with and without tensor cores and
asynchronous copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.ir.dims import Dim, symbol
from aotc.ir.expr import Expr, Function, Var
from aotc.ir.types import TensorType
from aotc.ops.byte_products import BLOCK
from aotc.passes.byte_layout import blocked_bytes, conv_weight, input_block
from tests.cuda.corpus import Subject

BOARDS = ("jetson-orin", "jetson-xavier", "jetson-thor", "jetson-nano")
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class ShapeCase:
    """A subject on a board. ``symbols`` names dims that are known only at run time: (array, axis, name)."""

    subject: Subject
    board: str
    symbols: tuple[tuple[int, int, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.subject.name} on {self.board.removeprefix('jetson-')}"

    def function(self) -> Function:
        params = []
        for number, array in enumerate(self.subject.arrays):
            shape: list[Dim] = list(array.shape)
            for which, axis, name in self.symbols:
                if which == number:
                    shape[axis] = symbol(name, 1)
            params.append(Var(f"x{number}", TensorType(tuple(shape), str(array.dtype))))
        return Function(tuple(params), self.subject.body(*params), "test", primitive=True)

    def values(self) -> dict[str, int]:
        return {name: self.subject.arrays[which].shape[axis] for which, axis, name in self.symbols}


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def cases() -> list[ShapeCase]:
    boards = itertools.cycle(BOARDS)
    found = [ShapeCase(subject, next(boards), symbols) for subject, symbols in _subjects()]
    assert len({case.name for case in found}) == len(found)
    return found


Cases = Iterator[tuple[Subject, tuple[tuple[int, int, str], ...]]]


def _subjects() -> Cases:
    for family in (_products, _convolutions, _blocked_convolutions, _depthwise, _transposed, _attention, _rowwise, _reductions, _pools, _elementwise, _moves, _sizes_at_run_time, _pairs, _bytes):  # fmt: skip
        for item in family():
            yield item if isinstance(item, tuple) else (item, ())


_PRODUCTS = (
    (1, 4, 4, 4), (1, 7, 5, 9), (1, 16, 16, 16), (1, 33, 70, 20), (1, 64, 64, 64), (1, 128, 64, 128), (1, 65, 129, 67), (1, 8, 1024, 8),
    (1, 5, 2048, 40), (1, 256, 96, 24), (1, 24, 96, 256), (1, 1, 64, 100), (1, 1, 300, 7), (1, 2, 128, 64), (1, 3, 65, 33), (1, 100, 27, 130),
    (1, 197, 64, 192), (3, 17, 24, 40), (12, 33, 32, 33), (2, 64, 40, 8), (4, 1, 32, 50), (1, 512, 8, 512), (1, 31, 1000, 31),
)  # fmt: skip


def _products() -> Iterator[Subject]:
    for (batch, m, k, n), dtype in itertools.product(_PRODUCTS, DTYPES):
        outer = () if batch == 1 else (batch,)
        a, b = normal(*outer, m, k, dtype=dtype), normal(*outer, k, n, dtype=dtype, seed=1)
        yield Subject(f"matmul {batch}x{m}x{k}x{n} {dtype}", (a, b), ops.matmul, torch.matmul)
    for (m, k, n), dtype in itertools.product(((1, 64, 10), (16, 48, 80), (49, 128, 65), (130, 36, 34)), DTYPES):
        x, w, bias = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1), normal(n, dtype=dtype, seed=2)
        yield Subject(f"dense, bias, gelu {m}x{k}x{n} {dtype}", (x, w, bias), lambda x, w, b: ops.gelu(ops.add(ops.dense(x, w), b)), lambda x, w, b: F.gelu(F.linear(x, w, b)))  # fmt: skip


# batch, channels, height, width, outputs, kernel, stride, pad, dilation, groups
_CONVOLUTIONS = (
    (1, 1, 1, 1, 1, 1, 1, 0, 1, 1), (1, 3, 17, 15, 8, 3, 2, 1, 1, 1), (2, 3, 32, 30, 16, 7, 2, 3, 1, 1), (1, 16, 14, 14, 32, 1, 1, 0, 1, 1),
    (1, 16, 14, 14, 24, 3, 1, 1, 1, 1), (1, 20, 9, 9, 36, 3, 1, 1, 1, 1), (2, 8, 12, 11, 8, 3, 1, 2, 2, 1), (1, 64, 7, 7, 64, 3, 1, 1, 1, 1),
    (1, 128, 7, 7, 96, 1, 1, 0, 1, 1), (1, 12, 10, 10, 18, 3, 1, 1, 1, 3), (1, 32, 8, 8, 32, 3, 2, 1, 1, 8), (1, 5, 4, 4, 7, 5, 1, 2, 1, 1),
    (3, 6, 5, 7, 10, 2, 1, 0, 1, 1), (1, 48, 28, 28, 16, 1, 2, 0, 1, 1), (1, 8, 40, 3, 40, 3, 1, 1, 1, 1),
)  # fmt: skip


def _convolutions() -> Iterator[Subject]:
    for (n, c, h, w, o, k, s, p, d, g), dtype in itertools.product(_CONVOLUTIONS, DTYPES):
        x, weight, bias = (
            normal(n, c, h, w, dtype=dtype),
            normal(o, c // g, k, k, dtype=dtype, seed=1),
            normal(o, 1, 1, dtype=dtype, seed=2),
        )

        def body(x: Expr, w: Expr, b: Expr, s: int = s, p: int = p, d: int = d, g: int = g) -> Expr:
            return ops.relu(ops.add(ops.conv(x, w, strides=(s, s), padding=(p,) * 4, dilation=(d, d), groups=g), b))

        def right(x: Any, w: Any, b: Any, s: int = s, p: int = p, d: int = d, g: int = g) -> Any:
            return torch.relu(F.conv2d(x, w, b.flatten(), s, p, d, g))

        yield Subject(f"conv {n}x{c}x{h}x{w} to {o}, {k} s{s} p{p} d{d} g{g} {dtype}", (x, weight, bias), body, right)
    for dtype in DTYPES:
        yield Subject(f"conv of one axis {dtype}", (normal(2, 12, 50, dtype=dtype), normal(20, 12, 5, dtype=dtype, seed=1)), lambda x, w: ops.conv(x, w, strides=(2,), padding=(2, 2), dilation=(1,)), lambda x, w: F.conv1d(x, w, None, 2, 2))  # fmt: skip
        yield Subject(f"conv of three axes {dtype}", (normal(1, 4, 5, 6, 7, dtype=dtype), normal(8, 4, 3, 3, 3, dtype=dtype, seed=1)), lambda x, w: ops.conv(x, w, strides=(1, 1, 1), padding=(1,) * 6, dilation=(1, 1, 1)), lambda x, w: F.conv3d(x, w, None, 1, 1))  # fmt: skip


# batch, channels, size, outputs, kernel, stride, pad
_BLOCKED = (
    (1, 8, 9, 8, 1, 1, 0), (1, 64, 14, 64, 3, 1, 1), (2, 32, 9, 24, 1, 1, 0), (1, 16, 13, 32, 3, 2, 1), (1, 128, 7, 128, 3, 1, 1),
    (1, 256, 5, 48, 1, 1, 0), (1, 32, 28, 64, 1, 2, 0), (1, 24, 20, 40, 5, 1, 2), (4, 16, 6, 16, 3, 1, 1), (1, 512, 4, 64, 3, 1, 1),
)  # fmt: skip


def _in_blocks(x: np.ndarray) -> np.ndarray:
    """[N, C, H, W] in blocks of eight channels."""
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // 8, 8, h, w).transpose(0, 1, 3, 4, 2))


def _torch_plain(x: Any) -> Any:
    return x.permute(0, 1, 4, 2, 3).flatten(1, 2)


def _torch_blocked(x: Any) -> Any:
    return x.unflatten(1, (-1, 8)).permute(0, 1, 3, 4, 2).contiguous()


def _blocked_convolutions() -> Iterator[Subject]:
    for (n, c, h, o, k, s, p), dtype in itertools.product(_BLOCKED, DTYPES):
        size = (h + 2 * p - k) // s + 1
        x, more = _in_blocks(normal(n, c, h, h, dtype=dtype)), _in_blocks(normal(n, o, size, size, dtype=dtype, seed=2))
        weight = normal(o // 8, c // 8, k, k, 8, 8, dtype=dtype, seed=1)

        def body(x: Expr, w: Expr, more: Expr, s: int = s, p: int = p, o: int = o) -> Expr:
            conv = ops.conv(x, w, strides=(s, s), padding=(p,) * 4, dilation=(1, 1), channel_block=8, out_channels=o)
            return ops.relu(ops.add(conv, more))

        def right(x: Any, w: Any, more: Any, s: int = s, p: int = p) -> Any:
            plain = w.permute(0, 5, 1, 4, 2, 3).flatten(0, 1).flatten(1, 2)
            return torch.relu(_torch_blocked(F.conv2d(_torch_plain(x), plain, None, s, p)) + more)

        yield Subject(f"conv in blocks {n}x{c}x{h} to {o}, {k} s{s} {dtype}", (x, weight, more), body, right)


def _depthwise() -> Iterator[Subject]:
    for (c, h, k, s), dtype in itertools.product(((8, 12, 3, 1), (24, 15, 3, 2), (40, 7, 5, 1), (3, 9, 3, 1), (144, 14, 3, 1)), DTYPES):
        x, w = normal(1, c, h, h, dtype=dtype), normal(c, 1, k, k, dtype=dtype, seed=1)

        def body(x: Expr, w: Expr, c: int = c, k: int = k, s: int = s) -> Expr:
            return ops.clip(ops.conv(x, w, strides=(s, s), padding=(k // 2,) * 4, dilation=(1, 1), groups=c), minimum=0.0, maximum=6.0)

        def right(x: Any, w: Any, c: int = c, k: int = k, s: int = s) -> Any:
            return F.conv2d(x, w, None, s, k // 2, 1, c).clamp(0, 6)

        yield Subject(f"depthwise conv {c}x{h}, {k} s{s} {dtype}", (x, w), body, right)
        if c % 8 == 0:
            blocked = np.ascontiguousarray(w[:, 0].reshape(c // 8, 8, k, k).transpose(0, 2, 3, 1))

            def in_blocks(x: Expr, w: Expr, c: int = c, k: int = k, s: int = s) -> Expr:
                return ops.conv(x, w, strides=(s, s), padding=(k // 2,) * 4, dilation=(1, 1), groups=c, channel_block=8, out_channels=c)

            def right_in_blocks(x: Any, w: Any, c: int = c, k: int = k, s: int = s) -> Any:
                plain = w.permute(0, 3, 1, 2).reshape(c, 1, k, k)
                return _torch_blocked(F.conv2d(_torch_plain(x), plain, None, s, k // 2, 1, c))

            yield Subject(f"depthwise conv in blocks {c}x{h}, {k} s{s} {dtype}", (_in_blocks(x), blocked), in_blocks, right_in_blocks)


def _transposed() -> Iterator[Subject]:
    shapes = (
        (8, 7, 12, 4, 2, 1, 0, 1),
        (8, 5, 6, 3, 2, 1, 1, 1),
        (8, 6, 4, 2, 2, 0, 0, 2),
        (16, 9, 16, 4, 4, 0, 0, 1),
        (5, 6, 7, 3, 1, 1, 0, 1),
    )
    for (c, h, o, k, s, p, more, g), dtype in itertools.product(shapes, DTYPES):
        x, w = normal(2, c, h, h, dtype=dtype), normal(c, o, k, k, dtype=dtype, seed=1)

        def body(x: Expr, w: Expr, s: int = s, p: int = p, more: int = more, g: int = g) -> Expr:
            return ops.conv_transpose(x, w, strides=(s, s), padding=(p,) * 4, dilation=(1, 1), groups=g, output_padding=(more, more))

        def right(x: Any, w: Any, s: int = s, p: int = p, more: int = more, g: int = g) -> Any:
            return F.conv_transpose2d(x, w, None, s, p, more, g)

        yield Subject(f"transposed conv {c}x{h} to {o * g}, {k} s{s} p{p}+{more} g{g} {dtype}", (x, w), body, right)


def _attention() -> Iterator[Subject]:
    shapes = ((1, 2, 16, 16, 8), (1, 4, 33, 33, 32), (2, 3, 7, 40, 16), (1, 2, 128, 128, 64), (1, 1, 1, 5, 4), (2, 1, 50, 197, 48))
    for (batch, heads, rows, keys, width), dtype in itertools.product(shapes, DTYPES):
        q, k, v = (normal(batch, length, heads, width, dtype=dtype, seed=i) for i, length in enumerate((rows, keys, keys)))
        mask, size = normal(batch, 1, 1, keys, dtype=dtype, seed=3), f"{batch}x{heads}x{rows}x{keys}x{width} {dtype}"

        def right(q: Any, k: Any, v: Any, mask: Any) -> Any:
            heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
            return F.scaled_dot_product_attention(*heads_first, attn_mask=mask, scale=0.3).transpose(1, 2).contiguous()

        yield Subject(f"attention {size}", (q, k, v, mask), lambda *args: ops.attention(*args, scale=0.3, tokens_first=(1, 1, 1, 1)), right)
        seen = normal(1, heads, rows, keys, seed=4) > 0
        swapped = tuple(np.ascontiguousarray(tensor.transpose(0, 2, 1, 3)) for tensor in (q, k, v))

        def right_where_seen(q: Any, k: Any, v: Any, seen: Any) -> Any:
            return torch.nan_to_num(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3))

        yield Subject(
            f"attention where seen {size}",
            (*swapped, seen),
            lambda *args: ops.attention(*args, scale=0.3, zero_rows=True),
            right_where_seen,
        )


def _rowwise() -> Iterator[Subject]:
    for (rows, columns), dtype in itertools.product(((1, 1), (3, 7), (5, 32), (4, 33), (2, 1000), (1, 5000), (300, 16), (64, 197)), DTYPES):
        x, gain, shift = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((rows, columns), (columns,), (columns,))))
        size = f"{rows}x{columns} {dtype}"
        yield Subject(f"softmax {size}", (x,), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1))
        if columns > 1:
            yield Subject(f"layer norm {size}", (x, gain, shift), lambda x, w, b: ops.layer_norm(x, w, b, axis=1, epsilon=1e-5), lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5))  # fmt: skip
            yield Subject(f"rms norm {size}", (x, gain), lambda x, w: ops.rms_norm(x, w, axis=1, epsilon=1e-5), lambda x, w: F.rms_norm(x, w.shape, w, 1e-5))  # fmt: skip
    for dtype in DTYPES:
        x, gain, shift = normal(2, 12, 9, 7, dtype=dtype), normal(12, dtype=dtype, seed=1), normal(12, dtype=dtype, seed=2)
        yield Subject(f"group norm {dtype}", (x, gain, shift), lambda x, w, b: ops.group_norm(x, w, b, groups=3, epsilon=1e-5), lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5))  # fmt: skip
        yield Subject(f"instance norm {dtype}", (x, gain, shift), lambda x, w, b: ops.instance_norm(x, w, b, epsilon=1e-5), lambda x, w, b: F.instance_norm(x, weight=w, bias=b))  # fmt: skip
        yield Subject(f"softmax of a middle axis {dtype}", (x,), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1))
        yield Subject(f"log softmax {dtype}", (x,), lambda x: ops.log_softmax(x, axis=3), lambda x: x.log_softmax(3))


def _reductions() -> Iterator[Subject]:
    for (shape, axes), dtype in itertools.product((((7, 33), (1,)), ((33, 7), (0,)), ((3, 20, 30), (1, 2)), ((3, 20, 30), (1,)), ((2, 3000), (1,)), ((5, 6, 7), (0, 1, 2))), DTYPES):  # fmt: skip
        x, size = normal(*shape, dtype=dtype) + np.asarray(1, dtype), f"{'x'.join(map(str, shape))} over {axes} {dtype}"
        yield Subject(f"sum {size}", (x,), lambda x, a=axes: ops.sum_(x, axes=a), lambda x, a=axes: x.sum(a))
        yield Subject(f"mean {size}", (x,), lambda x, a=axes: ops.mean(x, axes=a, keepdims=True), lambda x, a=axes: x.mean(a, keepdim=True))
        yield Subject(f"max {size}", (x,), lambda x, a=axes: ops.max_(x, axes=a), lambda x, a=axes: x.amax(a))
    for shape in ((4, 9), (2, 1000), (1, 7, 12)):
        x = normal(*shape)
        yield Subject(f"argmax {shape}", (x,), lambda x: ops.argmax(x, axis=1), lambda x: x.argmax(1))
        yield Subject(f"argmin {shape}", (x,), lambda x: ops.argmin(x, axis=-1), lambda x: x.argmin(-1))
        yield Subject(f"cumulative sum {shape}", (x,), lambda x: ops.cumsum(x, axis=1), lambda x: x.cumsum(1))
    for shape, k in (((4, 9), 3), ((2, 300), 10)):
        yield Subject(
            f"top {k} of {shape}", (normal(*shape),), lambda x, k=k: ops.top_k(x, k=k, axis=1), lambda x, k=k: tuple(x.topk(k, 1))
        )


def _pools() -> Iterator[Subject]:
    for (c, h, k, s, p), dtype in itertools.product(((3, 13, 3, 2, 1), (8, 12, 2, 2, 0), (5, 7, 3, 1, 1), (16, 28, 5, 3, 2)), DTYPES):
        x = normal(2, c, h, h, dtype=dtype)
        two = {"kernel": (k, k), "strides": (s, s), "padding": (p,) * 4}
        size = f"{c}x{h}, {k} s{s} p{p} {dtype}"
        yield Subject(f"max pool {size}", (x,), lambda x, t=two: ops.max_pool(x, **t), lambda x, k=k, s=s, p=p: F.max_pool2d(x, k, s, p))
        yield Subject(f"average pool {size}", (x,), lambda x, t=two: ops.avg_pool(x, **t), lambda x, k=k, s=s, p=p: F.avg_pool2d(x, k, s, p, count_include_pad=False))  # fmt: skip
        if c % 8 == 0:
            yield Subject(f"max pool in blocks {size}", (_in_blocks(x),), lambda x, t=two: ops.max_pool(x, channel_block=8, **t), lambda x, k=k, s=s, p=p: _torch_blocked(F.max_pool2d(_torch_plain(x), k, s, p)))  # fmt: skip
        yield Subject(
            f"adaptive pool {size}",
            (x,),
            lambda x: ops.adaptive_avg_pool(x, output_size=(3, 2)),
            lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        )


_UNARY: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (ops.relu, torch.relu), (ops.sigmoid, torch.sigmoid), (ops.tanh, torch.tanh), (ops.exp, torch.exp), (ops.erf, torch.erf), (ops.gelu, F.gelu),
    (ops.silu, F.silu), (ops.mish, F.mish), (ops.hard_swish, F.hardswish), (ops.sin, torch.sin), (ops.abs_, torch.abs), (ops.softplus, F.softplus),
)  # fmt: skip


def _elementwise() -> Iterator[Subject]:
    for (op, right), dtype in itertools.product(_UNARY, DTYPES):
        yield Subject(f"{op.name} {dtype}", (normal(5, 37, 8, dtype=dtype),), op, right)
    for (a, b), dtype in itertools.product((((7,), (7,)), ((33, 40), (40,)), ((2, 8, 5), (2, 1, 5)), ((3, 1), (1, 70)), ((1024,), (1,)), ((4, 6, 8), (4, 6, 8))), DTYPES):  # fmt: skip
        x, y = normal(*a, dtype=dtype), normal(*b, dtype=dtype, seed=1)
        yield Subject(f"add {a} and {b} {dtype}", (x, y), ops.add, torch.add)
        yield Subject(f"multiply, then where {a} and {b} {dtype}", (x, y), lambda x, y: ops.where(ops.less(x, y), ops.multiply(x, y), x), lambda x, y: torch.where(x < y, x * y, x))  # fmt: skip
    x = normal(9, 40)
    yield Subject("cast to halves", (x,), lambda x: ops.cast(x, dtype="float16"), lambda x: x.half())
    yield Subject("cast to int64", (x,), lambda x: ops.cast(x, dtype="int64"), lambda x: x.trunc().long())
    yield Subject("truth values", (x,), lambda x: ops.logical_not(ops.greater(x, x)), lambda x: torch.logical_not(x > x))


def _moves() -> Iterator[Subject]:
    for dtype in DTYPES:
        x, image, index = normal(33, 40, dtype=dtype), normal(2, 3, 10, 12, dtype=dtype), np.arange(7)[::-1].copy() * 4
        large = normal(3, 70, 66, dtype=dtype)
        yield Subject(f"transpose {dtype}", (x,), lambda x: ops.transpose(x, axes=(1, 0)), lambda x: x.T.contiguous())
        yield Subject(
            f"transpose of pictures {dtype}",
            (image,),
            lambda x: ops.transpose(x, axes=(0, 2, 3, 1)),
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
        )
        yield Subject(
            f"transpose of large matrices {dtype}",
            (large,),
            lambda x: ops.transpose(x, axes=(0, 2, 1)),
            lambda x: x.transpose(1, 2).contiguous(),
        )
        yield Subject(f"heads {dtype}", (normal(1, 17, 4, 8, dtype=dtype),), lambda x: ops.transpose(x, axes=(0, 2, 1, 3)), lambda x: x.transpose(1, 2).contiguous())  # fmt: skip
        yield Subject(f"concatenation {dtype}", (image, image), lambda x, y: ops.concat(x, y, axis=1), lambda x, y: torch.cat([x, y], 1))
        yield Subject(f"concatenation of rows {dtype}", (x, x), lambda x, y: ops.concat(x, y, axis=-1), lambda x, y: torch.cat([x, y], -1))
        yield Subject(f"rows taken {dtype}", (x, index), lambda x, i: ops.gather(x, i, axis=0), lambda x, i: x[i])
        yield Subject(f"columns taken {dtype}", (x, index), lambda x, i: ops.gather(x, i, axis=1), lambda x, i: x[:, i])
        yield Subject(
            f"pad {dtype}", (image,), lambda x: ops.pad(x, before=(0, 0, 1, 2), after=(0, 0, 3, 1)), lambda x: F.pad(x, (2, 1, 1, 3))
        )
        yield Subject(f"slice {dtype}", (image,), lambda x: ops.slice_(x, begins=(0, 1, 2, 0), ends=(2, 3, 9, 12), steps=(1, 1, 2, 3)), lambda x: x[:, 1:3, 2:9:2, ::3].contiguous())  # fmt: skip
        yield Subject(f"nearest resize {dtype}", (image,), lambda x: ops.resize(x, shape=(2, 3, 20, 24), scales=(None, None, 2.0, 2.0), mode="nearest", coordinate="asymmetric", nearest="floor"), lambda x: F.interpolate(x, scale_factor=2))  # fmt: skip
        yield Subject(f"linear resize {dtype}", (image,), lambda x: ops.resize(x, shape=(2, 3, 15, 18), scales=(None, None, 1.5, 1.5), mode="linear"), lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"))  # fmt: skip
        yield Subject(
            f"into blocks {dtype}",
            (normal(1, 16, 5, 6, dtype=dtype),),
            lambda x: ops.layout_transform(x, block=8, channels=16),
            _torch_blocked,
        )
        yield Subject(f"lower triangle {dtype}", (x,), lambda x: ops.trilu(x, upper=False, k=0), lambda x: x.tril())


def _sizes_at_run_time() -> Cases:
    for rows, dtype in itertools.product((1, 5, 64, 130), DTYPES):
        x, w = normal(rows, 64, dtype=dtype), normal(64, 48, dtype=dtype, seed=1)
        yield (
            Subject(f"any rows: matmul {rows} {dtype}", (x, w), lambda x, w: ops.relu(ops.matmul(x, w)), lambda x, w: torch.relu(x @ w)),
            ((0, 0, "n"),),
        )
        yield Subject(f"any rows: softmax {rows} {dtype}", (x,), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1)), ((0, 0, "n"),)
        yield Subject(f"any length: softmax {rows} {dtype}", (normal(6, rows, dtype=dtype),), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1)), ((0, 1, "n"),)  # fmt: skip
        yield Subject(f"any rows: gelu {rows} {dtype}", (x,), ops.gelu, F.gelu), ((0, 0, "n"),)
        picture = normal(1, 8, rows, 12, dtype=dtype), normal(16, 8, 3, 3, dtype=dtype, seed=1)
        yield Subject(f"any height: conv {rows} {dtype}", picture, lambda x, w: ops.conv(x, w, strides=(1, 1), padding=(1,) * 4, dilation=(1, 1)), lambda x, w: F.conv2d(x, w, None, 1, 1)), ((0, 2, "h"),)  # fmt: skip
        scores = normal(2, rows, 16, dtype=dtype), normal(2, 16, rows, dtype=dtype, seed=1)
        yield Subject(f"any length: scores {rows} {dtype}", scores, ops.matmul, torch.matmul), ((0, 1, "t"), (1, 2, "t"))


def _pairs() -> Iterator[Subject]:
    """Two products in one function, and sums in float32 beside halves."""
    for (m, k, n), dtype in itertools.product(((33, 48, 40), (17, 20, 24), (64, 64, 64)), DTYPES):
        a, b, c, d = (normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((m, k), (k, n), (m, 16), (16, n))))
        yield Subject(f"two products {m}x{k}x{n} {dtype}", (a, b, c, d), lambda a, b, c, d: ops.add(ops.matmul(a, b), ops.matmul(c, d)), lambda a, b, c, d: a @ b + c @ d)  # fmt: skip


def whole(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max + 1, shape).astype(dtype)


BYTES = ("int8", "uint8")


def _bytes() -> Cases:
    """Integers must be right to the last bit."""
    for (m, k, n), left, right in itertools.product(((1, 7, 9), (33, 48, 40), (64, 64, 64), (70, 100, 36), (16, 1024, 24), (2, 130, 200)), BYTES, BYTES):  # fmt: skip
        arrays = whole(left, m, k), whole(right, k, n, seed=1)
        yield Subject(f"matmul of {left} and {right} {m}x{k}x{n}", arrays, ops.integer_matmul, _integer_product), ()
        if left == "uint8":
            scale = np.random.default_rng(n).uniform(1e-5, 1e-3, n).astype(np.float32)
            zero = np.array(7, right)
            yield (
                Subject(f"requantised matmul of {left} and {right} {m}x{k}x{n}", (*arrays, scale, zero), _requantised, _right_requantised),
                (),
            )
    for left, right in itertools.product(BYTES, BYTES):
        for m in (5, 64):
            arrays = whole(left, m, 64), whole(right, 64, 48, seed=1)
            yield Subject(f"any rows: matmul of {left} and {right} {m}", arrays, ops.integer_matmul, _integer_product), ((0, 0, "n"),)
    for (n, c, h, o, k, s, p, g, zero), left in itertools.product(_BYTE_CONVOLUTIONS, BYTES):
        arrays = whole(left, n, c, h, h), whole("int8", o, c // g, k, k, seed=1)

        def body(x: Expr, w: Expr, s: int = s, p: int = p, g: int = g, zero: int = zero) -> Expr:
            return ops.integer_conv(x, w, strides=(s, s), padding=(p,) * 4, dilation=(1, 1), groups=g, pad_value=zero)

        def right_conv(x: Any, w: Any, s: int = s, p: int = p, g: int = g, zero: int = zero) -> Any:
            return F.conv2d(F.pad(x.double(), (p,) * 4, value=zero), w.double(), None, s, 0, 1, g).int()

        yield Subject(f"conv of {left} {n}x{c}x{h} to {o}, {k} s{s} p{p} g{g}, padded with {zero}", arrays, body, right_conv), ()

        if g == 1:
            blocks = blocked_bytes(arrays[0], input_block(c))
            packed = conv_weight(arrays[1], blocks.shape[-1], blocks.shape[-1], 1)

            def in_blocks(x: Expr, w: Expr, s: int = s, p: int = p, c: int = c, o: int = o, zero: int = zero) -> Expr:
                return ops.byte_conv(x, w, strides=(s, s), padding=(p,) * 4, dilation=(1, 1), out_channels=o, in_channels=c, pad_value=zero)

            def right_in_blocks(x: Any, w: Any, right: Any = right_conv, plain: Any = arrays) -> Any:
                return torch.from_numpy(blocked_bytes(right(*map(torch.from_numpy, plain)).numpy(), BLOCK))

            name = f"conv of {left} in blocks {n}x{c}x{h} to {o}, {k} s{s} p{p}, padded with {zero}"
            yield Subject(name, (blocks, packed), in_blocks, right_in_blocks), ()


# batch, channels, size, outputs, kernel, stride, pad, groups, padded with
_BYTE_CONVOLUTIONS = (
    (1, 16, 14, 32, 1, 1, 0, 1, 0), (1, 3, 17, 8, 3, 2, 1, 1, 0), (2, 24, 9, 40, 3, 1, 1, 1, 0), (1, 32, 8, 16, 3, 1, 1, 1, 3), (1, 8, 12, 8, 3, 1, 1, 8, 0),
    (1, 64, 7, 64, 1, 2, 0, 1, 0),
)  # fmt: skip


def _integer_product(a: Any, b: Any) -> Any:
    return (a.double() @ b.double()).int()


def _requantised(a: Expr, b: Expr, scale: Expr, zero: Expr) -> Expr:
    return ops.requantise(ops.integer_matmul(a, b), scale, zero, dtype=zero.type.dtype)  # type: ignore[union-attr]


def _right_requantised(a: Any, b: Any, scale: Any, zero: Any) -> Any:
    scaled = _integer_product(a, b).float() * scale.float()
    limits = torch.iinfo(zero.dtype)
    return (torch.round(scaled.clamp(limits.min - 7, limits.max - 7)) + 7).to(zero.dtype)
