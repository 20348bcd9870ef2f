"""What a module must be at every stage, checked; messages name the user's node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import DimExpr, Symbol, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, If, Let, Loop, Module, Parameter, Tuple, TupleGetItem, Var, bodies, call
from aotc.ir.printer import dims_of_node, dims_of_type, functions_used
from aotc.ir.symbols import is_planned, symbols_defined
from aotc.ir.types import FunctionType, TensorType, Type, flatten
from aotc.ir.visitor import all_functions, free_vars, post_order

NOT_IN_PRIMITIVE = (Let, If, Loop, Parameter, Function)


def verify(module: Module) -> None:
    """Raises InvalidModel at the first broken rule: types as computed anew, no free variables, names unique, symbolic
    dims defined by inputs or nodes, output names complete, primitive functions small and closed. Graphs cannot be cyclic, since
    nodes are immutable.
    """
    parameters: dict[str, Parameter] = {}
    done: set[int] = set()
    for name, function in module.functions.items():
        outputs = module.output_names.get(name)
        if outputs is None or len(outputs) != len(flatten(function.body.type)):
            raise InvalidModel(f"{name}: has {len(flatten(function.body.type))} outputs and the names {outputs}")
        _check_states(name, function, module)
        _check_symbols(name, function)
        pending = [function]
        while pending:
            function = pending.pop()
            if id(function) not in done:
                done.add(id(function))
                verify_function(function, parameters)
                pending += functions_used(function)


def verify_function(function: Function, parameters: dict[str, Parameter] | None = None) -> None:
    """The rules for one function; ``parameters`` collects those met so far by name, to find two of one name."""
    parameters = parameters if parameters is not None else {}
    where = function.name or function.origin or "function"
    free = free_vars(function)
    if free:
        raise InvalidModel(f"{where}: the variable {free[0].name!r}{_from(free[0])} is used and bound nowhere")
    nodes = post_order(function.body, into_functions=False)
    _check_variables(where, function, nodes)
    for node in nodes:
        if isinstance(node, Parameter):
            other = parameters.setdefault(node.name, node)
            if other is not node and (other.data.dtype != node.data.dtype or not np.array_equal(other.data, node.data)):
                raise InvalidModel(f"{where}: two different parameters are named {node.name!r}: {other.type} and {node.type}")
        _check_type(where, node)
        if function.primitive:
            _check_in_primitive(where, node)
    if function.primitive and not any(isinstance(node, Call) for node in nodes):
        raise InvalidModel(f"{where}: a primitive function must compute something")


def verify_fused(module: Module) -> None:
    """The rules for a module after ``fuse_operators``: entry points hold only calls of primitive functions, tuples and
    leaves, and what is not a scalar reaches a primitive function as an argument."""
    verify(module)
    for function in all_functions(module):
        for node in post_order(function.body):
            if isinstance(node, Call) and not is_planned(node) and not (isinstance(node.op, Function) and node.op.primitive):
                raise InvalidModel(f"{function.name}: {node.op.name}{_from(node)} was not fused into a primitive function")
            if isinstance(node, Call) and isinstance(node.op, Function):
                for inner in post_order(node.op.body):
                    if isinstance(inner, Constant) and inner.data.ndim:
                        raise InvalidModel(f"{node.op.name}{_from(node)}: holds the constant {inner.type}; only scalars may stand inside")


def _check_variables(where: str, function: Function, nodes: Iterable[Expr]) -> None:
    bound: dict[str, Var] = {}
    for var in [*function.params, *(node.var for node in nodes if isinstance(node, Let))]:
        if var.name in bound:
            raise InvalidModel(f"{where}: the variable {var.name!r} is bound twice")
        bound[var.name] = var


def _check_type(where: str, node: Expr) -> None:
    expected = _computed_type(node)
    if expected is not None and expected != node.type:
        kind = node.op.name if isinstance(node, Call) else type(node).__name__
        raise InvalidModel(f"{where}: {kind}{_from(node)} has the type {node.type}, while its operands give {expected}")
    if isinstance(node, Let) and node.var.type != node.value.type:
        raise InvalidModel(f"{where}: let {node.var.name!r}{_from(node)} binds {node.value.type} to a variable of type {node.var.type}")
    if isinstance(node, (Constant, Parameter)) and not isinstance(node.data, np.ndarray):
        raise InvalidModel(f"{where}: {type(node).__name__}{_from(node)} holds {type(node.data).__name__}, not an array")
    for dim in dims_of_type(node.type):
        if isinstance(dim, int) and dim < 0:
            raise InvalidModel(f"{where}: {type(node).__name__}{_from(node)} has the negative dim {dim} in {node.type}")


def _computed_type(node: Expr) -> Type | None:
    match node:
        case Call():
            return call(node.op, node.args, node.attrs, node.origin).type
        case Tuple():
            return Tuple(node.fields).type
        case TupleGetItem():
            return TupleGetItem(node.value, node.index, node.origin).type
        case If() | Loop():
            return replace(node).type  # building it checks it
        case Let():
            return node.body.type
        case _:
            return None


def _check_in_primitive(where: str, node: Expr) -> None:
    if isinstance(node, NOT_IN_PRIMITIVE) or (isinstance(node, Call) and isinstance(node.op, Function)):
        what = f"{type(node).__name__}{_from(node)}"
        raise InvalidModel(f"{where}: a primitive function holds operator calls, variables and scalars, not {what}")


def _check_states(name: str, function: Function, module: Module) -> None:
    results = zip(module.output_names[name], flatten(function.body.type), strict=True)
    for label, type_ in [*((param.name, param.type) for param in function.params), *results]:
        if label in module.states and module.states[label].type != type_:
            raise InvalidModel(f"{name}: {label!r} is {type_}, while the state of that name is {module.states[label].type}")


def _check_symbols(name: str, function: Function) -> None:
    """Each symbol used must be, by itself or times a number plus a number, a dim of some input, where the runtime reads it, or
    be defined by a node that runs before."""
    defined: dict[str, Symbol] = {}
    for param in function.params:
        if isinstance(param.type, FunctionType):
            raise InvalidModel(f"{name}: the input {param.name!r} is a function")
        for tensor in flatten(param.type):
            for symbol in symbols_of(*tensor.shape).values():
                other = defined.setdefault(symbol.name, symbol)
                if (other.lower, other.upper) != (symbol.lower, symbol.upper):
                    raise InvalidModel(f"{name}: the dim {symbol} has other bounds in the input {param.name!r} than before")
    alone = {symbol.name for param in function.params for t in flatten(param.type) for symbol in _alone(t)}
    _check_uses(name, function, frozenset(alone))


def _check_uses(name: str, function: Function, known: frozenset[str]) -> None:
    order = post_order(function.body)
    own: dict[str, Expr] = {}
    for node in order:
        for symbol_name in symbols_defined(node):
            if symbol_name in known or own.setdefault(symbol_name, node) is not node:
                raise InvalidModel(f"{name}: the dim {symbol_name}{_from(node)} is defined twice")
    known = known | frozenset(own)
    for node in [*function.params, *order]:
        for symbol in symbols_of(*dims_of_node(node)).values():
            if symbol.name not in known:
                what: Any = node.op.name if isinstance(node, Call) else getattr(node, "name", type(node).__name__)
                raise InvalidModel(
                    f"{name}: {what}{_from(node)} needs the dim {symbol}, which no dim of an input determines and no node defines"
                )
    for node in order:
        for body in bodies(node):
            _check_uses(f"{name}/{body.name or 'body'}", body, known)


def _alone(tensor: TensorType) -> list[Symbol]:
    """The symbols that ``tensor`` defines: those that make up a dim with at most a factor and an addend."""
    found: list[Symbol] = []
    for dim in tensor.shape:
        symbols = list(symbols_of(dim).values())
        if isinstance(dim, DimExpr) and len(symbols) == 1 and all(monomial in ((symbols[0],), ()) for monomial, _ in dim.terms):
            found += symbols
    return found


def _from(node: Expr) -> str:
    return f" (from {node.origin!r})" if node.origin else ""
