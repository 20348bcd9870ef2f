"""Walking and rewriting expressions without recursion: graphs may be ten thousand nodes deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aotc.ir.expr import Call, Expr, Function, Let, Module, Var, bodies, children, with_bodies, with_children

Rule = Callable[[Expr], "Expr | None"]


def post_order(*roots: Expr, into_functions: bool = True) -> list[Expr]:
    """Each node below ``roots`` once, children first, in a fixed order. Bodies of called functions are not entered;
    those of functions that are operands are, unless ``into_functions`` is off."""
    order: list[Expr] = []
    done: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((node, True))
            if isinstance(node, Function) and not into_functions:
                continue
            stack.extend((child, False) for child in reversed(children(node)) if id(child) not in done)
    return order


def rewrite(root: Expr, rule: Rule) -> Expr:
    """``root`` with ``rule`` applied to every node once, children first; each sees its children already rewritten.

    A rule returns the replacement, or ``None`` for "not mine". Shared nodes stay shared. The same object comes back
    when no rule fired.
    """
    new: dict[int, Expr] = {}
    for node in post_order(root):
        rebuilt = with_children(node, [new[id(child)] for child in children(node)])
        replacement = rule(rebuilt)
        new[id(node)] = rebuilt if replacement is None else replacement
    return new[id(root)]


def substitute(root: Expr, values: Mapping[Var, Expr]) -> Expr:
    """``root`` with variables replaced, types computed anew."""
    return rewrite(root, lambda node: values.get(node) if isinstance(node, Var) else None)


def users(*roots: Expr) -> dict[Expr, list[Expr]]:
    """For each node the nodes that use it, once per use."""
    found: dict[Expr, list[Expr]] = {node: [] for node in post_order(*roots)}
    for node in found:
        for child in children(node):
            found[child].append(node)
    return found


def free_vars(root: Expr) -> list[Var]:
    """Variables that ``root`` uses and does not bind, in the order in which they are met."""
    nodes = post_order(root)
    bound = {var for node in nodes if isinstance(node, Function) for var in node.params}
    bound |= {node.var for node in nodes if isinstance(node, Let)}
    return [node for node in nodes if isinstance(node, Var) and node not in bound]


def rewrite_module(module: Module, rule: Rule) -> Module:
    """Each entry point rewritten by ``rule``; the same module where nothing changed."""
    return map_functions(module, lambda function: rewrite_body(function, rule))


def rewrite_body(function: Function, rule: Rule) -> Function:
    body = rewrite(function.body, rule)
    return function if body is function.body else with_body(function, body)


def with_body(function: Function, body: Expr) -> Function:
    return Function(function.params, body, function.name, function.primitive, function.origin)


def map_functions(module: Module, change: Callable[[Function], Function]) -> Module:
    """Each entry point, and each body of an ``If`` or ``Loop`` in it, replaced by ``change`` of it; the same module where
    nothing changed."""
    functions = {name: _map_nested(function, change) for name, function in module.functions.items()}
    if all(functions[name] is module.functions[name] for name in functions):
        return module
    return module.with_functions(functions)


def _map_nested(function: Function, change: Callable[[Function], Function]) -> Function:
    changed = change(function)
    if not any(bodies(node) for node in post_order(changed.body)):
        return changed
    return rewrite_body(changed, lambda node: _map_bodies(node, change))


def _map_bodies(node: Expr, change: Callable[[Function], Function]) -> Expr | None:
    return with_bodies(node, [_map_nested(body, change) for body in bodies(node)]) if bodies(node) else None


def all_functions(module: Module) -> list[Function]:
    """The entry points and, behind each, the bodies of its ``If`` and ``Loop`` nodes, nested ones too."""
    found: list[Function] = []
    stack = list(reversed(list(module.functions.values())))
    while stack:
        function = stack.pop()
        found.append(function)
        stack += [body for node in reversed(post_order(function.body)) for body in reversed(bodies(node))]
    return found


def calls_of(root: Expr, names: Iterable[str] = ()) -> list[Call]:
    """The operator calls below ``root``, children first; only those of the operators named, if any are."""
    wanted = set(names)
    found = [node for node in post_order(root) if isinstance(node, Call) and not isinstance(node.op, Function)]
    return [node for node in found if not wanted or node.op.name in wanted]


def rewrite_with_uses(root: Expr, rule: Callable[[Expr, Callable[[Expr], int]], Expr | None]) -> Expr:
    """As ``rewrite``, for rules that ask how often an operand is used: ``rule(node, uses)``, where ``uses(operand)`` counts
    the uses in the graph as it was before. Nodes that the rule itself has just made count as used once."""
    count: dict[int, int] = {}
    new: dict[int, Expr] = {}
    before: dict[int, int] = {}
    kept: list[Expr] = []  # keeps what ``before`` names by identity alive
    order = post_order(root)
    for node in order:
        for child in children(node):
            count[id(child)] = count.get(id(child), 0) + 1
    for node in order:
        rebuilt = with_children(node, [new[id(child)] for child in children(node)])
        replacement = rule(rebuilt, lambda operand: count.get(before.get(id(operand), 0), 1))
        result = rebuilt if replacement is None else replacement
        new[id(node)] = result
        before.setdefault(id(result), id(node))
        kept.append(result)
    return new[id(root)]
