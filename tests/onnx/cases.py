"""The node tests as onnx's runner collects them: which there are, what each is about, and which do not count."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
from onnx.backend.test.case.test_case import TestCase

TRAINING = "ai.onnx.preview.training"
STRING_OPERATORS = {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"}
OPTIONAL_OPERATORS = {"Optional", "OptionalGetElement", "OptionalHasElement"}


@dataclass(frozen=True, order=True)
class Operator:
    """An operator as of one opset of its domain. ``since``: the opset that defined this version of it."""

    domain: str
    name: str
    since: int


@functools.cache
def cases() -> dict[str, TestCase]:
    """All node tests by name. Takes seconds: onnx computes what is expected of each."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def part_of(name: str, parts: int) -> int:
    """The part, from 1, that a test belongs to when all are cut into ``parts``: a hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts + 1


def drawn(names: Iterable[str], count: int, seed: int) -> list[str]:
    """``count`` of ``names``, drawn by ``seed``; a name that comes or goes changes the draw by no more than itself."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count]


def operator_of(case: TestCase) -> Operator:
    """What a test is about: its one node; of several, the node that the expanded function or the test's name names."""
    base = cases().get(case.name.split("_expanded")[0], case)
    nodes = list(base.model.graph.node)
    plain = base.name.replace("_", "").lower()
    named = [node for node in nodes if node.op_type.lower() in plain and node.op_type != "Identity"]
    node = max(named, key=lambda node: len(node.op_type)) if named and len(nodes) > 1 else nodes[0]
    opset = {entry.domain: entry.version for entry in base.model.opset_import}[node.domain]
    return Operator(node.domain or "ai.onnx", node.op_type, onnx.defs.get_schema(node.op_type, opset, node.domain).since_version)


def exclusion(case: TestCase) -> str | None:
    """Why a test does not count, or ``None``."""
    nodes = list(_nodes(case.model.graph))
    values = [*case.model.graph.input, *case.model.graph.output]
    used = {node.op_type for node in nodes}
    if any(node.domain == TRAINING for node in nodes):
        return "training operator"
    if used & STRING_OPERATORS or any(value.type.tensor_type.elem_type == onnx.TensorProto.STRING for value in values):
        return "strings"
    if used & OPTIONAL_OPERATORS or any(value.type.WhichOneof("value") == "optional_type" for value in values):
        return "optionals"
    if any(value.type.WhichOneof("value") == "sequence_type" for value in case.model.graph.input):
        return "sequence of unknown length: it is an input"
    if any(_is_sequence(value) for node in nodes if node.op_type in ("Loop", "Scan") for value in _body(node).input):
        return "sequence of unknown length: it grows in a loop"
    if any(_splits_by_a_number(node, case.model.graph) for node in nodes):
        return "sequence of unknown length: the pieces' size is an input"
    return None


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(attribute.g for attribute in node.attribute if attribute.name == "body")


def _is_sequence(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") in ("sequence_type", "optional_type")


def _splits_by_a_number(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """A scalar says how long each piece is, so that how many there are is known only at run time."""
    if node.op_type != "SplitToSequence" or len(node.input) < 2:
        return False
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.input}
    return ranks.get(node.input[1]) == 0
