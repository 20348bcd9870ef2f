"""Bytes in the sign that the machine's products take: int8 moved up by 128 becomes uint8, or the other way.

x86 multiplies bytes without a sign by bytes with one, Arm two with one. A convolution of x + 128 is that of x and 128 times the sum
of its weights, which joins the constant behind it; where bytes are made the zero point and the limits move. All of this is exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, call, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import calls_of, map_functions, post_order, users, with_body
from aotc.ops.base import OpDef
from aotc.passes.options import Options
from aotc.passes.raise_integers_up import moves_bytes
from aotc.passes.weights import Weights, array_of

PRODUCTS = ("integer_conv", "integer_matmul")
MAKING = ("quantise", "requantise")


def choose_signs(module: Module, options: Options) -> Module:
    """Operands of integer products by constant bytes get the sign of ``options.target``."""
    if options.target is None:
        return module
    wanted, weights = options.target.byte_factor, Weights(module)
    return map_functions(module, lambda function: _choose(function, wanted, weights))


def _choose(function: Function, wanted: str, weights: Weights) -> Function:
    if not any(_is_product(node) for node in calls_of(function.body, PRODUCTS)):
        return function
    body = _Signs(function.body, wanted, weights).run()
    return function if body is function.body else with_body(function, body)


def _is_product(node: Expr) -> bool:
    """Whether ``node`` multiplies bytes by constant ones."""
    if not isinstance(node, Call) or node.op.name not in PRODUCTS or _dtype(node.args[0]) not in ("int8", "uint8"):
        return False
    return array_of(node.args[1]) is not None and _dtype(node.args[1]) == "int8"


def _dtype(node: Expr) -> str:
    return node.type.dtype if isinstance(node.type, TensorType) else ""


def _name(node: Expr) -> str:
    return node.op.name if isinstance(node, Call) and isinstance(node.op, OpDef) else ""


class _Signs:
    """One body. ``same`` holds the new form of each node, ``moved`` that of nodes whose bytes stand in the other sign."""

    def __init__(self, body: Expr, wanted: str, weights: Weights) -> None:
        self.body, self.wanted, self.weights = body, wanted, weights
        self.other, self.step = ("uint8", -128) if wanted == "int8" else ("int8", 128)
        self.users = users(body)
        self.order = post_order(body)
        self.same: dict[Expr, Expr] = {}
        self.moved: dict[Expr, Expr] = {}
        self.back: dict[Expr, Expr] = {}
        self.asked = self._asked()

    def run(self) -> Expr:
        for node in self.order:
            if node in self.asked and (changed := self._with_step(node)) is not None:
                self.moved[node] = changed
            else:
                self.same[node] = self._rebuilt(node)
        return self._plain(self.body)

    def _asked(self) -> set[Expr]:
        """Bytes of the other sign that reach a product through nothing but what moves them."""
        found: set[Expr] = set()
        for node in reversed(self.order):
            if _dtype(node) == self.other and any(self._asks(user, node, found) for user in self.users[node]):
                found.add(node)
        return found

    def _asks(self, user: Expr, node: Expr, found: set[Expr]) -> bool:
        if isinstance(user, Call) and _is_product(user):
            return user.args[0] is node
        return _moves(user) and user in found

    def _plain(self, node: Expr) -> Expr:
        """``node`` as it was."""
        if node in self.moved:
            if node not in self.back:
                self.back[node] = _stepped(self.moved[node], -self.step, self.other)
            return self.back[node]
        return self.same[node]

    def _shifted(self, node: Expr) -> Expr:
        """``node`` in the wanted sign."""
        if node not in self.moved:
            self.back[node] = self.same[node]
            self.moved[node] = _stepped(self.same[node], self.step, self.wanted)
        return self.moved[node]

    def _with_step(self, node: Expr) -> Expr | None:
        """``node`` computed in the wanted sign; ``None`` where it can only be moved afterwards."""
        if not isinstance(node, Call) or not isinstance(node.op, OpDef):
            return None
        name, attrs = node.op.name, node.attrs
        if name in MAKING:
            zero = self._zero(node.args[2:])
            return None if zero is None else call(node.op, [*map(self._plain, node.args[:2]), zero], self._limits(attrs), node.origin)
        if name == "look_up":
            table = array_of(node.args[1])
            if table is None:
                return None
            bytes_ = (table.astype("int16") + self.step).astype(self.wanted)
            return call(node.op, [self._plain(node.args[0]), Constant(bytes_, node.args[1].origin)], attrs, node.origin)
        if not _moves(node):
            return None
        if name == "concat":
            return call(node.op, [self._shifted(arg) for arg in node.args], attrs, node.origin)
        return call(node.op, [self._shifted(node.args[0]), *map(self._plain, node.args[1:])], self._values(name, attrs), node.origin)

    def _zero(self, given: tuple[Expr, ...]) -> Constant | None:
        """The zero point, given or 0, moved."""
        data = array_of(given[0]) if given else np.zeros((), self.other)
        if data is None:
            return None
        return Constant((data.astype("int16") + self.step).astype(self.wanted), given[0].origin if given else "")

    def _limits(self, attrs: Any) -> Any:
        if attrs.low == attrs.high:
            return replace(attrs, dtype=self.wanted)
        return replace(attrs, dtype=self.wanted, low=attrs.low + self.step, high=attrs.high + self.step)

    def _values(self, name: str, attrs: Any) -> Any:
        """Attributes that are values of bytes."""
        if name == "pad":
            return replace(attrs, value=attrs.value + self.step)
        if name == "clip":
            ends = {end: None if getattr(attrs, end) is None else getattr(attrs, end) + self.step for end in ("minimum", "maximum")}
            return replace(attrs, **ends)
        return attrs

    # Readers --------------------------------------------------------------------------------------------------------

    def _rebuilt(self, node: Expr) -> Expr:
        first = children(node)[0] if children(node) else None
        if first is not None and _dtype(first) == self.other and isinstance(node, Call):
            if _is_product(node):
                return self._product(node)
            if first in self.moved and _name(node) == "dequantise" and (zero := self._zero(node.args[2:])) is not None:
                return call(node.op, [self.moved[first], self._plain(node.args[1]), zero], node.attrs, node.origin)
            if first in self.moved and _name(node) == "integer_sum" and (sums := self._sums(node)) is not None:
                return sums
            if first in self.moved and _name(node) == "look_up" and (table := array_of(node.args[1])) is not None:
                return call(node.op, [self.moved[first], Constant(np.roll(table, 128), node.args[1].origin)], node.attrs, node.origin)
        if _name(node) in ("add", "subtract") and _dtype(node) == "int32" and (joined := self._joined(node)) is not None:  # type: ignore[arg-type]
            return joined
        return with_children(node, [self._plain(child) for child in children(node)])

    def _product(self, node: Call) -> Expr:
        data = array_of(node.args[1])
        assert data is not None
        attrs: Any = node.attrs
        conv = node.op.name == "integer_conv"
        if conv:
            attrs = replace(attrs, pad_value=attrs.pad_value + self.step)
        made = call(node.op, [self._shifted(node.args[0]), self._plain(node.args[1])], attrs, node.origin)
        axes = tuple(range(1, data.ndim)) if conv else (data.ndim - 2,)
        sums = data.sum(axis=axes, dtype="int64").astype("int32") * np.int32(-self.step)
        return _plus(made, sums.reshape(-1, *[1] * (data.ndim - 2)) if conv else sums, node.origin)

    def _sums(self, node: Call) -> Expr | None:
        """``integer_sum``."""
        x, attrs = node.args[0].type, node.attrs
        count = 1
        for axis in attrs.axes:  # type: ignore[attr-defined]
            extent = x.shape[axis]  # type: ignore[union-attr]
            if not isinstance(extent, int):
                return None
            count *= extent
        made = call(node.op, [self.moved[node.args[0]]], attrs, node.origin)
        return _plus(made, np.asarray(-self.step * count, "int32"), node.origin)

    def _joined(self, node: Call) -> Expr | None:
        """A constant behind a product, or behind one that is there already: one that is added."""
        for this, other in (node.args, node.args[::-1]):
            data, before = array_of(other), self.same.get(this)
            subtracts = node.op.name == "subtract"
            if data is None or before is None or (subtracts and this is not node.args[0]):
                continue
            data = -data if subtracts else data
            if isinstance(before, Call) and _name(before) == "add" and _is_product(before.args[0]) and isinstance(before.args[1], Constant):
                return _plus(before.args[0], np.asarray(before.args[1].data + data, "int32"), node.origin)
            if subtracts and _is_product(before):
                return _plus(before, data, node.origin)
        return None


def _moves(node: Expr) -> bool:
    """Whether ``node`` gives of moved bytes what it gives of bytes, moved."""
    return isinstance(node, Call) and isinstance(node.op, OpDef) and (moves_bytes(node) or node.op.name == "clip")


def _plus(x: Expr, data: np.ndarray, origin: str) -> Expr:
    return ops.add(x, Constant(data, origin), origin=origin)


def _stepped(x: Expr, step: int, dtype: str) -> Expr:
    if isinstance(x, (Constant, Parameter)):
        return Constant((x.data.astype("int16") + step).astype(dtype), x.origin)
    wide = ops.add(ops.cast(x, dtype="int16", origin=x.origin), Constant(np.asarray(step, "int16")), origin=x.origin)
    return ops.cast(wide, dtype=dtype, origin=x.origin)
