"""A scale of each channel goes into the weights of the 1x1 convolution that reads it, where these are fewer than the elements.

Squeeze-and-excitation (Hu et al., 2018) computes such scales from the image and multiplies whole feature maps by them. In early
layers of a network maps are large and weights few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from aotc import ops
from aotc.ir.expr import Call, Expr, Module, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import map_functions, rewrite_with_uses, with_body
from aotc.passes.options import Options
from aotc.passes.weights import array_of

LEAST_RATIO = 8
"""Elements for one weight: those are in the cache, and weights are not, so that they take longer."""


def scale_weights(module: Module, options: Options) -> Module:
    """``conv(x * scale, w)`` becomes ``conv(x, w * scale)`` over blocked channels, for one image, a kernel of one tap and a scale that
    is no constant."""

    def changed(function: Any) -> Any:
        body = rewrite_with_uses(function.body, _scaled)
        return function if body is function.body else with_body(function, body)

    return map_functions(module, changed)


def _scaled(node: Expr, uses: Callable[[Expr], int]) -> Expr | None:
    if not ops.conv.is_call(node):
        return None
    conv = cast(Call, node)
    product, weight = conv.args
    if not conv.attrs.channel_block or not ops.multiply.is_call(product) or uses(product) != 1:  # type: ignore[attr-defined]
        return None
    for x, scale in (cast(Call, product).args, cast(Call, product).args[::-1]):
        if array_of(scale) is None and _is_worth_it(x.type, scale.type, weight.type):
            _, blocks, *ones, block = scale.type.shape  # type: ignore[union-attr]
            aligned = ops.reshape(scale, shape=(blocks, *ones, block, 1), origin=scale.origin)
            return with_children(conv, [x, ops.multiply(weight, aligned, origin=product.origin)])
    return None


def _is_worth_it(x: Any, scale: Any, weight: Any) -> bool:
    """Whether ``scale`` has a value for each channel of ``x`` and ``weight`` no tap but one and few enough elements."""
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in (x, scale, weight)):
        return False
    if weight.rank != x.rank + 1 or x.rank < 4 or scale.shape != (1, x.shape[1], *[1] * (x.rank - 3), x.shape[-1]):
        return False
    return x.shape[0] == 1 and all(dim == 1 for dim in weight.shape[2:-2]) and LEAST_RATIO * weight.size <= x.size
