"""Expressions: an immutable, typed, functional graph. Nodes compare by identity and change only by building new ones.

Every node has a ``type`` and an ``origin``: the user's own name for where it came from (an ONNX node, a torch module
path), so that errors, profiles and reports can speak in those names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, Symbol, as_symbol, symbols_of
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
    """``then`` or ``otherwise`` applied to ``args``, chosen by a boolean scalar; only the chosen one is computed.

    Both are closed functions of the same parameters. Where the branches' results differ in a dim, that dim of ``type`` is a
    symbol of its own, which this node defines.
    """

    condition: Expr
    then: Function
    otherwise: Function
    args: tuple[Expr, ...]
    type: Type
    origin: str = ""

    def __post_init__(self) -> None:
        where = self.origin or "if"
        if self.condition.type != TensorType((), "bool"):
            raise InvalidModel(f"{where}: the condition must be bool[], not {self.condition.type}")
        given = [arg.type for arg in self.args]
        for branch in (self.then, self.otherwise):
            if [param.type for param in branch.params] != given:
                raise InvalidModel(f"{where}: a branch takes {branch.type}, not ({', '.join(map(str, given))})")
            _check_varying(f"{where}: a branch's result", flatten(self.type), flatten(branch.body.type))


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """``body`` again and again, while ``condition`` holds and fewer than ``limit`` iterations are done.

    The body is a closed function of (iteration int64[], carried values, slices of ``scanned`` along their axis 0, ``captured``)
    and returns a tuple of (the next condition, where there is one; carried values; what to stack). The result is a tuple of
    the carried values at the end and the stacked ones, with ``trips`` as their axis 0: that is ``limit`` where there is no
    condition, else a symbol that this node defines. A carried dim that changes from one iteration to the next is a
    symbol in the type of the body's parameter, which this node defines too. ``iteration``, set by a pass, is a symbol that
    inside the body is the number of the iteration.
    """

    body: Function
    trips: Dim
    condition: Expr | None
    initial: tuple[Expr, ...]
    scanned: tuple[Expr, ...] = ()
    captured: tuple[Expr, ...] = ()
    limit: Dim | None = None
    iteration: Dim | None = None
    origin: str = ""
    type: TupleType = field(init=False)

    def __post_init__(self) -> None:
        where = self.origin or "loop"
        params, results = [flatten(param.type)[0] for param in self.body.params], list(flatten(self.body.body.type))
        count = len(self.initial)
        if self.condition is None and (self.limit is None or self.trips != self.limit):
            raise InvalidModel(f"{where}: without a condition there must be a limit, which is the number of trips")
        if self.condition is not None:
            wanted = TensorType((), "bool")
            if not results or (results.pop(0), self.condition.type) != (wanted, wanted):
                raise InvalidModel(f"{where}: the condition must be bool[], before the loop and as the body's first result")
        if len(params) != 1 + count + len(self.scanned) + len(self.captured) or len(results) < count:
            raise InvalidModel(f"{where}: the body takes {len(params)} and returns {len(results)} values, which do not fit {count} carried")
        _check_varying(f"{where}: a carried value", params[1 : 1 + count], [flatten(each.type)[0] for each in self.initial])
        _check_varying(f"{where}: a carried value", params[1 : 1 + count], results[:count])
        slices = [TensorType(t.shape[1:], t.dtype, t.device) for each in self.scanned for t in flatten(each.type)]
        rest = [*slices, *(flatten(each.type)[0] for each in self.captured)]
        if params[0] != TensorType((), "int64") or params[1 + count :] != rest:
            raise InvalidModel(f"{where}: the body takes {self.body.type}; expected int64[], {count} carried values, then {rest}")
        stacked = [TensorType((self.trips, *t.shape), t.dtype, t.device) for t in results[count:]]
        object.__setattr__(self, "type", TupleType((*params[1 : 1 + count], *stacked)))


def _check_varying(what: str, declared: Sequence[TensorType], actual: Sequence[TensorType]) -> None:
    """Dims may differ only where the declared one is a symbol by itself, which stands for the actual one."""
    fits = len(declared) == len(actual) and all(
        d.dtype == a.dtype and d.rank == a.rank and all(x == y or as_symbol(x) is not None for x, y in zip(d.shape, a.shape, strict=True))
        for d, a in zip(declared, actual, strict=True)
    )
    if not fits:
        raise InvalidModel(f"{what} is {', '.join(map(str, actual)) or 'nothing'}, not {', '.join(map(str, declared)) or 'nothing'}")


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


Expr = Var | Constant | Parameter | Call | Tuple | TupleGetItem | Let | If | Loop | Function


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Entry points by name, which may share parameters. ``output_names`` gives the user's names of each one's outputs,
    tuples flattened; ``metadata`` is the user's own text (labels, licence, what the source file carried).

    ``states`` are tensors that a session keeps between runs, by name, with their values at first. An entry point's parameter
    of such a name reads the state and is no input of the user's; a result of such a name is written to it at the end.

    ``versions`` names functions that are no entry points of their own but specialised versions of one, by its name: they run in
    its place where the inputs have exactly their shapes.
    """

    functions: Mapping[str, Function]
    output_names: Mapping[str, tuple[str, ...]]
    metadata: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, Constant] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

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

    def with_functions(self, functions: Mapping[str, Function], output_names: Mapping[str, tuple[str, ...]] | None = None) -> Module:
        """The module with other functions; its metadata, states and versions stay."""
        names = self.output_names if output_names is None else output_names
        return Module(functions, names, self.metadata, self.states, self.versions)

    def with_function(self, name: str, function: Function) -> Module:
        return self.with_functions({**self.functions, name: function})


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
    """The expressions directly below a node, in a fixed order. A function called is not below its call, nor are the bodies of
    ``If`` and ``Loop``: see ``bodies``."""
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
            return (expr.condition, *expr.args)
        case Loop():
            return (*(() if expr.condition is None else (expr.condition,)), *expr.initial, *expr.scanned, *expr.captured)
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
            return replace(expr, condition=new[0], args=tuple(new[1:]))
        case Loop():
            return replace(expr, **loop_operands(expr, new))
        case Function():
            return Function(expr.params, new[0], expr.name, expr.primitive, expr.origin)
        case _:
            raise TypeError(f"{type(expr).__name__} has no children")


def loop_operands(loop: Loop, new: Sequence[Expr]) -> dict[str, Any]:
    """The children ``new`` of a loop as its fields by name."""
    first = int(loop.condition is not None)
    carried = first + len(loop.initial)
    scanned = carried + len(loop.scanned)
    return {
        "condition": new[0] if first else None, "initial": tuple(new[first:carried]),
        "scanned": tuple(new[carried:scanned]), "captured": tuple(new[scanned:]),
    }  # fmt: skip


def bodies(expr: Expr) -> tuple[Function, ...]:
    """The functions that a node of control flow runs."""
    match expr:
        case If():
            return (expr.then, expr.otherwise)
        case Loop():
            return (expr.body,)
        case _:
            return ()


def with_bodies(expr: Expr, new: Sequence[Function]) -> Expr:
    """``expr`` over other bodies of the same types; ``expr`` itself where none differs."""
    if all(a is b for a, b in zip(bodies(expr), new, strict=True)):
        return expr
    if isinstance(expr, If):
        return replace(expr, then=new[0], otherwise=new[1])
    assert isinstance(expr, Loop)
    return replace(expr, body=new[0])


def defined_symbols(expr: Expr) -> dict[str, Symbol]:
    """The symbols whose values a node of control flow finds when it runs, by name."""
    pairs: list[tuple[TensorType, TensorType]] = []
    found: dict[str, Symbol] = {}
    match expr:
        case If():
            for branch in bodies(expr):
                pairs += zip(flatten(expr.type), flatten(branch.body.type), strict=True)
        case Loop():
            carried = [flatten(param.type)[0] for param in expr.body.params[1 : 1 + len(expr.initial)]]
            results = flatten(expr.body.body.type)[expr.condition is not None :]
            pairs += zip(carried, [flatten(each.type)[0] for each in expr.initial], strict=True)
            pairs += zip(carried, results[: len(carried)], strict=True)
            if expr.condition is not None:
                found |= symbols_of(expr.trips)
            if expr.iteration is not None:
                found |= symbols_of(expr.iteration)
    for declared, actual in pairs:
        for dim, other in zip(declared.shape, actual.shape, strict=True):
            if dim != other:
                found |= symbols_of(dim)
    return found


def attributes_of(expr: Expr) -> Any:
    """The attributes of a call, for code that has checked the operator."""
    assert isinstance(expr, Call)
    return expr.attrs
