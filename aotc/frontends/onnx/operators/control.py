"""Control flow that is decided while importing."""

from __future__ import annotations

from aotc.frontends.onnx.node import Handler, Node, Results


def _if(node: Node) -> Results:
    """The branch that a known condition chooses."""
    condition = node.static_array(0, "the condition")
    if condition is None or condition.size != 1:
        node.invalid("the condition must be one boolean")
    name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    if not node.has(name):
        node.invalid(f"the attribute {name!r} is missing")
    return node.inline(node.attributes[name].g)


HANDLERS: dict[str, Handler] = {"If": _if}
