"""Finds attention in its parts: products of queries and keys, scaled and masked, their softmax, its product with the values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, Module, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import map_functions, post_order, users, with_body
from aotc.ops.attention import TOKENS_FIRST
from aotc.passes.options import Options
from aotc.passes.weights import scalar_of

LAST_TWO = (0, 1, 3, 2)


def fuse_attention(module: Module, options: Options) -> Module:
    """matmul(softmax(matmul(q, k^T) * scale, masked), v) becomes ``attention`` where nothing else reads scores or weights. Scalar
    factors of q and k join the scale, transposes of heads and tokens become flags. Operands of rank 3 get an axis of one head.
    Only float32 is fused: its kernel computes in the operands' type."""
    return map_functions(module, _fuse)


def _fuse(function: Function) -> Function:
    uses = users(function.body)
    found: dict[Expr, _Found] = {}
    for node in uses:
        match = _root(node, uses)
        if match is not None:
            found[node] = match
    for node in uses:  # a transpose that follows is a flag of the result
        if _is(node, ops.transpose) and node.args[0] in found and uses[node.args[0]] == [node]:
            inner = found[node.args[0]]
            if inner.rank == 4 and _attrs(node).axes == TOKENS_FIRST:
                found[node] = replace(inner, result_flag=1)
    if not found:
        return function
    new: dict[Expr, Expr] = {}
    for node in post_order(function.body):
        rebuilt = with_children(node, [new[child] for child in children(node)])
        new[node] = found[node].call(new, node) if node in found else rebuilt
    return with_body(function, new[function.body])


@dataclass(frozen=True)
class _Operand:
    """``x``, multiplied by ``factor``, is the operand; ``flag``: it has tokens before heads."""

    x: Expr
    factor: float
    flag: int = 0


@dataclass(frozen=True)
class _Found:
    q: _Operand
    k: _Operand
    v: _Operand
    scale: float
    mask: Expr | None
    fill: float
    hides: bool
    zero_rows: bool
    rank: int
    result_flag: int = 0

    def call(self, new: Mapping[Expr, Expr], root: Expr) -> Expr:
        operands = [new[part.x] for part in (self.q, self.k, self.v)]
        mask = None if self.mask is None else new[self.mask]
        if mask is not None and self.hides:
            mask = ops.logical_not(mask, origin=root.origin)
        if self.rank == 3:
            operands = [_with_head(operand) for operand in operands]
            mask = _with_head(mask) if mask is not None and _type(mask).rank == 3 else mask
        call = ops.attention(
            *operands, *(() if mask is None else (mask,)), scale=self.scale * self.q.factor * self.k.factor,
            tokens_first=(self.q.flag, self.k.flag, self.v.flag, self.result_flag), fill=self.fill, zero_rows=self.zero_rows, origin=root.origin,
        )  # fmt: skip
        return ops.reshape(call, shape=_type(root).shape, origin=root.origin) if self.rank == 3 else call


def _with_head(x: Expr) -> Expr:
    first, *rest = _type(x).shape
    return ops.reshape(x, shape=(first, 1, *rest), origin=x.origin)


def _type(expr: Expr) -> TensorType:
    assert isinstance(expr.type, TensorType)
    return expr.type


def _attrs(call: Call) -> Any:
    return call.attrs


def _is(expr: Expr, *operators: Any) -> TypeGuard[Call]:
    return isinstance(expr, Call) and any(operator.is_call(expr) for operator in operators)


def _root(node: Expr, uses: Mapping[Expr, Sequence[Expr]]) -> _Found | None:
    """A product with values, or one whose rows that see nothing are made zeros."""
    if _is(node, ops.matmul):
        return _product(node, uses, ())
    if not _is(node, ops.where):
        return None
    condition, zero, product = node.args
    if not _is(condition, ops.equal) or scalar_of(zero) != 0 or not _is(product, ops.matmul) or uses[product] != [node]:
        return None
    greatest, least = condition.args
    if not _is(greatest, ops.max_) or scalar_of(least) != -math.inf:
        return None
    attrs, rank = _attrs(greatest), _type(greatest.args[0]).rank
    if not attrs.keepdims or tuple(axis % rank for axis in attrs.axes) != (rank - 1,):
        return None
    match, weights = _product(product, uses, (greatest,)), product.args[0]
    same = isinstance(weights, Call) and weights.args[0] is greatest.args[0]
    return replace(match, zero_rows=True) if match and same else None


def _product(node: Call, uses: Mapping[Expr, Sequence[Expr]], also: tuple[Expr, ...]) -> _Found | None:
    """``also`` are nodes that may read the scores beside the softmax."""
    weights, values = node.args
    if not _is(weights, ops.softmax) or len(uses[weights]) != 1:
        return None
    rank = _type(weights).rank
    if rank not in (3, 4) or _type(values).rank != rank or _attrs(weights).axis % rank != rank - 1 or _type(node).dtype != "float32":
        return None
    scores = weights.args[0]
    mask: Expr | None = None
    allowed: set[Expr] = {weights, *also}
    scale, fill, hides = 1.0, -math.inf, False
    while not _is(scores, ops.matmul):
        if not set(uses[scores]) <= allowed:
            return None
        allowed = {scores}
        scaled, hidden = _scaled(scores), _masked(scores)
        if scaled is not None:
            scores, factor = scaled
            scale *= factor
        elif hidden is not None and mask is None and scale == 1.0:
            scores, mask, fill, hides = hidden
        else:
            return None
    none = _Operand(node, 1.0)
    return _operands(scores, values, uses, allowed, _Found(none, none, none, scale, mask, fill, hides, False, rank))


def _operands(product: Call, values: Expr, uses: Mapping[Expr, Sequence[Expr]], allowed: set[Expr], found: _Found) -> _Found | None:
    if not set(uses[product]) <= allowed or (found.mask is not None and not _fits(found.mask, product)):
        return None
    plain, turned = ((0, 1, 2), (0, 2, 1)) if found.rank == 3 else ((0, 1, 2, 3), LAST_TWO)
    q, k, v = _peeled(product.args[0], plain), _peeled(product.args[1], turned), _peeled(values, plain, scaled=False)
    if q is None or k is None or v is None:
        return None
    match = replace(found, q=q, k=k, v=v)
    shapes = [_heads_first(part, found.rank) for part in (q, k, v)]
    same = all(shape[:2] == shapes[0][:2] for shape in shapes) and shapes[1][2] == shapes[2][2]
    known = isinstance(shapes[0][3], int) and isinstance(shapes[2][3], int)
    return match if same and known and shapes[0][3] == shapes[1][3] else None


def _heads_first(part: _Operand, rank: int) -> tuple[Any, ...]:
    shape = _type(part.x).shape
    if rank == 3:
        return (shape[0], 1, *shape[1:])
    return tuple(shape[axis] for axis in TOKENS_FIRST) if part.flag else shape


def _peeled(x: Expr, wanted: tuple[int, ...], scaled: bool = True) -> _Operand | None:
    """``x`` without scalar factors and transposes, where what is left of these is ``wanted``, perhaps with heads and tokens
    swapped; at the first node from which on that is so."""
    best: _Operand | None = None
    axes, factor = tuple(range(len(wanted))), 1.0
    while True:
        if axes == wanted:
            best = _Operand(x, factor)
        elif len(wanted) == 4 and axes == tuple(TOKENS_FIRST[axis] for axis in wanted):
            best = _Operand(x, factor, 1)
        step = _scaled(x) if scaled else None
        if step is not None:
            x, factor = step[0], factor * step[1]
        elif _is(x, ops.transpose):
            axes = tuple(_attrs(x).axes[axis] for axis in axes)
            x = x.args[0]
        else:
            return best


def _scaled(expr: Expr) -> tuple[Expr, float] | None:
    """A product with a number, or a quotient by one: the other operand and the factor."""
    if _is(expr, ops.multiply, ops.divide):
        quotient = _is(expr, ops.divide)
        for x, other in (expr.args,) if quotient else (expr.args, expr.args[::-1]):
            number = scalar_of(other)
            if number is not None and math.isfinite(number) and number and x.type == expr.type:
                return x, 1 / float(number) if quotient else float(number)
    return None


def _masked(expr: Expr) -> tuple[Expr, Expr, float, bool] | None:
    """Scores, their mask, and the score where a mask of truth values is false, or true if it says what is hidden."""
    if _is(expr, ops.add):
        for x, mask in (expr.args, expr.args[::-1]):
            if x.type == expr.type and (_is(x, ops.matmul) or _scaled(x) is not None):
                return x, mask, -math.inf, False
    if _is(expr, ops.where):
        condition, yes, no = expr.args
        for x, other, hides in ((yes, no, False), (no, yes, True)):
            fill = scalar_of(other)
            if fill is not None and x.type == expr.type:
                return x, condition, fill, hides
    return None


def _fits(mask: Expr, scores: Expr) -> bool:
    """Whether a mask broadcasts to scores without making them larger."""
    shape, wanted = _type(mask).shape, _type(scores).shape
    own = zip(shape, wanted[len(wanted) - len(shape) :], strict=True) if len(shape) <= len(wanted) else ((0, 1),)
    return _type(mask).dtype in ("bool", _type(scores).dtype) and all(a in (1, b) for a, b in own)
