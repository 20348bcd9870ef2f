"""Small functions whose CUDA kernels are mutated: all families of schedules, with right values by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.ir.expr import Expr, Function, Var
from aotc.ir.types import TensorType, type_of_array

TOLERANCE = {"float32": 1e-5, "float16": 3e-3}


@dataclass(frozen=True)
class Subject:
    """A function of ``arrays``; ``right`` gives its outputs from float64 (or integer) tensors."""

    name: str
    arrays: tuple[np.ndarray, ...]
    body: Callable[..., Expr]
    right: Callable[..., Any]

    def function(self) -> Function:
        params = [Var(f"x{i}", TensorType(tuple(a.shape), str(type_of_array(a).dtype))) for i, a in enumerate(self.arrays)]
        return Function(tuple(params), self.body(*params), self.name, primitive=True)

    def want(self) -> list[np.ndarray]:
        tensors = [torch.from_numpy(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in self.arrays]
        result = self.right(*tensors)
        return [part.numpy() for part in (result if isinstance(result, (tuple, list)) else [result])]


def wrong(results: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> bool:
    """Whether the results are further away than tests allow."""
    for have, right in zip(results, want, strict=True):
        a, b = have.astype(np.float64), right.astype(np.float64)
        bound = TOLERANCE.get(str(have.dtype), 0) * max(np.abs(b).max(initial=0), 1e-30)
        if not np.abs(a - b).max(initial=0) <= bound:
            return True
    return False


def distance_text(results: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    """How far results are from the right ones."""
    worst = [float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)) for a, b in zip(results, want, strict=True)]
    return f"off by {', '.join(f'{value:.3g}' for value in worst)}"


def _normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def _whole(*shape: int, high: int = 9, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(shape).integers(0, high, shape).astype(dtype)


def _matmuls() -> list[Subject]:
    found = []
    for rows, columns, depth in [
        (64, 64, 32),
        (33, 65, 70),
        (1, 100, 64),
        (128, 16, 48),
        (4, 64, 600),
        (16, 16, 16),
        (96, 40, 56),
        (31, 31, 31),
        (64, 96, 16),
        (20, 20, 200),
    ]:
        for dtype in ("float32", "float16"):
            a, b = _normal(rows, depth, dtype=dtype), _normal(depth, columns, dtype=dtype)
            found.append(Subject(f"matmul {rows}x{columns}x{depth} {dtype}", (a, b), ops.matmul, torch.matmul))
    a, b = _normal(3, 20, 24, dtype="float16"), _normal(3, 24, 40, dtype="float16")
    found.append(Subject("batched matmul of halves", (a, b), ops.matmul, torch.matmul))
    a, b = _whole(33, 48, high=256, dtype="uint8"), _whole(48, 40, high=128, dtype="int8") - np.int8(64)
    found.append(Subject("matmul of bytes", (a, b), ops.integer_matmul, lambda a, b: (a.double() @ b.double()).int()))
    a, b, bias = _normal(3, 20, 24), _normal(3, 24, 40), _normal(40)
    found.append(
        Subject(
            "batched matmul, bias, relu",
            (a, b, bias),
            lambda a, b, c: ops.relu(ops.add(ops.matmul(a, b), c)),
            lambda a, b, c: torch.relu(a @ b + c),
        )
    )
    return found


def _convolutions() -> list[Subject]:
    found = []
    shapes = [
        (16, 32, 1, 1, 0, 1),
        (8, 16, 3, 1, 1, 1),
        (8, 24, 3, 2, 1, 1),
        (16, 16, 3, 1, 1, 16),
        (8, 8, 3, 1, 1, 2),
        (3, 20, 5, 2, 2, 1),
    ]
    for channels, out, kernel, stride, pad, groups in shapes:
        for dtype in ("float32", "float16"):
            x, w = _normal(1, channels, 12, 11, dtype=dtype), _normal(out, channels // groups, kernel, kernel, dtype=dtype)

            def body(x: Expr, w: Expr, s: int = stride, p: int = pad, g: int = groups) -> Expr:
                return ops.conv(x, w, strides=(s, s), padding=(p, p, p, p), groups=g)

            def right(x: Any, w: Any, s: int = stride, p: int = pad, g: int = groups) -> Any:
                return F.conv2d(x, w, stride=s, padding=p, groups=g)

            found.append(Subject(f"conv {channels}>{out} k{kernel} s{stride} g{groups} {dtype}", (x, w), body, right))
    return found


def _reductions() -> list[Subject]:
    x, tall, image = _normal(9, 300), _normal(300, 9), _normal(2, 5, 6, 7)
    found = [
        Subject(f"softmax of {rows} rows of {columns}", (_normal(rows, columns),), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1))
        for rows, columns in [(3, 32), (2, 1000), (40, 7)]
    ]
    found += [
        Subject(f"{name} of {shape} {dtype}", (_normal(*shape, dtype=dtype),), lambda x, op=op: op(x, axes=(1, 2)), right)
        for shape in [(2, 20, 30), (3, 100, 50)]
        for dtype in ("float32", "float16")
        for name, op, right in [("mean", ops.mean, lambda x: x.mean((1, 2))), ("max", ops.max_, lambda x: x.amax((1, 2)))]
    ]
    found += [
        Subject("sum of rows", (x,), lambda x: ops.sum_(x, axes=(1,)), lambda x: x.sum(1)),
        Subject("sum of columns", (tall,), lambda x: ops.sum_(x, axes=(0,)), lambda x: x.sum(0)),
        Subject("mean of images", (image,), lambda x: ops.mean(x, axes=(2, 3)), lambda x: x.mean((2, 3))),
        Subject("greatest of a middle axis", (image,), lambda x: ops.max_(x, axes=(1,)), lambda x: x.amax(1)),
        Subject("sum of all", (x,), lambda x: ops.sum_(x, axes=(0, 1)), lambda x: x.sum()),
        Subject("argmax", (x,), lambda x: ops.argmax(x, axis=1), lambda x: x.argmax(1)),
        Subject("softmax", (x,), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1)),
        Subject("softmax of columns", (tall,), lambda x: ops.softmax(x, axis=0), lambda x: x.softmax(0)),
        Subject("softmax of halves", (_normal(9, 130, dtype="float16"),), lambda x: ops.softmax(x, axis=1), lambda x: x.softmax(1)),
        Subject("log softmax", (x,), lambda x: ops.log_softmax(x, axis=1), lambda x: x.log_softmax(1)),
        Subject("cumsum", (x,), lambda x: ops.cumsum(x, axis=1), lambda x: x.cumsum(1)),
        Subject("top k", (_normal(4, 50),), lambda x: ops.top_k(x, k=5, axis=1), lambda x: tuple(x.topk(5, 1))),
    ]
    weights = (_normal(300), _normal(300, seed=1))
    found += [
        Subject("layer norm", (x, *weights), lambda x, w, b: ops.layer_norm(x, w, b, axis=1, epsilon=1e-5), lambda x, w, b: F.layer_norm(x, (300,), w, b, 1e-5)),
        Subject("rms norm", (x, weights[0]), lambda x, w: ops.rms_norm(x, w, axis=1, epsilon=1e-5), lambda x, w: F.rms_norm(x, (300,), w, 1e-5)),
        Subject("instance norm", (image, _normal(5), _normal(5, seed=1)), lambda x, w, b: ops.instance_norm(x, w, b, epsilon=1e-5), lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    ]  # fmt: skip
    wide = _normal(5, 700, dtype="float16")
    found += [
        Subject("layer norm of halves", (wide, _normal(700, dtype="float16"), _normal(700, dtype="float16", seed=1)), lambda x, w, b: ops.layer_norm(x, w, b, axis=1, epsilon=1e-5), lambda x, w, b: F.layer_norm(x, (700,), w, b, 1e-5)),
        Subject("log softmax of halves", (wide,), lambda x: ops.log_softmax(x, axis=1), lambda x: x.log_softmax(1)),
        Subject("group norm", (_normal(2, 6, 4, 5), _normal(6), _normal(6, seed=1)), lambda x, w, b: ops.group_norm(x, w, b, groups=2, epsilon=1e-5), lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5)),
    ]  # fmt: skip
    return found


def _pools_and_resizes() -> list[Subject]:
    x = _normal(2, 3, 13, 11)
    two, pads = ((3, 3), (2, 2)), (1, 1, 1, 1)
    return [
        Subject("max pool", (x,), lambda x: ops.max_pool(x, kernel=two[0], strides=two[1], padding=pads), lambda x: F.max_pool2d(x, 3, 2, 1)),
        Subject("average pool", (x,), lambda x: ops.avg_pool(x, kernel=two[0], strides=two[1], padding=pads), lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        Subject("adaptive average pool", (x,), lambda x: ops.adaptive_avg_pool(x, output_size=(4, 3)), lambda x: F.adaptive_avg_pool2d(x, (4, 3))),
        Subject("global average, then scale", (x,), lambda x: ops.multiply(x, ops.mean(x, axes=(2, 3), keepdims=True)), lambda x: x * x.mean((2, 3), keepdim=True)),
    ]  # fmt: skip


def _elementwise() -> list[Subject]:
    x, y, row = _normal(33, 40), _normal(33, 40, seed=1), _normal(40)
    half = _normal(33, 40, dtype="float16")
    return [
        Subject("gelu", (x,), ops.gelu, F.gelu),
        Subject("silu of halves", (half,), ops.silu, F.silu),
        Subject("add", (x, y), ops.add, torch.add),
        Subject("a row added, relu", (x, row), lambda x, r: ops.relu(ops.add(x, r)), lambda x, r: torch.relu(x + r)),
        Subject("an odd number of halves", (_normal(7, 9, dtype="float16"),), ops.relu, torch.relu),
        Subject("where", (x, y), lambda x, y: ops.where(ops.less(x, y), x, y), torch.minimum),
        Subject("integers", (_whole(5, 30), _whole(5, 30, high=4)), ops.multiply, torch.mul),
        Subject("comparison", (x, y), ops.greater, torch.gt),
        Subject("cast", (x,), lambda x: ops.cast(x, dtype="int32"), lambda x: x.trunc().int()),
        Subject("exp of a scalar", (_normal(),), ops.exp, torch.exp),
    ]


def _movements() -> list[Subject]:
    x, image, index = _normal(33, 40), _normal(2, 3, 10, 12), _whole(7, high=33, dtype="int64")
    return [
        Subject("transpose", (x,), lambda x: ops.transpose(x, axes=(1, 0)), lambda x: x.T.contiguous()),
        Subject("transpose of four axes", (image,), lambda x: ops.transpose(x, axes=(0, 2, 3, 1)), lambda x: x.permute(0, 2, 3, 1).contiguous()),
        Subject("rows taken", (x, index), lambda x, i: ops.gather(x, i, axis=0), lambda x, i: x[i]),
        Subject("slice", (image,), lambda x: ops.slice_(x, begins=(0, 1, 2, 0), ends=(2, 3, 9, 12), steps=(1, 1, 2, 3)), lambda x: x[:, 1:3, 2:9:2, ::3].contiguous()),
        Subject("pad", (image,), lambda x: ops.pad(x, before=(0, 0, 1, 2), after=(0, 0, 3, 1)), lambda x: F.pad(x, (2, 1, 1, 3))),
        Subject("broadcast", (_normal(40),), lambda x: ops.broadcast_to(x, shape=(8, 40)), lambda x: x.expand(8, 40).contiguous()),
        Subject("lower triangle", (x,), lambda x: ops.trilu(x, upper=False, k=0), lambda x: x.tril()),
    ]  # fmt: skip


def subjects() -> list[Subject]:
    return [*_matmuls(), *_convolutions(), *_reductions(), *_pools_and_resizes(), *_elementwise(), *_movements()]
