"""What a model needs and aotc lacks, all of it in one message."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

import onnx

from aotc.errors import UnsupportedModel
from aotc.frontends.onnx.functions import MAX_DEPTH, Key, body_of, domain_of, has_body, key_of, opsets_of_function, schema_of
from aotc.frontends.onnx.graph import origin_of, subgraphs
from aotc.frontends.onnx.operators import HANDLERS

SHOWN = 5  # node names per operator

_HINTS = {
    "com.microsoft": "ONNX Runtime's optimiser wrote this; pass the model from before it",
    "com.microsoft.nchwc": "ONNX Runtime's optimiser wrote this for one CPU; save the optimised model at the level ORT_ENABLE_EXTENDED",
    "ai.onnx.ml": "classical machine learning is outside of aotc; cut it off the graph",
}
_DEFAULT_HINT = "express it by other operators, define it as a custom operator (docs/custom_operators.md), or cut it off the graph and compute it in the application"

Missing = dict[tuple[str, str, int], list[str]]
"""Node names by domain, operator and opset."""


def refuse_missing(
    nodes: Iterable[onnx.NodeProto],
    opsets: Mapping[str, int],
    functions: Mapping[Key, onnx.FunctionProto],
    own: Container[tuple[str, str]] = (),
) -> None:
    """Raises UnsupportedModel that lists every operator without a handler, with counts, node names and a way out. ``own`` are
    domains and names of the user's operators."""
    missing: Missing = {}
    for key, name in _missing(nodes, opsets, functions, own, "", 0):
        missing.setdefault(key, []).append(name)
    if missing:
        lines = [_line(key, names) for key, names in sorted(missing.items(), key=lambda item: tuple(map(str, item[0])))]
        count = sum(map(len, missing.values()))
        raise UnsupportedModel(f"the model uses {len(missing)} operators that aotc lacks, in {count} nodes:\n" + "\n".join(lines))


def _missing(
    nodes: Iterable[onnx.NodeProto],
    opsets: Mapping[str, int],
    functions: Mapping[Key, onnx.FunctionProto],
    own: Container[tuple[str, str]],
    prefix: str,
    depth: int,
) -> Iterator[tuple[tuple[str, str, int], str]]:
    for node in nodes:
        if (domain_of(node.domain), node.op_type) in own:
            continue
        domain, opset, name = domain_of(node.domain), opsets.get(domain_of(node.domain), 0), prefix + origin_of(node)
        if depth <= MAX_DEPTH and key_of(node) in functions:
            body = functions[key_of(node)]
            yield from _missing(body.node, opsets_of_function(body, opsets), functions, own, f"{name}/", depth + 1)
        elif (domain, node.op_type) in HANDLERS:
            if node.op_type != "If":  # whose condition may be known; then one branch is never needed
                for graph in subgraphs(node):
                    yield from _missing(graph.node, opsets, functions, own, f"{name}/", depth)
        else:
            schema = schema_of(node, opset)
            if schema is None or not has_body(schema) or depth > MAX_DEPTH:
                yield (domain, node.op_type, opset), name
            elif schema.has_function:
                function = body_of(node, opset, [])
                if function is not None:
                    yield from _missing(function.node, opsets_of_function(function, opsets), functions, own, f"{name}/", depth + 1)


def _line(key: tuple[str, str, int], names: list[str]) -> str:
    domain, op_type, opset = key
    shown = ", ".join(repr(name) for name in names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    where = f"{domain or 'ai.onnx'} opset {opset}" if opset else f"{domain or 'ai.onnx'}, which the model does not import"
    return f"  {op_type} ({where}), {len(names)} times: {shown}; {_HINTS.get(domain, _DEFAULT_HINT)}"
