"""float32 networks in float16: which values become halves, and where they are made floats again.

Every operator on halves computes in float32 inside its kernel and rounds its result once, so sums, norms and softmaxes keep their
precision; what this pass decides is which results fit a half. As in mixed-precision training (Micikevicius et al., 2018), products of
weights do, what grows beyond its operands does not, and all else follows its operands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Var, call, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import map_functions, post_order, with_body
from aotc.ops.base import OpDef
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of

HALVES = frozenset({"conv", "conv_transpose", "dense", "matmul", "attention"})
"""Their results are halves whatever their operands were."""

FLOATS = frozenset({
    "exp", "expm1", "power", "reciprocal", "rsqrt", "log", "log1p", "tan", "sinh", "cosh", "divide", "sum", "prod", "cumsum",
    "cumprod", "lrn", "fold", "fourier", "determinant", "lstm", "gru", "rnn", "scatter_elements", "scatter_nd", "deform_columns",
    "grid_sample", "roi_align", "roi_pool", "non_max_suppression", "top_k", "tree_ensemble", "arange", "cast", "bitcast",
    "encode", "decode", "quantise", "dequantise", "requantise", "random_bits",
})  # fmt: skip
"""Their results are floats: they reach beyond 65504, or lose what later operators need; or they count, or compute places."""

LARGEST = float(np.finfo(np.float16).max)


def lower_precision(module: Module, options: Options) -> Module:
    """Values become float16 where ``options.precision`` is ``fp16``; inputs, outputs and states keep their types. Weights and
    constants beyond the largest half become that, infinite ones too: masks of -inf stay finite, so that no row is all NaN."""
    if options.precision != "fp16":
        return module
    weights = Weights(module)
    return map_functions(module, lambda function: _Lowering(weights).run(function))


class _Lowering:
    """One function. ``new`` holds what became of each node, ``cast`` the other form of each new value that was made."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.new: dict[Expr, Expr] = {}
        self.cast: dict[tuple[Expr, str], Expr] = {}

    def run(self, function: Function) -> Function:
        for node in post_order(function.body):
            self.new[node] = self._lowered(node)
        body = self._as(self.new[function.body], function.body.type)
        return function if body is function.body else with_body(function, body)

    def _lowered(self, node: Expr) -> Expr:
        if isinstance(node, Call) and isinstance(node.op, OpDef) and _is_float(node) and self._is_half(node, node.op):
            made = call(node.op, [self._half(arg) if _is_float(arg) else self.new[arg] for arg in node.args], node.attrs, node.origin)
            if _dtype(made) == "float16":
                return made
        return self._plain(node)

    def _is_half(self, node: Call, op: OpDef) -> bool:
        if op.name in HALVES:
            return True
        if op.name == "gather" and (table := array_of(node.args[0])) is not None:  # an embedding
            return bool(np.abs(table).max(initial=0) <= LARGEST)
        if op.name in FLOATS or (op.name == "multiply" and node.args[0] is node.args[1]):
            return False
        operands = [arg for arg in node.args if _is_float(arg) and array_of(arg) is None]
        return bool(operands) and all(_dtype(self.new[arg]) == "float16" for arg in operands)

    def _plain(self, node: Expr) -> Expr:
        """``node`` over operands of the types that it has always had."""
        if isinstance(node, (Var, Constant, Parameter)):
            return node
        return with_children(node, [self._as(self.new[child], child.type) for child in children(node)])

    def _half(self, arg: Expr) -> Expr:
        data = array_of(arg)
        if data is None:
            return self._to(self.new[arg], "float16")
        if isinstance(arg, Constant):
            return replace(arg, data=_as_half(data))
        return self.weights.derive([arg], "half", lambda: _as_half(data))

    def _as(self, value: Expr, type_: Any) -> Expr:
        return self._to(value, type_.dtype) if isinstance(type_, TensorType) and type_.dtype != _dtype(value) else value

    def _to(self, value: Expr, dtype: str) -> Expr:
        if _dtype(value) == dtype:
            return value
        if (value, dtype) not in self.cast:
            if ops.reshape.is_call(value):  # the cast stands before it, beside what computes the value
                made = with_children(value, [self._to(children(value)[0], dtype)])
            else:
                made = ops.cast(value, dtype=dtype, origin=getattr(value, "origin", ""))
            self.cast[value, dtype], self.cast[made, _dtype(value)] = made, value
        return self.cast[value, dtype]


def _is_float(expr: Expr) -> bool:
    return _dtype(expr) == "float32"


def _dtype(expr: Expr) -> str:
    return expr.type.dtype if isinstance(expr.type, TensorType) else ""


def _as_half(data: np.ndarray) -> np.ndarray:
    return np.clip(data, -LARGEST, LARGEST).astype(np.float16)
