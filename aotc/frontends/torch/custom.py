"""torch.library operators that are operators of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from aotc.frontends.torch.builder import Builder, Recipe
from aotc.ir.dims import DimExpr
from aotc.ir.expr import TupleGetItem
from aotc.ir.types import TupleType
from aotc.ops.custom import CustomOperator, operators_by_key

_ATTRIBUTES = (bool, int, float, str, type(None), DimExpr)


def custom_recipes(program: ExportedProgram, operators: Sequence[CustomOperator]) -> dict[Any, Recipe]:
    """The recipes of the operators in ``program`` that ``operators`` define."""
    known = {operator.name: operator for operator in operators_by_key(operators).values()}
    found: dict[Any, Recipe] = {}
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in known:
            found[node.target] = _recipe(known[node.target._schema.name], node.target._schema)
    return found


def _recipe(operator: CustomOperator, schema: Any) -> Recipe:
    def recipe(b: Builder, *args: Any, **kwargs: Any) -> Any:
        """Tensors are the inputs, in the schema's order; all else are attributes by the schema's names."""
        inputs: list[Any] = []
        attributes: dict[str, Any] = {}
        for name, value in _arguments(schema, args, kwargs).items():
            values = value if isinstance(value, (list, tuple)) and value else [value]
            if all(isinstance(each, _ATTRIBUTES) for each in values):
                attributes[name] = value
            elif any(isinstance(each, _ATTRIBUTES) for each in values):
                raise b.unsupported(f"the argument {name!r} of {operator.name}, which mixes tensors and others")
            else:
                inputs += values
        call = operator.call(inputs, attributes, b.origin)
        if isinstance(call.type, TupleType):
            return [TupleGetItem(call, index, b.origin) for index in range(len(call.type.fields))]
        return call

    return recipe


def _arguments(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    given.update(kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}
