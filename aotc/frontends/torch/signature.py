"""Names of inputs, outputs, symbols and nodes, as the user wrote them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from aotc.ir.dims import RESERVED


def output_names(program: ExportedProgram, count: int) -> list[str]:
    """``output`` for a single one, ``output_0`` .. for a tuple's, a dict's keys and a dataclass's fields by name."""
    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return [f"output_{i}" for i in range(count)]
    tree = pytree.tree_unflatten(list(range(count)), spec)
    names = ["".join(_step(key, i == 0) for i, key in enumerate(path)) or "output" for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    return names if len(set(names)) == count else [f"output_{i}" for i in range(count)]


def _step(key: Any, first: bool) -> str:
    if isinstance(key, pytree.SequenceKey):
        return f"output_{key.idx}" if first else f"_{key.idx}"
    name = str(getattr(key, "key", getattr(key, "name", key)))
    return name if first else f"_{name}"


def symbol_names(program: ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """The users' names of torch's symbols: that of the ``Dim`` where one was given, else input name and axis.

    A name that would stand for two symbols gets a number.
    """
    chosen = _dim_names(program, dynamic_shapes)
    names: dict[str, str] = {}
    for placeholder in _user_placeholders(program):
        value = placeholder.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                names.setdefault(str(size.node.expr), chosen.get((placeholder.name, axis), f"{placeholder.name}_{axis}"))
    for placeholder in _user_placeholders(program):  # symbols that stand in compound sizes only, as 2*s0
        value = placeholder.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            for symbol in sorted(map(str, size.node.expr.free_symbols)) if isinstance(size, torch.SymInt) else ():
                names.setdefault(symbol, symbol)
    return _distinct(names)


def _distinct(names: dict[str, str]) -> dict[str, str]:
    seen: Counter[str] = Counter()
    result = {}
    for symbol, name in names.items():
        name = re.sub(r"\W", "_", name, flags=re.ASCII)
        name = f"{name}_" if name in RESERVED else name
        seen[name] += 1
        result[symbol] = name if seen[name] == 1 else f"{name}_{seen[name]}"
    return result


def _dim_names(program: ExportedProgram, dynamic_shapes: Any) -> dict[tuple[str, int], str]:
    """The names of plain ``Dim`` objects by (input, axis); their order in ``dynamic_shapes`` is that of the inputs."""
    if dynamic_shapes is None:
        return {}
    specs = _tensor_specs(dynamic_shapes)
    placeholders = _user_placeholders(program)
    if isinstance(dynamic_shapes, dict) and all(any(p.name == key for p in placeholders) for key in dynamic_shapes):
        pairs = [(key, _as_axes(spec)) for key, spec in dynamic_shapes.items()]
    elif len(specs) == len(placeholders):
        pairs = [(p.name, spec) for p, spec in zip(placeholders, specs, strict=True)]
    else:
        return {}
    found = {}
    for name, axes in pairs:
        for axis, dim in axes.items():
            if isinstance(getattr(dim, "__name__", None), str) and not hasattr(dim, "root"):
                found[name, axis] = str(dim.__name__)
    return found


def _as_axes(spec: Any) -> dict[int, Any]:
    if isinstance(spec, dict):
        return {axis: dim for axis, dim in spec.items() if isinstance(axis, int)}
    return dict(enumerate(spec)) if isinstance(spec, (list, tuple)) else {}


def _tensor_specs(tree: Any) -> list[dict[int, Any]]:
    """The specification of each tensor in order: what holds axes is one, what holds such is a container."""
    if tree is None:
        return [{}]
    if isinstance(tree, dict) and all(isinstance(key, int) for key in tree):
        return [tree]
    if isinstance(tree, (list, tuple)) and tree and not any(isinstance(each, (dict, list, tuple)) or each is None for each in tree):
        return [dict(enumerate(tree))]
    return [spec for each in (tree.values() if isinstance(tree, dict) else tree) for spec in _tensor_specs(each)]


def _user_placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    wanted = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    }
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted]


def node_origins(program: ExportedProgram) -> dict[str, str]:
    """The user's name of each node: the path of the module whose only node it is, else that path and the node's name."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and _is_tensor(node)]
    paths = {node.name: module_path(node) for node in nodes}
    counts = Counter(paths.values())
    return {name: path if path and counts[path] == 1 else f"{path}.{name}".lstrip(".") for name, path in paths.items()}


def module_path(node: torch.fx.Node) -> str:
    """Where in the module tree a node comes from, as ``layer1.0.conv1``; empty for the outermost module."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return path.removeprefix("L['self'].").removeprefix("L['self']").split("@")[0]


def _is_tensor(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (torch.Tensor, tuple, list)) and "getitem" not in str(node.target)


def kept_buffers(program: ExportedProgram) -> dict[str, torch.fx.Node]:
    """The buffers that the model writes to and its results depend on, with what each of them becomes: the model's states.

    A buffer that is written and never read by the results, and an argument that is written to, do not matter to the
    results: the compiled model leaves both alone.
    """
    graph, signature = program.graph, program.graph_signature
    output = next(node for node in graph.nodes if node.op == "output")
    written = {
        str(spec.target): node
        for node, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind is OutputKind.BUFFER_MUTATION
    }
    results = [
        node
        for node, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(node, torch.fx.Node)
    ]
    holders = {str(spec.target): spec.arg.name for spec in signature.input_specs if isinstance(spec.arg, TensorArgument)}
    kept: dict[str, torch.fx.Node] = {}
    while True:  # what a kept buffer becomes may depend on other buffers
        read = {node.name for node in _all_below([*results, *kept.values()]) if node.op == "placeholder"}
        found = {name: node for name, node in written.items() if holders.get(name) in read}
        if found == kept:
            return kept
        kept = found


def _all_below(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    seen: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen
