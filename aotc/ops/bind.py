"""Specialises a module: symbols of its dims become numbers, or other dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.errors import InvalidOption
from aotc.ir.dims import RESERVED, Dim, DimExpr, Symbol, bounds, floordiv, substitute, symbol, symbols_of
from aotc.ir.expr import Call, Expr, Function, If, Loop, Module, Var, bodies, call, children, loop_operands, with_children
from aotc.ir.types import TensorType, TupleType, Type
from aotc.ir.visitor import post_order
from aotc.ops.shape_values import with_dims


def bind_dims(module: Module, values: Mapping[str, Dim]) -> Module:
    """``module`` with the symbols named in ``values`` replaced everywhere. Types are computed anew: raises InvalidModel
    where a value does not fit the model."""
    if not values:
        return module
    done: dict[int, Function] = {}
    return module.with_functions({name: _bind_function(function, values, done) for name, function in module.functions.items()})


def _bind_function(function: Function, values: Mapping[str, Dim], done: dict[int, Function]) -> Function:
    if id(function) in done:
        return done[id(function)]
    new: dict[int, Expr] = {id(p): Var(p.name, _bind_type(p.type, values), p.origin) for p in function.params}
    for node in post_order(function.body):
        if id(node) not in new:
            new[id(node)] = _bind_node(node, [new[id(child)] for child in children(node)], values, done)
    params = tuple(new[id(p)] for p in function.params)
    result = Function(params, new[id(function.body)], function.name, function.primitive, function.origin)  # type: ignore[arg-type]
    done[id(function)] = result
    return result


def _bind_node(node: Expr, below: Sequence[Expr], values: Mapping[str, Dim], done: dict[int, Function]) -> Expr:
    if isinstance(node, Var):
        return Var(node.name, _bind_type(node.type, values), node.origin)
    if isinstance(node, Call):
        op = _bind_function(node.op, values, done) if isinstance(node.op, Function) else node.op
        return call(op, below, with_dims(node.attrs, lambda dim: substitute(dim, values)), node.origin)
    if isinstance(node, (If, Loop)):
        return _bind_control(node, below, values, [_bind_function(body, values, done) for body in bodies(node)])
    return with_children(node, below)


def _bind_control(node: If | Loop, below: Sequence[Expr], values: Mapping[str, Dim], new: Sequence[Function]) -> Expr:
    if isinstance(node, If):
        type_ = _bind_type(node.type, values)
        return replace(node, condition=below[0], then=new[0], otherwise=new[1], args=tuple(below[1:]), type=type_)
    limit = None if node.limit is None else substitute(node.limit, values)
    iteration = None if node.iteration is None else substitute(node.iteration, values)
    return replace(
        node, body=new[0], trips=substitute(node.trips, values), limit=limit, iteration=iteration, **loop_operands(node, below)
    )  # fmt: skip


def _bind_type(type_: Type, values: Mapping[str, Dim]) -> Type:
    if isinstance(type_, TensorType):
        return TensorType(tuple(substitute(dim, values) for dim in type_.shape), type_.dtype, type_.device)
    if isinstance(type_, TupleType):
        return TupleType(tuple(_bind_type(field, values) for field in type_.fields))
    return type_


def bind_inputs(module: Module, shapes: Mapping[str, Sequence[Dim | str | None]]) -> Module:
    """``module`` with dims of its inputs fixed or renamed: for each input named, one entry per axis, which is a number, a
    dim, the name of a dynamic dim, or None for what stands there. Raises InvalidOption where an entry does not fit."""
    known = {param.name: param.type for param in module.main.params}
    values: dict[str, Dim] = {}
    for name, entries in shapes.items():
        type_ = known.get(name)
        if not isinstance(type_, TensorType):
            raise InvalidOption(f"the model has no input {name!r}; its inputs are {', '.join(map(repr, known)) or 'none'}")
        if isinstance(entries, str) or len(entries) != type_.rank:
            raise InvalidOption(f"input {name!r} is {type_}: give one entry for each of its {type_.rank} axes, not {entries!r}")
        for axis, (dim, entry) in enumerate(zip(type_.shape, entries, strict=True)):
            _bind_entry(f"axis {axis} of input {name!r}", dim, entry, values)
    return bind_dims(module, values)


def _bind_entry(where: str, dim: Dim, entry: Dim | str | None, values: dict[str, Dim]) -> None:
    if entry is None:
        return
    if isinstance(entry, str):
        lower, upper = bounds(dim)
        entry = symbol(f"{entry}_" if entry in RESERVED else entry, lower or 0, upper)
    if isinstance(dim, int):
        if entry != dim:
            raise InvalidOption(f"{where} is {dim} in the model and cannot be {entry}; export it with a dynamic dim there")
        return
    solved = solve_linear(dim, entry)
    if solved is None:
        raise InvalidOption(f"{where} is {dim} in the model and cannot be {entry}: fix the dims that it consists of")
    name, value = solved
    if values.setdefault(name, value) != value:
        raise InvalidOption(f"{where} asks for {name} = {value}, which another entry makes {values[name]}")
    _check_range(where, symbols_of(dim)[name], value)


def _check_range(where: str, sym: Symbol, value: Dim) -> None:
    low, high = bounds(value)
    if (high is not None and high < sym.lower) or (sym.upper is not None and low is not None and low > sym.upper):
        upper = "" if sym.upper is None else f" to {sym.upper}"
        raise InvalidOption(f"{where} is {sym} = {value}, out of the range from {sym.lower}{upper} that the model was exported with")


def solve_linear(dim: Dim, value: Dim) -> tuple[str, Dim] | None:
    """(symbol, what it must be) for ``dim`` = ``value``, where ``dim`` is a multiple of one symbol plus a constant."""
    if not isinstance(dim, DimExpr) or len(symbols_of(dim)) != 1:
        return None
    (name,) = symbols_of(dim)
    factor, constant = 0, 0
    for monomial, coefficient in dim.terms:
        if not monomial:
            constant = coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], Symbol):
            factor = coefficient
        else:
            return None
    solution = floordiv(value - constant, factor)
    return (name, solution) if substitute(dim, {name: solution}) == value else None
