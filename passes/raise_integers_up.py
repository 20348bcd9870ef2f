"""``quantise`` moves up to what computes its value: activations become limits, and what follows handles bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, call
from aotc.ir.visitor import rewrite_with_uses
from aotc.ops.quantise import limits
from aotc.passes.raise_integers_values import parameters_of

Uses = Callable[[Expr], int]

MOVING = frozenset({"reshape", "transpose", "slice", "broadcast_to", "tile", "max_pool", "gather", "pad", "concat", "max", "min"})
"""Each element of their results is one of an operand's, or the largest of several, which rounding does not change."""


def quantise_early(body: Expr) -> Expr:
    """``body`` with each quantise as far up as it gives the same integers. It passes only what nobody else reads."""
    return rewrite_with_uses(body, _rule)


def moves_bytes(node: Call) -> bool:
    """Whether ``node`` gives of bytes what it gives of the values they stand for."""
    attrs: Any = node.attrs
    return node.op.name in MOVING or (node.op.name == "resize" and attrs.mode == "nearest" and attrs.coordinate != "tf_crop_and_resize")


def _rule(node: Expr, uses: Uses) -> Expr | None:
    if not isinstance(node, Call) or not ops.quantise.is_call(node):
        return None
    parameters = parameters_of(node)
    if parameters is None or any(each.size != 1 for each in parameters):
        return None
    moved = _Quantiser(node, uses).before(node.args[0], node.attrs)
    return None if isinstance(moved, Call) and moved.args[0] is node.args[0] else moved


@dataclass(frozen=True)
class _Quantiser:
    node: Call
    uses: Uses

    def before(self, x: Expr, attrs: Any) -> Expr:
        """x quantised, with limits of its own, as early as can be."""
        if isinstance(x, Call) and not isinstance(x.op, Function) and self.uses(x) == 1:
            if x.op.name in ("relu", "clip"):
                held = self._held(x, attrs)
                if held is not None:
                    return self.before(x.args[0], held)
            elif moves_bytes(x):
                return self._moved(x, attrs)
        return call(ops.quantise, [x, *self.node.args[1:]], attrs, self.node.origin)

    def _held(self, x: Call, attrs: Any) -> Any:
        """The limits with those of an activation; ``None`` where nothing would be between them."""
        ends: Any = (0.0, None) if x.op.name == "relu" else (x.attrs.minimum, x.attrs.maximum)  # type: ignore[attr-defined]
        low, high = limits(attrs)
        low = low if ends[0] is None else max(low, self._integer(ends[0], attrs))
        high = high if ends[1] is None else min(high, self._integer(ends[1], attrs))
        info = np.iinfo(attrs.dtype)
        if low >= high:
            return None
        whole = (low, high) == (int(info.min), int(info.max))
        return replace(attrs, low=0, high=0) if whole else replace(attrs, low=low, high=high)

    def _integer(self, value: float, attrs: Any) -> int:
        scale, *zero = (np.asarray(each.data) for each in self.node.args[1:])  # type: ignore[union-attr]
        return int(ops.quantise.reference(attrs, np.asarray(value, scale.dtype), scale.reshape(()), *(z.reshape(()) for z in zero)))

    def _moved(self, x: Call, attrs: Any) -> Expr:
        if x.op.name == "concat":
            return call(x.op, [self.before(arg, attrs) for arg in x.args], x.attrs, x.origin)
        own: Any = x.attrs
        if x.op.name == "pad":
            own = replace(own, value=self._integer(own.value, attrs))
        return call(x.op, [self.before(x.args[0], attrs), *x.args[1:]], own, x.origin)
