"""The order of nodes where two processors run them: each in few long stretches, since a change is a crossing and ends a CUDA graph."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence

from aotc.ir.expr import Call, Expr, Function, children
from aotc.ir.symbols import definers
from aotc.lowering.in_place import InPlace
from aotc.lowering.views import is_view, resolve_view


def in_stretches(order: Sequence[Expr], side: Callable[[Expr], bool | None], in_place: InPlace) -> list[Expr]:
    """The nodes of ``order``, which is one of those that their dependencies allow, in another of these: what one ``side`` runs is
    taken as long as something of it can run. ``None`` is for nodes that are no steps."""
    number = {node: i for i, node in enumerate(order)}
    after: defaultdict[Expr, set[Expr]] = defaultdict(set)
    waits: dict[Expr, int] = {}
    for node, before in _dependencies(order, in_place).items():
        waits[node] = len(before)
        for each in before:
            after[each].add(node)
    ready: dict[bool | None, list[int]] = {None: [], False: [], True: []}

    def release(node: Expr) -> None:
        heapq.heappush(ready[side(node)], number[node])

    for node in order:
        if not waits[node]:
            release(node)
    found: list[Expr] = []
    current = False
    while len(found) < len(order):
        heap = ready[None] or ready[current] or ready[current := not current]
        node = order[heapq.heappop(heap)]
        found.append(node)
        for each in after[node]:
            waits[each] -= 1
            if not waits[each]:
                release(each)
    return found


def _dependencies(order: Sequence[Expr], in_place: InPlace) -> dict[Expr, set[Expr]]:
    """What each node comes after: its operands, the nodes that define the symbols it mentions, and where it writes over an operand
    all others that read this."""
    known = set(order)
    defining = definers(order)
    found = {node: {each for each in (*children(node), *defining(node)) if each in known} for node in order}
    readers: defaultdict[tuple[Expr, int], set[Expr]] = defaultdict(set)
    for node in order:
        if not (isinstance(node, Call) and is_view(node)):
            for arg in children(node):
                readers[resolve_view(arg)].add(node)
    for node in order:
        if isinstance(node, Call) and isinstance(node.op, Function) and node.op in in_place:
            found[node] |= readers[resolve_view(node.args[in_place[node.op]])] - {node}
    return found
