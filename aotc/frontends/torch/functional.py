"""In-place operators of an exported graph, read as functions where that is plainly the same.

torch's own functionalisation handles every case and takes seconds for each network, since it traces it twice more. Most
in-place operators write to a tensor that nothing else looks at afterwards, as ``relu_`` after a convolution: those need
no analysis beyond the one here.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export import ExportedProgram

from aotc.frontends.torch.builder import Recipe
from aotc.frontends.torch.control import is_control

aten = torch.ops.aten

FRESH = {
    *(f"conv{n}d" for n in (1, 2, 3)), *(f"conv_transpose{n}d" for n in (1, 2, 3)), *(f"max_pool{n}d" for n in (1, 2, 3)),
    *(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)), "batch_norm", "group_norm", "instance_norm", "layer_norm", "linear", "matmul",
    "scaled_dot_product_attention", "softmax", "log_softmax",
}  # fmt: skip
"""Operators that are made of others inside torch, and whose result never shares memory with an argument."""


def functional_form(operator: Any) -> Any:
    """The operator that computes what an in-place one writes, ``relu`` for ``relu_``; ``None`` if ``operator`` is not in
    place or has no such form."""
    if not isinstance(operator, torch._ops.OpOverload) or not operator._schema.is_mutable:
        return None
    packet, overload = operator._schema.name.split("::")[1], operator._overloadname
    if not packet.endswith("_") or packet.endswith("__"):
        return None
    return getattr(getattr(aten, packet[:-1], None), overload, None)


def needs_no_decomposition(program: ExportedProgram, recipes: dict[Any, Recipe], is_known: Any) -> bool:
    """Whether every operator has a recipe, in-place ones in their functional form, and no write is seen through an alias."""
    written: list[torch.fx.Node] = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if functional_form(node.target) in recipes:
            written.append(node)
        elif not is_known(node) or is_control(node.target) or getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            return False
    return not written or _writes_are_unseen(program, written)


def with_identities_marked(program: ExportedProgram) -> ExportedProgram:
    """``program`` with dropout that does nothing as ``alias``: torch's functionalisation takes it for a copy, and would
    miss what is written through it."""
    if not any(_is_idle_dropout(node) for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.nodes:
        if _is_idle_dropout(node):
            node.target, node.args, node.kwargs = aten.alias.default, node.args[:1], {}
    module.recompile()
    return program._update(module, program.graph_signature)


def _is_idle_dropout(node: torch.fx.Node) -> bool:
    dropouts = (aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default)
    return node.target in dropouts and (node.args[1] == 0 or node.args[2] is False)


def _writes_are_unseen(program: ExportedProgram, written: list[torch.fx.Node]) -> bool:
    """Whether after each write only the written tensor itself is used, and none that may share its memory."""
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    aliases = _alias_classes(program)
    for node in written:
        target = node.args[0]
        assert isinstance(target, torch.fx.Node)
        for other in aliases[target]:
            if other.op == "placeholder":
                return False  # a write to an argument, a weight or a buffer
            if other is not target and order[other] < order[node] and any(order[user] > order[node] for user in other.users):
                return False
    return True


def _alias_classes(program: ExportedProgram) -> dict[torch.fx.Node, set[torch.fx.Node]]:
    """For each node all that may share memory with it."""
    classes: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in program.graph.nodes:
        merged = {node}
        if node.op == "call_function" and not _is_fresh(node.target):
            in_place = functional_form(node.target) is not None  # its result is its first argument, and none of the others
            for source in [node.args[0]] if in_place else node.all_input_nodes:
                merged |= classes[source]
        for member in merged:
            classes[member] = merged
    return classes


def _is_fresh(operator: Any) -> bool:
    """Whether the result shares memory with no argument."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    if operator._schema.name.split("::")[1] in FRESH:
        return True
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    return not composite and all(returned.alias_info is None for returned in operator._schema.returns)
