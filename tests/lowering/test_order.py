"""Nodes of two processors in stretches: every order keeps what must come before what."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, Var, call, children
from aotc.ir.symbols import schedule
from aotc.ir.types import TensorType
from aotc.lowering.order import in_stretches

T = TensorType((4, 4), "float32")


def fused(count: int) -> Function:
    """The sum of as many tensors."""
    params = [Var(f"p{i}", T) for i in range(count)]
    total: Expr = params[0]
    for param in params[1:]:
        total = ops.add(total, param)
    return Function(tuple(params), ops.relu(total), f"sum{count}")


@pytest.mark.parametrize("seed", range(40))
def test_dependencies_hold_and_stretches_are_few(seed: int) -> None:
    source = random.Random(seed)
    nodes: list[Expr] = [Var(f"x{i}", T) for i in range(2)]
    for _ in range(source.randint(1, 20)):
        args = source.sample(nodes, min(len(nodes), source.randint(1, 3)))
        nodes.append(call(fused(len(args)), args))
    order = [node for node in schedule(*nodes[2:]) if not isinstance(node, Var)]
    sides = {node: source.random() < 0.5 for node in order}
    in_place = {}
    for node in order:
        assert isinstance(node, Call) and isinstance(node.op, Function)
        last = node.args[0]
        readers = [other for other in order if last in children(other)]
        if not isinstance(last, Var) and readers[-1] is node and len(node.args) == len(set(node.args)) and source.random() < 0.5:
            in_place[node.op] = 0
    found = in_stretches(order, lambda node: sides[node], in_place)
    place = {node: number for number, node in enumerate(found)}
    assert sorted(map(id, found)) == sorted(map(id, order))
    for node in order:
        assert all(isinstance(arg, Var) or place[arg] < place[node] for arg in children(node))
        if node.op in in_place:  # type: ignore[union-attr]
            assert all(place[other] <= place[node] for other in order if node.args[0] in children(other))  # type: ignore[union-attr]
    assert changes([sides[node] for node in found]) <= changes([sides[node] for node in order]) + 1


def changes(sides: list[bool]) -> int:
    return int(np.count_nonzero(np.diff(np.array(sides, int))))
