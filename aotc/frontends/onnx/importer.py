"""Builds a Module from an ONNX graph, node by node."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnx

from aotc.errors import InvalidModel, UnsupportedModel
from aotc.frontends.onnx.assume import Assumption, assumption_of
from aotc.frontends.onnx.bodies import Body, Boundary, flat
from aotc.frontends.onnx.branches import branches
from aotc.frontends.onnx.custom import custom_handler
from aotc.frontends.onnx.dynamic import Dynamic
from aotc.frontends.onnx.functions import (
    MAX_DEPTH,
    attributes_for,
    body_of,
    domain_of,
    key_of,
    local_functions,
    opsets_of_function,
    resolved,
)
from aotc.frontends.onnx.graph import needed_nodes, origin_of
from aotc.frontends.onnx.inputs import Override, input_variables
from aotc.frontends.onnx.load import load_model, opsets_of
from aotc.frontends.onnx.missing import refuse_missing
from aotc.frontends.onnx.narrowed import Narrowed
from aotc.frontends.onnx.node import Node
from aotc.frontends.onnx.operators import HANDLERS
from aotc.frontends.onnx.small import apply
from aotc.frontends.onnx.tensors import sparse_to_array, to_array
from aotc.frontends.onnx.values import Known
from aotc.ir.dims import Dim, substitute, symbols_of
from aotc.ir.expr import Constant, Expr, Function, Module, Parameter, Tuple, Var
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.custom import CustomOperator, operators_by_key

MAX_ASSUMPTIONS = 64
SMALL = 4096  # elements; initialisers of integers up to this many are shapes and indices: constants, not weights


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    inputs: Mapping[str, Override] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Module:
    """The model as a Module with one entry point, ``main``.

    ``inputs`` overrides the shapes of inputs by name: one entry per axis, a number, a dim, the name of a dynamic dim, or
    None for what the model says. Dims that stay dynamic are symbols with the model's own names, at least 1; what the
    model takes for granted about them (two are equal, one is even) becomes part of the inputs' types.

    ``operators`` are the user's own; they come before aotc's and the model's functions of the same name.

    Raises InvalidModel for a file that is broken or contradicts itself, UnsupportedModel with all that is missing, and
    InvalidOption for ``inputs`` that do not fit.
    """
    proto, folder = load_model(model)
    params = input_variables(proto.graph, inputs)
    settled: dict[str, Dim] = {}
    for _ in range(MAX_ASSUMPTIONS):
        dynamic = Dynamic({name for param in params for name in symbols_of(*cast(TensorType, param.type).shape)}, settled)
        try:
            return Importer(proto, folder, dynamic, operators_by_key(operators)).module(params)
        except Assumption as found:
            settled |= {name: value for name, value in found.values.items() if name in dynamic.made}
            params = [_assume(param, found) for param in params]
    raise InvalidModel("the dynamic dims of the inputs contradict each other; fix them by overriding the inputs' shapes")


def _assume(param: Var, found: Assumption) -> Var:
    type_ = cast(TensorType, param.type)
    return Var(param.name, TensorType(tuple(substitute(dim, found.values) for dim in type_.shape), type_.dtype), param.origin)


class _Told(UnsupportedModel):
    """Something inside a node's graph is missing, and was told already."""


class _Unavailable:
    """Stands for an output that cannot be had, so that the rest can be looked at too. ``reason`` is what to tell if it
    is read; None where that was told already."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason


class _Scope:
    """Names and what they stand for. ``None`` is an optional input that was left out. ``boundary``: what is read from the
    parent passes into a body of control flow."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        parent: _Scope | None = None,
        prefix: str = "",
        attributes: Mapping[str, onnx.AttributeProto] | None = None,
        depth: int = 0,
        boundary: Boundary | None = None,
    ) -> None:
        self.boundary = boundary
        self.names: dict[str, Expr | _Unavailable | None] = {}
        self.weights: dict[str, onnx.TensorProto | onnx.SparseTensorProto] = {}
        self.opsets = opsets
        self.parent = parent
        self.prefix = prefix
        self.attributes = attributes
        self.depth = depth

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.weights or (self.parent is not None and name in self.parent)


class Importer:
    def __init__(
        self, model: onnx.ModelProto, folder: Path | None, dynamic: Dynamic, operators: Mapping[tuple[str, str], CustomOperator] | None = None
    ) -> None:  # fmt: skip
        self.model = model
        self.folder = folder
        self.dynamic = dynamic
        self.operators = operators or {}
        self.functions = local_functions(model)
        self.known = Known()
        self.parameters: set[str] = set()
        self.refused: list[str] = []

    def module(self, params: Sequence[Var]) -> Module:
        scope = _Scope(opsets_of(self.model.opset_import))
        for param in params:
            if param.name in scope.names:
                raise InvalidModel(f"two inputs are named {param.name!r}")
            scope.names[param.name] = param
        names = tuple(value.name for value in self.model.graph.output)
        if len(set(names)) != len(names):
            raise InvalidModel(f"two outputs of the model have one name: {', '.join(names)}")
        outputs = self.graph(self.model.graph, scope)
        self._raise_refused()
        results = self.dynamic.end(cast("list[Expr]", outputs))
        for name, result in zip(names, results, strict=True):
            if result is None or (isinstance(result, Tuple) and not result.fields):
                raise UnsupportedModel(f"the output {name!r} is an empty sequence or optional value; aotc gives out dense tensors")
        names = tuple(each for name, result in zip(names, results, strict=True) for each in _output_names(name, result))
        results = flat(results)
        body: Expr = results[0] if len(results) == 1 else Tuple(tuple(results))
        function = Function(tuple(params), body, "main", origin=self.model.graph.name)
        return Module({"main": function}, {"main": names}, {entry.key: entry.value for entry in self.model.metadata_props})

    def _raise_refused(self) -> None:
        if len(self.refused) == 1:
            raise UnsupportedModel(self.refused[0])
        if self.refused:
            lines = "\n".join(f"  {reason}" for reason in self.refused)
            raise UnsupportedModel(f"{len(self.refused)} nodes need something that aotc lacks:\n{lines}")

    def graph(self, graph: onnx.GraphProto, scope: _Scope) -> list[Expr | _Unavailable | None]:
        """The outputs of a graph whose inputs are in ``scope``."""
        for tensor in graph.initializer:
            self._declare(scope, tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            self._declare(scope, sparse.values.name, sparse)
        outputs = [value.name for value in graph.output]
        what = f"the graph {graph.name!r}" if graph.name else "the graph"
        nodes = needed_nodes(graph.node, outputs, scope, what)
        refuse_missing(nodes, scope.opsets, self.functions, self.operators)
        for node in nodes:
            self.node(node, scope)
        return [self._read(name, scope) for name in outputs]

    def _declare(self, scope: _Scope, name: str, tensor: onnx.TensorProto | onnx.SparseTensorProto) -> None:
        if name in scope.weights or name in scope.names:
            raise InvalidModel(f"the initialiser {name!r} is defined twice")
        scope.weights[name] = tensor

    def lookup(self, name: str, scope: _Scope) -> Expr | _Unavailable | None:
        """What a name stands for; an initialiser is read when it is first asked for."""
        where: _Scope | None = scope
        passed: list[Boundary] = []
        while where is not None:
            if name in where.weights:
                where.names[name] = self._weight(name, where.weights.pop(name), where)
            if name in where.names:
                found = where.names[name]
                for boundary in reversed(passed):
                    found = boundary.inside(found) if hasattr(found, "type") else found  # type: ignore[arg-type]
                return found
            passed += [where.boundary] if where.boundary is not None else []
            where = where.parent
        raise InvalidModel(f"{name!r} is read, and no node, input or initialiser produces it")

    def _read(self, name: str, scope: _Scope) -> Expr | _Unavailable | None:
        found = self.lookup(name, scope)
        if isinstance(found, _Unavailable) and found.reason is not None:
            self.refused.append(found.reason)
            found.reason = None
        return found

    def _weight(self, name: str, tensor: onnx.TensorProto | onnx.SparseTensorProto, scope: _Scope) -> Expr:
        what = f"the initialiser {name!r}"
        if isinstance(tensor, onnx.TensorProto):
            array = to_array(tensor, what, self.folder)
        else:
            array = sparse_to_array(tensor, what, self.folder)
        if str(array.dtype) not in FLOATS and array.size <= SMALL:
            return Constant(array, scope.prefix + name)
        return self.weight(scope.prefix + name, array)

    def weight(self, name: str, array: np.ndarray) -> Parameter:
        """A weight; its name made unique."""
        unique, count = name, 2
        while unique in self.parameters:
            unique, count = f"{name}_{count}", count + 1
        self.parameters.add(unique)
        return Parameter(unique, array, name)

    def node(self, proto: onnx.NodeProto, scope: _Scope) -> None:
        """Imports one node and names its outputs in ``scope``."""
        inputs = [self._read(name, scope) if name else None for name in proto.input]
        if any(isinstance(each, _Unavailable) for each in inputs):
            self._name_outputs(proto, [_Unavailable()] * len(proto.output), scope)
            return
        try:
            results = self.results(resolved(proto, scope.attributes), cast("list[Expr | None]", inputs), scope)
        except _Told:
            results = [_Unavailable()] * len(proto.output)
        except UnsupportedModel as error:
            self.refused.append(str(error))
            results = [_Unavailable()] * len(proto.output)
        self._name_outputs(proto, results, scope)

    def results(self, proto: onnx.NodeProto, inputs: list[Expr | None], scope: _Scope) -> list[Expr | _Unavailable | None]:
        origin = scope.prefix + origin_of(proto)
        domain = domain_of(proto.domain)
        opset = scope.opsets.get(domain, 0)
        own = self.operators.get((domain, proto.op_type))
        if own is None and key_of(proto) in self.functions:
            return self._expand(self.functions[key_of(proto)], proto, inputs, origin, scope)
        handler = HANDLERS.get((domain, proto.op_type)) if own is None else custom_handler(own)
        if handler is None:
            types = [cast(TensorType, expr.type) if expr is not None else None for expr in inputs]
            body = body_of(proto, opset, types)
            if body is None:
                raise UnsupportedModel(f"{proto.op_type} at {origin!r}: aotc lacks this operator for these inputs")
            return self._expand(body, proto, inputs, origin, scope)
        attributes = {attribute.name: attribute for attribute in proto.attribute}
        node = Node(proto, inputs, attributes, opset, origin, self, _Graphs(self, scope, proto, inputs, origin))
        try:
            results = apply(handler, node)
        except InvalidModel as error:
            assumption = assumption_of(node)
            if assumption is None:
                raise _with_origin(error, proto, origin) from error
            raise assumption from error
        return list(results) if isinstance(results, (list, tuple)) else [cast(Expr, results)]

    def _expand(
        self, function: onnx.FunctionProto, proto: onnx.NodeProto, inputs: Sequence[Expr | None], origin: str, scope: _Scope
    ) -> list[Expr | _Unavailable | None]:
        if scope.depth >= MAX_DEPTH:
            raise InvalidModel(f"functions are nested more than {MAX_DEPTH} deep at {origin!r}; does {proto.op_type} call itself?")
        inner = _Scope(
            opsets_of_function(function, scope.opsets),
            None,
            f"{origin}/",
            attributes_for(function, proto, scope.opsets.get(domain_of(proto.domain), 0)),
            scope.depth + 1,
        )
        for i, name in enumerate(function.input):
            inner.names[name] = inputs[i] if i < len(inputs) else None
        wanted = [name for name, used in zip(function.output, proto.output) if used]
        nodes = needed_nodes(function.node, wanted, inner, f"the function {function.name!r}")
        refuse_missing(nodes, inner.opsets, self.functions, self.operators)
        for node in nodes:
            self.node(node, inner)
        return [self.lookup(name, inner) if name in wanted else None for name in function.output]

    def _name_outputs(self, proto: onnx.NodeProto, results: Sequence[Expr | _Unavailable | None], scope: _Scope) -> None:
        for i, name in enumerate(proto.output):
            if not name:
                continue
            result = results[i] if i < len(results) else None
            if result is None:
                result = _Unavailable(f"{proto.op_type} at {scope.prefix + origin_of(proto)!r}: output {i} ({name!r}) is not supported")
            scope.names[name] = result


@dataclass(frozen=True)
class _Graphs:
    """What the handler of one node may import: graphs in its attributes, and itself with a known input."""

    importer: Importer
    scope: _Scope
    proto: onnx.NodeProto
    inputs: Sequence[Expr | None]
    origin: str

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[Expr] = (), prefix: str = "") -> list[Expr]:
        if len(graph.input) != len(inputs):
            raise InvalidModel(f"the graph {graph.name!r} at {self.origin!r} takes {len(graph.input)} inputs, not {len(inputs)}")
        inner = self._inner(None)
        inner.prefix += prefix
        inner.names.update(zip((value.name for value in graph.input), inputs, strict=True))
        outputs = self.importer.graph(graph, inner)
        if any(isinstance(output, _Unavailable) for output in outputs):
            raise _Told
        return cast("list[Expr]", outputs)

    def branch(self, graph: onnx.GraphProto) -> Body:
        narrowed = Narrowed(self.importer.dynamic, self.origin)
        for _ in range(MAX_ASSUMPTIONS):
            parameters, refused = set(self.importer.parameters), len(self.importer.refused)
            try:
                return self.body(graph, [], narrowed)
            except Assumption as found:
                if not narrowed.take(found.values):
                    raise
                self.importer.parameters = parameters
                del self.importer.refused[refused:]
        raise InvalidModel(f"what the graph {graph.name!r} at {self.origin!r} takes for granted of its sizes contradicts itself")

    def body(self, graph: onnx.GraphProto, params: Sequence[Expr], narrowed: Narrowed | None = None) -> Body:
        if len(graph.input) != len(params):
            raise InvalidModel(f"the graph {graph.name!r} at {self.origin!r} takes {len(graph.input)} inputs, not {len(params)}")
        boundary = Boundary(self.importer.known, narrowed, repeats=narrowed is None)
        inner = self._inner(boundary)
        inner.names.update(zip((value.name for value in graph.input), params, strict=True))
        self.importer.dynamic.begin(boundary)
        if narrowed is not None:
            narrowed.define()
        try:
            outputs = self.importer.graph(graph, inner)
            if any(isinstance(output, _Unavailable) for output in outputs):
                raise _Told
        except BaseException:
            self.importer.dynamic.abandon()
            raise
        return self._closed(params, cast("list[Expr]", outputs), boundary)

    def cases(self, index: int, chosen: Sequence[np.ndarray], conditions: Sequence[Expr]) -> list[Expr]:
        bodies: list[Body] = []
        holding: list[Expr] = []
        reason: InvalidModel | None = None
        for value, condition in itertools.zip_longest(chosen, conditions):
            try:
                bodies.append(self._case(index, value))
            except InvalidModel as error:  # such an answer does not fit the input: a right one will come
                reason = error
                continue
            holding += [] if condition is None else [condition]
        if not bodies:
            raise cast(InvalidModel, reason)
        return branches(self.importer.dynamic, bodies, holding[: len(bodies) - 1], self.origin)

    def _case(self, index: int, value: np.ndarray) -> Body:
        boundary = Boundary(self.importer.known)
        inputs = [None if each is None else boundary.inside(each) for each in self.inputs]
        inputs[index] = Constant(value, self.origin)
        self.importer.dynamic.begin(boundary)
        try:
            results = self.importer.results(self.proto, inputs, self._inner(boundary))
        except BaseException:
            self.importer.dynamic.abandon()
            raise
        return self._closed((), cast("list[Expr]", [each for each in results if each is not None]), boundary)

    def _inner(self, boundary: Boundary | None) -> _Scope:
        scope = self.scope
        return _Scope(scope.opsets, scope, f"{self.origin}/", scope.attributes, scope.depth, boundary)

    def _closed(self, params: Sequence[Expr], results: Sequence[Expr], boundary: Boundary) -> Body:
        dynamic = self.importer.dynamic
        own = tuple(param for param in params if isinstance(param, Var))
        symbols = dynamic.own() | (frozenset() if boundary.narrowed is None else frozenset(boundary.narrowed.own))
        return Body(own, tuple(dynamic.end(results)), boundary, symbols)


def _output_names(name: str, result: Expr) -> list[str]:
    """What the user calls an output; the items of a sequence have numbers."""
    return [f"{name}[{i}]" for i in range(len(result.fields))] if isinstance(result, Tuple) else [name]


def _with_origin(error: InvalidModel, proto: onnx.NodeProto, origin: str) -> InvalidModel:
    """The error with the node's name in it, where it is not there yet."""
    return error if origin in str(error) else InvalidModel(f"{proto.op_type} at {origin!r}: {error}")
