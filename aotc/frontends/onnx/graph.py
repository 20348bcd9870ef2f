"""The order in which a graph's nodes are imported: only what the outputs need, inputs first."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

import onnx

from aotc.errors import InvalidModel


def origin_of(node: onnx.NodeProto) -> str:
    """The user's name for a node: its own, or that of its first output."""
    return node.name or next((name for name in node.output if name), node.op_type)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node reads, those that its subgraphs capture included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names += captured(graph)
    return names


def captured(graph: onnx.GraphProto) -> list[str]:
    """The names that a graph reads and does not define."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in reads(node)] + [value.name for value in graph.output]
    return [name for name in dict.fromkeys(used) if name not in own]


def needed_nodes(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], available: Container[str], what: str) -> list[onnx.NodeProto]:
    """The nodes that ``outputs`` need, in the file's order where that is sound, else in one that is.

    Raises InvalidModel for a name that nothing produces, that two nodes produce, and for a cycle.
    """
    producers = _producers(nodes, available, what)
    order: list[int] = []
    state: dict[int, int] = {}  # 1: being visited, 2: done
    stack = [_producer(name, producers, available, what) for name in reversed(list(outputs))]
    while stack:
        index = stack[-1]
        if index is None or state.get(index) == 2:
            stack.pop()
            continue
        if state.get(index) == 1:
            state[index] = 2
            order.append(index)
            stack.pop()
            continue
        state[index] = 1
        for name in reversed(reads(nodes[index])):
            below = _producer(name, producers, available, f"node {origin_of(nodes[index])!r}")
            if below is not None and state.get(below) == 1:
                raise InvalidModel(f"{what}: the nodes {origin_of(nodes[below])!r} and {origin_of(nodes[index])!r} lie on a cycle")
            stack.append(below)
    in_file = sorted(order)
    return [nodes[i] for i in (in_file if _is_sound(in_file, nodes, producers) else order)]


def _producers(nodes: Sequence[onnx.NodeProto], available: Container[str], what: str) -> dict[str, int]:
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers or name in available:
                first = repr(origin_of(nodes[producers[name]])) if name in producers else "an input or initialiser"
                raise InvalidModel(f"{what}: the name {name!r} is defined twice, by {first} and by node {origin_of(node)!r}")
            producers[name] = index
    return producers


def _producer(name: str, producers: dict[str, int], available: Container[str], reader: str) -> int | None:
    if name in producers:
        return producers[name]
    if name in available:
        return None
    raise InvalidModel(f"{reader} reads {name!r}, which no node, input or initialiser produces")


def _is_sound(order: Sequence[int], nodes: Sequence[onnx.NodeProto], producers: dict[str, int]) -> bool:
    return all(producers.get(name, -1) < index for index in order for name in reads(nodes[index]))
