"""Structural equality of modules, with the first difference as a sentence."""

from __future__ import annotations

import numpy as np

from aotc.ir.expr import Call, Constant, Expr, Function, Let, Loop, Module, Parameter, TupleGetItem, Var, children
from aotc.ir.printer import attributes_text, functions_used, node_names


def equal(first: Module, second: Module, origins: bool = True) -> bool:
    """Whether two modules are the same graph with the same data; see ``first_difference``."""
    return first_difference(first, second, origins) is None


def first_difference(first: Module, second: Module, origins: bool = True) -> str | None:
    """The first difference in order of computation, or ``None``.

    Sharing counts: a node used twice differs from two equal nodes; only for constants it does not. ``origins`` says
    whether the users' names for nodes count.
    """
    for what, a, b in (
        ("entry points", list(first.functions), list(second.functions)),
        ("output names", dict(first.output_names), dict(second.output_names)),
        ("metadata", dict(first.metadata), dict(second.metadata)),
        ("versions", dict(first.versions), dict(second.versions)),
        ("states", *({name: str(initial.type) for name, initial in module.states.items()} for module in (first, second))),
        ("bounds of symbols", *(_bounds(module) for module in (first, second))),
    ):
        if a != b:
            return f"{what}: {a} in the first, {b} in the second"
    for name in first.functions:
        difference = function_difference(first.functions[name], second.functions[name], origins)
        if difference:
            return difference
    return None


def function_difference(first: Function, second: Function, origins: bool = True) -> str | None:
    """The first difference of two functions and of all functions that they call, or ``None``."""
    compared: set[tuple[int, int]] = set()
    pending = [(first, second)]
    while pending:
        a, b = pending.pop()
        if (id(a), id(b)) in compared or a is b:
            continue
        compared.add((id(a), id(b)))
        difference = _Comparison(a, b, origins).run()
        if difference:
            return difference
        pending += zip(functions_used(a), functions_used(b), strict=True)
    return None


class _Comparison:
    """Walks two function bodies side by side, children first, holding which node of one stands for which of the other."""

    def __init__(self, first: Function, second: Function, origins: bool) -> None:
        self.first, self.second, self.origins = first, second, origins
        self.partner: dict[int, Expr] = {}
        self.partner_back: dict[int, Expr] = {}

    def run(self) -> str | None:
        a, b = self.first, self.second
        if (a.name, a.primitive) != (b.name, b.primitive):
            return f"function {a.name!r}{' primitive' * a.primitive} in the first, {b.name!r}{' primitive' * b.primitive} in the second"
        if len(a.params) != len(b.params):
            return f"{a.name}: {len(a.params)} parameters in the first, {len(b.params)} in the second"
        if self.origins and a.origin != b.origin:
            return f"{a.name}: from {a.origin!r} in the first, from {b.origin!r} in the second"
        for one, other in zip(a.params, b.params, strict=True):
            difference = self.pair(one, other)
            if difference:
                return self.located(one, other, difference)
        return self.bodies()

    def bodies(self) -> str | None:
        stack = [(self.first.body, self.second.body, False)]
        while stack:
            a, b, expanded = stack.pop()
            if id(a) in self.partner and self.partner[id(a)] is b:
                continue
            below_a, below_b = _below(a), _below(b)
            if not expanded and type(a) is type(b) and len(below_a) == len(below_b):
                stack.append((a, b, True))
                stack += [(x, y, False) for x, y in zip(reversed(below_a), reversed(below_b), strict=True)]
                continue
            difference = self.pair(a, b)
            if difference:
                return self.located(a, b, difference)
        return None

    def pair(self, a: Expr, b: Expr) -> str | None:
        difference = self.local_difference(a, b)
        if difference or isinstance(a, Constant):
            return difference
        if self.partner.setdefault(id(a), b) is not b or self.partner_back.setdefault(id(b), a) is not a:
            return "shared with other uses in one, a node of its own in the other"
        return None

    def local_difference(self, a: Expr, b: Expr) -> str | None:
        if type(a) is not type(b):
            return f"{type(a).__name__} in the first, {type(b).__name__} in the second"
        pairs: list[tuple[str, object, object]] = []
        match a, b:
            case (Call(), Call()):
                pairs += [("operator", _op_name(a), _op_name(b)), ("number of arguments", len(a.args), len(b.args))]
                if a.attrs != b.attrs:
                    pairs.append(("attributes", attributes_text(a.attrs) or "{}", attributes_text(b.attrs) or "{}"))
            case (Var(), Var()):
                pairs.append(("name", a.name, b.name))
            case (Parameter(), Parameter()):
                pairs.append(("name", a.name, b.name))
            case (TupleGetItem(), TupleGetItem()):
                pairs.append(("index", a.index, b.index))
            case (Loop(), Loop()):
                pairs += [("limit", str(a.limit), str(b.limit)), ("trips", str(a.trips), str(b.trips))]
                pairs += [(f"number of {what}", len(x), len(y)) for what, x, y in _operand_groups(a, b)]
            case (Let(), Let()):
                pairs.append(("variable", a.var.name, b.var.name))
        pairs += [("number of children", len(_below(a)), len(_below(b))), ("type", str(a.type), str(b.type))]
        if self.origins:
            pairs.append(("origin", a.origin, b.origin))
        for what, x, y in pairs:
            if x != y:
                return f"{what} {x} in the first, {y} in the second"
        if isinstance(a, (Constant, Parameter)) and isinstance(b, (Constant, Parameter)):
            return _data_difference(a.data, b.data)
        return None

    def located(self, a: Expr, b: Expr, difference: str) -> str:
        names = node_names(self.first).get(a, a.origin), node_names(self.second).get(b, b.origin)
        where = names[0] if names[0] == names[1] else f"{names[0]} / {names[1]}"
        origin = f" ({a.origin})" if a.origin else ""
        return f"{self.first.name}: node {where}{origin}: {difference}"


def _below(node: Expr) -> tuple[Expr, ...]:
    """Children within the function; functions passed on are compared by themselves."""
    return () if isinstance(node, Function) else children(node)


def _operand_groups(a: Loop, b: Loop) -> list[tuple[str, tuple[Expr, ...], tuple[Expr, ...]]]:
    return [
        ("carried values", a.initial, b.initial), ("scanned tensors", a.scanned, b.scanned), ("captured values", a.captured, b.captured),
    ]  # fmt: skip


def _op_name(node: Call) -> str:
    return f"@{node.op.name}" if isinstance(node.op, Function) else node.op.name


def _bounds(module: Module) -> dict[str, tuple[int, int | None]]:
    return {name: (symbol.lower, symbol.upper) for name, symbol in sorted(module.symbols.items())}


def _data_difference(a: np.ndarray, b: np.ndarray) -> str | None:
    if a is b or a.tobytes() == b.tobytes():
        return None
    flat_a, flat_b = a.ravel(), b.ravel()
    differs = (flat_a != flat_b) & ~((flat_a != flat_a) & (flat_b != flat_b))
    if not differs.any():
        return "data differs in the bits of a NaN or zero"
    at = int(np.argmax(differs))
    return f"data differs first at element {at}: {flat_a[at]} in the first, {flat_b[at]} in the second"
