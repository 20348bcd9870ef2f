"""Expressions: an immutable, typed, functional graph. Nodes compare by identity and change only by building new ones.

Every node has a ``type`` and an ``origin``: the user's own name for where it came from (an ONNX node, a torch module
path), so that errors, profiles and reports can speak in those names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Symbol, symbols_of
from aotc.ir.types import FunctionType, TensorType, TupleType, Type, flatten, type_of_array


class Attributes:
    """Base of the frozen attribute class of each operator."""

    __slots__ = ()


class Operator(Protocol):
    """What the IR needs to know of an operator; ``aotc.ops.base.OpDef`` is the one implementation."""

    @property
    def name(self) -> str: ...

    def infer_type(self, args: Sequence[Type], attrs: Attributes) -> Type: ...


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """An input of a function or a name bound by ``Let``."""

    name: str
    type: Type
    origin: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A value known at compile time. The array must not be written to."""

    data: np.ndarray
    origin: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", np.asarray(self.data))  # numpy makes scalars of arrays without axes

    @property
    def type(self) -> TensorType:
        return type_of_array(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A named weight: frozen for inference, trainable later. The array must not be written to."""

    name: str
    data: np.ndarray
    origin: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", np.asarray(self.data))

    @property
    def type(self) -> TensorType:
        return type_of_array(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An operator or a function applied to arguments. Build it with ``call`` so that its type is computed."""

    op: Operator | Function
    args: tuple[Expr, ...]
    attrs: Attributes
    type: Type
    origin: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Tuple:
    fields: tuple[Expr, ...]
    origin: str = ""
    type: TupleType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", TupleType(tuple(f.type for f in self.fields)))


@dataclass(frozen=True, slots=True, eq=False)
class TupleGetItem:
    value: Expr
    index: int
    origin: str = ""
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.value.type, TupleType) or not 0 <= self.index < len(self.value.type.fields):
            raise InvalidModel(f"{self.origin or 'tuple item'}: there is no field {self.index} in {self.value.type}")
        object.__setattr__(self, "type", self.value.type.fields[self.index])


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """``body`` with ``var`` standing for ``value``."""

    var: Var
    value: Expr
    body: Expr
    origin: str = ""
    type: Type = field(init=False)  # kept, not asked of the body each time: lets may nest ten thousand deep

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.body.type)


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """One of two expressions of equal type, chosen by a boolean scalar; only the chosen one is computed."""

    condition: Expr
    then: Expr
    otherwise: Expr
    origin: str = ""
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        if self.condition.type != TensorType((), "bool"):
            raise InvalidModel(f"{self.origin or 'if'}: the condition must be bool[], not {self.condition.type}")
        if self.then.type != self.otherwise.type:
            raise InvalidModel(f"{self.origin or 'if'}: the branches differ: {self.then.type} and {self.otherwise.type}")
        object.__setattr__(self, "type", self.then.type)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """``params`` to ``body``. ``name`` is for readers; ``primitive`` marks a fused function, which becomes one kernel."""

    params: tuple[Var, ...]
    body: Expr
    name: str = ""
    primitive: bool = False
    origin: str = ""

    @property
    def type(self) -> FunctionType:
        return FunctionType(tuple(p.type for p in self.params), self.body.type)


Expr = Var | Constant | Parameter | Call | Tuple | TupleGetItem | Let | If | Function


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Entry points by name, which may share parameters. ``output_names`` gives the user's names of each one's outputs,
    tuples flattened; ``metadata`` is the user's own text (labels, licence, what the source file carried)."""

    functions: Mapping[str, Function]
    output_names: Mapping[str, tuple[str, ...]]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Function:
        return self.functions["main"]

    @property
    def symbols(self) -> dict[str, Symbol]:
        """The symbolic dims of all entry points by name, with their bounds."""
        found: dict[str, Symbol] = {}
        for function in self.functions.values():
            for param in function.params:
                for tensor in flatten(param.type):
                    found = {**symbols_of(*tensor.shape), **found}
        return found

    def with_function(self, name: str, function: Function) -> Module:
        return Module({**self.functions, name: function}, self.output_names, self.metadata)


def call(op: Operator | Function, args: Sequence[Expr], attrs: Attributes | None = None, origin: str = "") -> Call:
    """A call with its type computed. Raises InvalidModel, which names ``origin``, where the arguments do not fit."""
    attrs = attrs if attrs is not None else Attributes()
    types = [arg.type for arg in args]
    if isinstance(op, Function):
        if list(op.type.params) != types:
            raise InvalidModel(f"{origin or op.name}: the function takes {op.type}, not ({', '.join(map(str, types))})")
        return Call(op, tuple(args), attrs, op.body.type, origin)
    try:
        return Call(op, tuple(args), attrs, op.infer_type(types, attrs), origin)
    except InvalidModel as error:
        where = f"{op.name} at {origin!r}" if origin else op.name
        raise InvalidModel(f"{where}: {error}") from error


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly below a node, in a fixed order. A function called is not below its call."""
    match expr:
        case Call():
            return expr.args
        case Tuple():
            return expr.fields
        case TupleGetItem():
            return (expr.value,)
        case Let():
            return (expr.value, expr.body)
        case If():
            return (expr.condition, expr.then, expr.otherwise)
        case Function():
            return (expr.body,)
        case _:
            return ()


def with_children(expr: Expr, new: Sequence[Expr]) -> Expr:
    """``expr`` over other children, types computed anew; ``expr`` itself where none differs."""
    if all(a is b for a, b in zip(children(expr), new, strict=True)):
        return expr
    match expr:
        case Call():
            return call(expr.op, new, expr.attrs, expr.origin)
        case Tuple():
            return Tuple(tuple(new), expr.origin)
        case TupleGetItem():
            return TupleGetItem(new[0], expr.index, expr.origin)
        case Let():
            return Let(expr.var, new[0], new[1], expr.origin)
        case If():
            return If(new[0], new[1], new[2], expr.origin)
        case Function():
            return Function(expr.params, new[0], expr.name, expr.primitive, expr.origin)
        case _:
            raise TypeError(f"{type(expr).__name__} has no children")


def attributes_of(expr: Expr) -> Any:
    """The attributes of a call, for code that has checked the operator."""
    assert isinstance(expr, Call)
    return expr.attrs
