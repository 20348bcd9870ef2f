"""Computes at compile time what depends on constants and weights alone, by the operators' references."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.expr import Call, Constant, Expr, Function, If, Module, Parameter, Tuple
from aotc.ir.symbols import is_planned
from aotc.ir.types import TupleType, flatten
from aotc.ir.visitor import all_functions, calls_of, rewrite_module, substitute
from aotc.ops.base import OpDef
from aotc.ops.interpret import evaluate_call
from aotc.passes.options import Options
from aotc.passes.weights import Weights

SMALL = 1 << 16  # results of up to so many bytes are always folded
WIDENING = ("cast", "dequantise")  # weights that are stored narrow are folded: kernels read the wide ones
FROM_NOTHING = 1 << 10  # and of operators without arguments (full, arange), which are cheap to compute on the spot


def fold_constants(module: Module, options: Options) -> Module:
    """Calls over constants become constants, over weights new weights; an ``If`` on a constant becomes its branch.

    A result larger than its operands together (a broadcast, a one-hot) is folded only where it is small. Weights of networks
    whose activations are quantised stay integers for ``raise_integers``, which folds those that it has no use for.
    """
    weights = Weights(module)
    quantised = "raise_integers" not in options.skip and any(calls_of(each.body, ("quantise",)) for each in all_functions(module))
    return rewrite_module(module, lambda node: None if quantised and _is_dequantised(node) else fold(node, weights))


def _is_dequantised(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name == "dequantise"


def fold(node: Expr, weights: Weights) -> Expr | None:
    """What becomes of ``node`` where it depends on constants alone; else ``None``."""
    if isinstance(node, If):
        return _chosen_branch(node)
    if is_planned(node):
        return None  # they are there for what they define and check
    if not isinstance(node, Call) or isinstance(node.op, Function):
        return None
    arrays = [arg.data for arg in node.args if isinstance(arg, (Constant, Parameter))]
    if len(arrays) != len(node.args) or not _worthwhile(node, arrays):
        return None
    try:
        result = evaluate_call(node, arrays, {})
    except (ArithmeticError, ValueError, KeyError, InvalidModel):
        return None  # the model's own trouble, if that branch is ever run
    if isinstance(node.type, TupleType):
        return Tuple(tuple(_leaf(node, np.asarray(each), weights, f".{i}") for i, each in enumerate(result)), node.origin)
    return _leaf(node, np.asarray(result), weights)


def _chosen_branch(node: If) -> Expr | None:
    """The branch of an ``If`` on a constant, in the place of the node, where its type is the node's."""
    if not isinstance(node.condition, Constant):
        return None
    branch = node.then if bool(node.condition.data) else node.otherwise
    return substitute(branch.body, dict(zip(branch.params, node.args, strict=True))) if branch.body.type == node.type else None


def _worthwhile(node: Call, arrays: list[np.ndarray]) -> bool:
    results = flatten(node.type)
    if not all(result.is_static for result in results):
        return False
    size = sum(math.prod(result.static_shape()) * result.itemsize for result in results)
    if not arrays:
        return size <= FROM_NOTHING
    if cast(OpDef, node.op).name in WIDENING and results[0].size <= max(array.size for array in arrays):  # type: ignore[operator]
        return True
    return size <= max(SMALL, sum(array.nbytes for array in arrays))


def _leaf(node: Call, data: np.ndarray, weights: Weights, suffix: str = "") -> Expr:
    if not any(isinstance(arg, Parameter) for arg in node.args):
        return Constant(np.asarray(data, order="C"), node.origin)
    return weights.derive(node.args, f"{node.op.name}{suffix}", lambda: data, node.attrs)
