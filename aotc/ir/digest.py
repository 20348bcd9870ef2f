"""What tells a model from another, whatever a compiler makes of it."""

from __future__ import annotations

import hashlib

from aotc.ir.expr import Constant, Module, Parameter
from aotc.ir.visitor import all_functions, post_order


def model_digest(module: Module) -> str:
    """SHA-256 of a module as it was imported, in hexadecimal: entry points with their inputs and outputs, and the types of what the nodes that
    the user named compute. The values of weights do not count (training goes on, the work stays the same), nor does into how many operators
    an importer splits a node."""
    lines = []
    for name, function in module.functions.items():
        inputs = ", ".join(f"{param.name}: {param.type}" for param in function.params)
        lines.append(f"entry {name}({inputs}) -> {', '.join(module.output_names.get(name, ()))}: {function.body.type}")
    named: dict[str, str] = {}
    for function in all_functions(module):
        for node in post_order(function.body):
            origin = getattr(node, "origin", "")
            if origin and not isinstance(node, (Constant, Parameter)):
                named[origin] = str(node.type)  # the last of a node's operators gives its result
    lines += [f"{origin}: {type_}" for origin, type_ in sorted(named.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
