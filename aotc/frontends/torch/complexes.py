"""Complex tensors as pairs of real ones: Fourier transforms, rotary embeddings, and what moves elements without looking at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, axis_of, dtype_of, rank_of, shape_of
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr
from aotc.ops.signal import fourier, rotations_for

aten = torch.ops.aten
REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The dtype of the parts."""


@dataclass(frozen=True, eq=False)
class Complex:
    real: Expr
    imag: Expr


def is_complex(meta: Any) -> bool:
    parts = meta if isinstance(meta, (list, tuple)) else [meta]
    return any(isinstance(part, torch.Tensor) and part.is_complex() for part in parts)


def of_parts(meta: Any) -> Any:
    """What torch knows of a complex result, for one of its parts."""
    if isinstance(meta, (list, tuple)):
        return type(meta)(of_parts(each) for each in meta)
    return meta.to(REAL[meta.dtype]) if isinstance(meta, torch.Tensor) and meta.dtype in REAL else meta


def holds_complex(value: Any) -> bool:
    return isinstance(value, Complex) or (isinstance(value, list) and any(holds_complex(each) for each in value))


def complex_recipe(operator: Any, recipes: dict[Any, Recipe]) -> Recipe | None:
    """The recipe for complex arguments or results of an operator, if there is one."""
    if operator in RECIPES:
        return RECIPES[operator]
    if operator in recipes and operator._schema.name.split("::")[1] in MOVING:
        return _on_both_parts(recipes[operator])
    return None


MOVING = {
    "view", "_unsafe_view", "reshape", "permute", "transpose", "expand", "slice", "select", "cat", "stack", "unsqueeze", "squeeze", "flatten",
    "unflatten", "index_select", "index", "clone", "alias", "detach", "contiguous", "flip", "roll", "split", "split_with_sizes", "unbind",
    "repeat", "constant_pad_nd", "narrow", "chunk", "movedim", "t", "gather", "embedding", "view_copy", "lift_fresh_copy", "sum", "neg",
    "mean", "zeros", "zeros_like", "cumsum", "diagonal",
}  # fmt: skip
"""Operators that do the same to both parts."""


def _on_both_parts(recipe: Recipe) -> Recipe:
    def both(b: Builder, *args: Any, **kwargs: Any) -> Any:
        own = replace(b, meta=of_parts(b.meta))
        results = [recipe(own, *_part(args, which), **{key: _part(value, which) for key, value in kwargs.items()}) for which in (0, 1)]
        if isinstance(results[0], (list, tuple)):
            return [None if x is None else Complex(x, y) for x, y in zip(*results, strict=True)]
        return Complex(*results)

    return both


def _part(value: Any, which: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_part(each, which) for each in value]
    if isinstance(value, Complex):
        return (value.real, value.imag)[which]
    return value


def parts(b: Builder, x: Any) -> tuple[Operand, Operand]:
    if isinstance(x, Complex):
        return x.real, x.imag
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0.0)


def _dtype(b: Builder) -> str:
    return replace(b, meta=of_parts(b.meta)).dtype


def _view_as_complex(b: Builder, x: Expr) -> Complex:
    shape = shape_of(x)
    real, imag = (b.reshape(b.slice(x, len(shape) - 1, i, i + 1), shape[:-1]) for i in (0, 1))
    return Complex(real, imag)


def pair(b: Builder, x: Complex) -> Expr:
    """[.., 2]: the real and the imaginary part."""
    shape = shape_of(x.real)
    return b.concat([b.reshape(part, (*shape, 1)) for part in (x.real, x.imag)], len(shape))


def _binary(function: Callable[[Builder, Any, Any, str], Complex]) -> Recipe:
    def recipe(b: Builder, x: Any, y: Any, **options: Any) -> Complex:
        if options.get("alpha", 1) != 1:
            raise b.unsupported("sums of complex numbers with a factor")
        return function(b, parts(b, x), parts(b, y), _dtype(b))

    return recipe


def _add(b: Builder, x: Any, y: Any, dtype: str) -> Complex:
    return Complex(b.binary(ops.add, x[0], y[0], dtype), b.binary(ops.add, x[1], y[1], dtype))


def _subtract(b: Builder, x: Any, y: Any, dtype: str) -> Complex:
    return Complex(b.binary(ops.subtract, x[0], y[0], dtype), b.binary(ops.subtract, x[1], y[1], dtype))


def _multiply(b: Builder, x: Any, y: Any, dtype: str) -> Complex:
    if isinstance(y[1], float) and y[1] == 0:
        return Complex(b.binary(ops.multiply, x[0], y[0], dtype), b.binary(ops.multiply, x[1], y[0], dtype))
    if isinstance(x[1], float) and x[1] == 0:
        return _multiply(b, y, x, dtype)
    ac, bd, ad, bc = (b.binary(ops.multiply, x[i], y[j], dtype) for i, j in ((0, 0), (1, 1), (0, 1), (1, 0)))
    return Complex(b.emit(ops.subtract, ac, bd), b.emit(ops.add, ad, bc))


def _divide(b: Builder, x: Any, y: Any, dtype: str) -> Complex:
    if isinstance(y[1], float) and y[1] == 0:
        return Complex(b.binary(ops.divide, x[0], y[0], dtype), b.binary(ops.divide, x[1], y[0], dtype))
    c, d = b.tensor(y[0], dtype), b.tensor(y[1], dtype)
    size = b.emit(ops.add, b.emit(ops.multiply, c, c), b.emit(ops.multiply, d, d))
    top = _multiply(b, x, (c, b.emit(ops.negative, d)), dtype)
    return Complex(b.emit(ops.divide, top.real, size), b.emit(ops.divide, top.imag, size))


def _abs(b: Builder, x: Complex) -> Expr:
    return b.emit(ops.sqrt, b.emit(ops.add, *(b.emit(ops.multiply, part, part) for part in (x.real, x.imag))))


def _polar(b: Builder, size: Expr, angle: Expr) -> Complex:
    return Complex(*(b.emit(ops.multiply, size, b.emit(function, angle)) for function in (ops.cos, ops.sin)))


def _to(b: Builder, x: Any, *options: Any, **more: Any) -> Any:
    if not is_complex(b.meta):
        raise b.unsupported("a complex tensor as a real one: take .real or .abs()")
    dtype = _dtype(b)
    real, imag = parts(b, x)
    real = b.tensor(real, dtype)
    imag = b.tensor(imag, dtype) if isinstance(x, Complex) else b.emit(ops.full, shape=shape_of(real), value=0, dtype=dtype)
    return Complex(real, imag)


# Fourier transforms: torch's normalisation is 0 for none, 1 for 1 / sqrt(n), 2 for 1 / n ---------------------------------


def _transform(b: Builder, x: Expr | Complex, axis: int, length: Dim, inverse: bool, onesided: bool) -> Expr | Complex:
    """Along one axis, unscaled forward and by 1 / length backward; a real tensor back where a half is inverted."""
    rank = rank_of(x.real if isinstance(x, Complex) else x)
    order = [*(i for i in range(rank) if i != axis), axis]
    data = [b.transpose(part, order) for part in ((x.real, x.imag) if isinstance(x, Complex) else (x,))]
    columns = b.concat([b.reshape(part, (*shape_of(part), 1)) for part in data], rank)
    table = rotations_for(columns.type, length, b.origin)  # type: ignore[arg-type]
    result = b.emit(fourier, columns, table, length=length, inverse=inverse, onesided=onesided)
    back = [order.index(i) for i in range(rank)]
    count = 1 if inverse and onesided else 2
    found = [b.transpose(b.reshape(b.slice(result, rank, i, i + 1), shape_of(result)[:-1]), back) for i in range(count)]
    return found[0] if count == 1 else Complex(*found)


def _scaled(b: Builder, x: Any, lengths: Sequence[Dim], normalization: int, inverse: bool) -> Any:
    total = product(lengths)
    power = (1.0 if inverse else 0.0) - {0: 0.0, 1: 0.5, 2: 1.0}[normalization]
    if power == 0:
        return x
    if not isinstance(total, int):
        raise b.unsupported("a scaled Fourier transform of a length that is known only at run time")
    factor = math.pow(total, power)
    if isinstance(x, Complex):
        return Complex(*(b.binary(ops.multiply, part, factor, dtype_of(part)) for part in (x.real, x.imag)))
    return b.binary(ops.multiply, x, factor, dtype_of(x))


def _fft_c2c(b: Builder, x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    x = x if isinstance(x, Complex) else _to(b, x)
    shape = shape_of(x.real)
    axes = [axis_of(axis, len(shape)) for axis in dim]
    for axis in axes:
        x = _transform(b, x, axis, shape[axis], not forward, False)
    return _scaled(b, x, [shape[axis] for axis in axes], normalization, not forward)


def _fft_r2c(b: Builder, x: Expr, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    shape = shape_of(x)
    axes = [axis_of(axis, len(shape)) for axis in dim]
    result: Any = _transform(b, x, axes[-1], shape[axes[-1]], False, onesided)
    for axis in axes[:-1]:
        result = _transform(b, result, axis, shape[axis], False, False)
    return _scaled(b, result, [shape[axis] for axis in axes], normalization, False)


def _fft_c2r(b: Builder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Dim) -> Expr:
    shape = shape_of(x.real)
    axes = [axis_of(axis, len(shape)) for axis in dim]
    result: Any = x
    for axis in axes[:-1]:
        result = _transform(b, result, axis, shape[axis], True, False)
    result = _transform(b, result, axes[-1], last_dim_size, True, True)
    return _scaled(b, result, [*(shape[axis] for axis in axes[:-1]), last_dim_size], normalization, True)


RECIPES: dict[Any, Recipe] = {
    aten.view_as_complex.default: _view_as_complex,
    aten.view_as_real.default: pair,
    aten.complex.default: lambda b, real, imag: Complex(real, imag),
    aten.polar.default: _polar,
    aten.real.default: lambda b, x: x.real if isinstance(x, Complex) else x,
    aten.imag.default: lambda b, x: x.imag,
    aten._conj.default: lambda b, x: Complex(x.real, b.emit(ops.negative, x.imag)),
    aten._conj_physical.default: lambda b, x: Complex(x.real, b.emit(ops.negative, x.imag)),
    aten.conj_physical.default: lambda b, x: Complex(x.real, b.emit(ops.negative, x.imag)),
    aten.resolve_conj.default: lambda b, x: x,
    aten.abs.default: _abs,
    aten.angle.default: lambda b, x: b.emit(ops.atan2, x.imag, x.real),
    aten.add.Tensor: _binary(_add),
    aten.add.Scalar: _binary(_add),
    aten.sub.Tensor: _binary(_subtract),
    aten.sub.Scalar: _binary(_subtract),
    aten.mul.Tensor: _binary(_multiply),
    aten.mul.Scalar: _binary(_multiply),
    aten.div.Tensor: _binary(_divide),
    aten.div.Scalar: _binary(_divide),
    aten._to_copy.default: _to,
    aten.to.dtype: _to,
    aten._fft_c2c.default: _fft_c2c,
    aten._fft_r2c.default: _fft_r2c,
    aten._fft_c2r.default: _fft_c2r,
}
