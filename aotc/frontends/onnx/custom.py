"""Nodes that are operators of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto

from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.expr import TupleGetItem
from aotc.ir.types import TupleType
from aotc.ops.custom import CustomOperator


def custom_handler(operator: CustomOperator) -> Handler:
    """What imports nodes of ``operator``: inputs in order, attributes by name."""

    def handler(node: Node) -> Results:
        given = list(node.inputs)
        while given and given[-1] is None:
            given.pop()
        if None in given:
            node.unsupported(f"input {given.index(None)} is left out in the middle, which a custom operator cannot have")
        values = {name: _value(node, attribute) for name, attribute in node.attributes.items()}
        call = operator.call([each for each in given if each is not None], values, node.origin)
        if isinstance(call.type, TupleType):
            return [TupleGetItem(call, index, node.origin) for index in range(len(call.type.fields))]
        return call

    return handler


def _value(node: Node, attribute: AttributeProto) -> Any:
    kind = AttributeProto.AttributeType.Name(attribute.type).lower()
    match attribute.type:
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.FLOAT:
            return float(str(np.float32(attribute.f)))
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.INTS:
            return [int(each) for each in attribute.ints]
        case AttributeProto.FLOATS:
            return [float(str(np.float32(each))) for each in attribute.floats]
        case AttributeProto.STRINGS:
            return [each.decode("utf-8", "replace") for each in attribute.strings]
    node.unsupported(f"the attribute {attribute.name!r} is of kind {kind}; a custom operator has numbers, texts and lists of them")
