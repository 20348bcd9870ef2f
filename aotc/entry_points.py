"""Several models as the entry points of one file: encoder and decoder, prefill and step. They share weights and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidOption
from aotc.frontends import import_model
from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.expr import Constant, Expr, Function, Module, Parameter
from aotc.ir.symbols import all_symbols
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order, rewrite_module
from aotc.ops.bind import bind_dims, bind_inputs
from aotc.ops.custom import CustomOperator


@dataclass(frozen=True)
class EntryPoint:
    """A model with what ``aotc.compile`` takes for one alone: see there."""

    model: Any
    args: Sequence[Any] | None = None
    dynamic_shapes: Any = None
    inputs: Mapping[str, Sequence[Dim]] | None = None


def import_entry_points(models: Mapping[str, Any], operators: Sequence[CustomOperator] = ()) -> Module:
    """One Module of several models, each an entry point by its name. A value is an ``EntryPoint``, or a model that needs no more.

    Weights of one name and content are one weight. Raises InvalidOption where a name stands for two different states.
    """
    if not models:
        raise InvalidOption("there are no entry points: give at least one model by name")
    joined = Module({}, {})
    for name, model in models.items():
        each = model if isinstance(model, EntryPoint) else EntryPoint(model)
        module = import_model(each.model, each.inputs, each.args, each.dynamic_shapes, operators)
        joined = _join(joined, name, module)
    return joined


def with_states(module: Module, states: Mapping[str, str]) -> Module:
    """``module`` with inputs that become states, which start as zeros: each key is an input, each value the output that is its
    next value; in whichever entry points have them.

    Raises InvalidOption where a name is unknown, or a shape is not fixed or not the same everywhere.
    """
    if not states:
        return module
    initial: dict[str, Constant] = {}
    names = {output: name for name, output in states.items()}
    for entry, function in module.functions.items():
        for label, type_ in _named_types(function, module.output_names[entry]):
            name = label if label in states else names.get(label)
            if name is None:
                continue
            if not type_.is_static:
                raise InvalidOption(f"{entry}: {label!r} is {type_}; a state needs a shape that is fixed: give it by --input or inputs")
            zeros = initial.setdefault(name, Constant(np.zeros(type_.static_shape(), type_.dtype), name))
            if zeros.type != type_:
                raise InvalidOption(f"{entry}: {label!r} is {type_}, while the state {name!r} is {zeros.type} elsewhere; make them equal")
    missing = sorted(set(states) - set(initial))
    if missing:
        raise InvalidOption(f"no entry point has an input {missing[0]!r} or an output {states[missing[0]]!r} to make a state of")
    outputs = {entry: tuple(names.get(label, label) for label in labels) for entry, labels in module.output_names.items()}
    return Module(module.functions, outputs, module.metadata, {**module.states, **initial}, module.versions)


def with_versions(module: Module, versions: Sequence[Mapping[str, Sequence[int]]]) -> Module:
    """``module`` with a specialised version of its entry point for each set of shapes of inputs by name.

    Raises InvalidOption for shapes that do not fit, or that leave nothing to specialise.
    """
    for number, shapes in enumerate(versions):
        if len(module.functions) - len(module.versions) != 1:
            raise InvalidOption("versions belong to a file of one entry point: fix the shapes of the others by their inputs")
        (general,) = (name for name in module.functions if name not in module.versions)
        alone = Module({"main": module.functions[general]}, {"main": module.output_names[general]})
        bound = bind_inputs(alone, shapes).main
        if all(one.type == other.type for one, other in zip(module.functions[general].params, bound.params, strict=True)):
            raise InvalidOption(f"a version for {dict(shapes)} is no other than the general one: its dims are fixed already")
        name = f"{general}@{number}"
        module = Module(
            {**module.functions, name: Function(bound.params, bound.body, name, origin=bound.origin)},
            {**module.output_names, name: module.output_names[general]}, module.metadata, module.states,
            {**module.versions, name: general},
        )  # fmt: skip
    return module


def _named_types(function: Function, labels: Sequence[str]) -> list[tuple[str, TensorType]]:
    inputs = [(param.name, flatten(param.type)[0]) for param in function.params]
    return [*inputs, *zip(labels, flatten(function.body.type), strict=True)]


def _join(joined: Module, name: str, module: Module) -> Module:
    """``module`` as one more entry point, with weights, states and symbols that agree with those there already."""
    module = _with_own_symbols(module, joined, name)
    module = _with_known_weights(module, joined, name)
    for state, initial in module.states.items():
        other = joined.states.get(state, initial)
        if other.type != initial.type or not np.array_equal(other.data, initial.data):
            raise InvalidOption(f"{name}: the state {state!r} is another one than that of this name in an earlier entry point")
    function = module.main
    renamed = Function(function.params, function.body, name, origin=function.origin)
    return Module(
        {**joined.functions, name: renamed}, {**joined.output_names, name: module.output_names["main"]},
        {**joined.metadata, **module.metadata}, {**joined.states, **module.states},
    )  # fmt: skip


def _with_own_symbols(module: Module, joined: Module, name: str) -> Module:
    """Symbols that have other bounds in ``joined`` get another name."""
    taken, new = all_symbols(joined), dict[str, Dim]()
    for symbol in all_symbols(module).values():
        other = taken.get(symbol.name, symbol)
        if (other.lower, other.upper) != (symbol.lower, symbol.upper):
            new[symbol.name] = dims.symbol(f"{symbol.name}_{name}", symbol.lower, symbol.upper)
    return bind_dims(module, new)


def _with_known_weights(module: Module, joined: Module, name: str) -> Module:
    """Weights that ``joined`` has too are its objects; others of a name that it has get another name."""
    known = {node.name: node for function in all_functions(joined) for node in post_order(function.body) if isinstance(node, Parameter)}

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Parameter) or node.name not in known:
            return None
        other = known[node.name]
        if other.type == node.type and _same_bits(other.data, node.data):
            return other
        return Parameter(f"{name}.{node.name}", node.data, node.origin)

    return rewrite_module(module, rule)


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (
        one is other
        or np.ascontiguousarray(one).reshape(-1).view(np.uint8).data == np.ascontiguousarray(other).reshape(-1).view(np.uint8).data
    )
