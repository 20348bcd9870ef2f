"""Operators that are defined by a body of other operators: local functions of the model, and those of ONNX itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import AttributeProto, TensorProto, TypeProto

from aotc.errors import InvalidModel
from aotc.frontends.onnx.load import DEFAULT_DOMAINS, opsets_of
from aotc.frontends.onnx.tensors import DTYPES
from aotc.ir.types import TensorType

MAX_DEPTH = 32  # of functions within functions
_ELEMENT_TYPES = {dtype: elem_type for elem_type, dtype in DTYPES.items()}

Key = tuple[str, str, str]
"""Domain, name and overload."""


def domain_of(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain


def key_of(node: onnx.NodeProto) -> Key:
    return domain_of(node.domain), node.op_type, node.overload


def local_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """The functions that a model brings along. Raises InvalidModel where two have one name."""
    found: dict[Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (domain_of(function.domain), function.name, function.overload)
        if key in found:
            raise InvalidModel(f"the model defines the function {function.domain}.{function.name} twice")
        found[key] = function
    return found


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    if not (node.op_type.isascii() and node.domain.isascii()):
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset, domain_of(node.domain))
    except onnx.defs.SchemaError:
        return None


def has_body(schema: onnx.defs.OpSchema) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: onnx.NodeProto, opset: int, types: Sequence[TensorType | None]) -> onnx.FunctionProto | None:
    """The body that ONNX gives an operator for inputs of these types, or None."""
    schema = schema_of(node, opset)
    if schema is None:
        return None
    if schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= opset] or schema.function_opset_versions[:1]
        return _parsed(schema.get_function_with_opset_version(max(versions)))
    if schema.has_context_dependent_function:
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
        versions = versions or schema.context_dependent_function_opset_versions[:1]
        described = [_described(type_).SerializeToString() for type_ in types]
        return _parsed(schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), described))
    return None


def _parsed(data: bytes) -> onnx.FunctionProto | None:
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    return function if function.node else None


def _described(type_: TensorType | None) -> TypeProto:
    proto = TypeProto()
    if type_ is not None:
        proto.tensor_type.elem_type = _ELEMENT_TYPES.get(type_.dtype, TensorProto.UNDEFINED)
        proto.tensor_type.shape.SetInParent()
        for dim in type_.shape:
            entry = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            else:
                entry.dim_param = str(dim)
    return proto


def opsets_of_function(function: onnx.FunctionProto, outer: Mapping[str, int]) -> dict[str, int]:
    return {**outer, **opsets_of(function.opset_import)} if function.opset_import else dict(outer)


def resolved(node: onnx.NodeProto, outer: Mapping[str, AttributeProto] | None) -> onnx.NodeProto:
    """``node`` with references to the attributes of the function around it replaced by their values, or left out."""
    if outer is None or not any(True for _ in _references(node)):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _resolve(copy, outer)
    return copy


def _references(node: onnx.NodeProto) -> list[AttributeProto]:
    found = [attribute for attribute in node.attribute if attribute.ref_attr_name]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                found += _references(inner)
    return found


def _resolve(node: onnx.NodeProto, outer: Mapping[str, AttributeProto]) -> None:
    kept: list[AttributeProto] = []
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                _resolve(inner, outer)
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in outer:
            value = AttributeProto()
            value.CopyFrom(outer[attribute.ref_attr_name])
            value.name = attribute.name
            kept.append(value)
    copies = [AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(copies)


def attributes_for(function: onnx.FunctionProto, node: onnx.NodeProto, opset: int) -> dict[str, AttributeProto]:
    """What the references inside ``function`` stand for when ``node`` calls it: the node's attributes over the defaults."""
    schema = schema_of(node, opset)
    defaults = [] if schema is None else [attribute.default_value for attribute in schema.attributes.values()]
    values = {default.name: default for default in defaults if default.name}
    values.update({attribute.name: attribute for attribute in function.attribute_proto})
    values.update({attribute.name: attribute for attribute in node.attribute})
    return values
