"""Module to text. ``parser`` reads it back to an equal module; ``text`` pairs the two with files.

One line per node, children first::

    aotc 1
    symbol batch: 1..32
    param $fc.weight: float32[10, 64] = #5f3a...
    entry @main(%x: float32[batch, 64]) outputs("y") {
      %0 = dense(%x, $fc.weight) : float32[batch, 10]  # fc
      %1 = clip(%0) {maximum=6.0, minimum=0.0} : float32[batch, 10]  # act
      return %1
    }

Arrays of more than ``INLINE_SIZE`` elements print as the hash of their content; the data itself goes beside the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, DimExpr, Symbol, symbols_of
from aotc.ir.expr import (
    Attributes,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Loop,
    Module,
    Parameter,
    Tuple,
    TupleGetItem,
    Var,
    bodies,
    children,
)  # fmt: skip
from aotc.ir.types import FunctionType, TensorType, TupleType, Type, bits_of
from aotc.ir.visitor import post_order

VERSION = 1
INLINE_SIZE = 16  # arrays of up to so many elements are written out where they are used
HASH_LENGTH = 32  # hexadecimal digits of SHA-256 that name an array

_VAR_NAME = re.compile(r"[A-Za-z_][\w./~]*", re.ASCII)
_DOTTED_NAME = re.compile(r"[\w./~]+", re.ASCII)


def array_hash(array: np.ndarray) -> str:
    """The name of an array by its content: the start of SHA-256 over dtype, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    digest.update(bits_of(np.ascontiguousarray(array)).data if array.size else b"")
    return digest.hexdigest()[:HASH_LENGTH]


def module_text(module: Module) -> tuple[str, dict[str, np.ndarray]]:
    """The text form of ``module`` and the arrays that it names by hash. Raises InvalidModel for clashing names."""
    printer = _Printer()
    functions = _called_functions(module)
    printer.label_functions(module, functions)
    lines = [f"aotc {VERSION}"]
    lines += [_symbol_line(symbol) for symbol in _symbols(list(functions)).values()]
    lines += [f"metadata {json.dumps(key)}: {json.dumps(value)}" for key, value in module.metadata.items()]
    lines += [printer.parameter_line(parameter) for parameter in _parameters(functions)]
    lines += [printer.state_line(name, initial) for name, initial in module.states.items()]
    entries = {id(function): name for name, function in module.functions.items()}
    for function in functions:
        entry = entries.get(id(function), "")
        lines += ["", *printer.function_lines(function, module.output_names.get(entry), module.versions.get(entry))]
    return "\n".join(lines) + "\n", printer.arrays


def node_names(function: Function) -> dict[Expr, str]:
    """What the text form calls each node of ``function``: ``%3``, ``%x``, ``$conv1.weight``."""
    names: dict[Expr, str] = {var: var_name(var) for var in function.params}
    numbered = 0
    for node in post_order(function.body, into_functions=False):
        if isinstance(node, Var):
            names[node] = var_name(node)
        elif isinstance(node, Parameter):
            names[node] = parameter_name(node)
        elif _is_inline(node):
            names[node] = array_literal(cast(Constant, node).data)
        elif isinstance(node, Function):
            names[node] = f"@{node.name}"
        else:
            names[node] = f"%{numbered}"
            numbered += 1
    return names


def var_name(var: Var) -> str:
    return f"%{_name(var.name, _VAR_NAME)}"


def parameter_name(parameter: Parameter) -> str:
    return f"${_name(parameter.name, _DOTTED_NAME)}"


def array_literal(array: np.ndarray) -> str:
    """A small array written out: ``float32(1.5)``, ``int64[2](1, 2)``."""
    shape = f"[{', '.join(map(str, array.shape))}]" if array.ndim else ""
    return f"{array.dtype}{shape}({', '.join(attribute_text(value) for value in array.ravel().tolist())})"


def attribute_text(value: Any) -> str:
    """One value of an attribute as text. Raises TypeError for what attributes cannot hold."""
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DimExpr):
        return str(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(attribute_text, value))}{',' if len(value) == 1 else ''})"
    raise TypeError(f"an attribute holds ints, floats, strings, bools, dims, None and tuples of them, not {type(value).__name__}")


def attributes_text(attrs: Attributes) -> str:
    """`` {strides=(2, 2)}``: the attributes that differ from their defaults."""
    given = [f"{f.name}={attribute_text(value)}" for f, value in _attribute_items(attrs) if not _is_default(f, value)]
    return f" {{{', '.join(given)}}}" if given else ""


class _Printer:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.labels: dict[int, str] = {}

    def label_functions(self, module: Module, functions: Iterable[Function]) -> None:
        """A distinct label for each function: an entry point's name, else its own name, numbered where it is taken."""
        for name, function in module.functions.items():
            self.labels[id(function)] = name
        taken = set(self.labels.values())
        for function in functions:
            if id(function) not in self.labels:
                label, count = function.name or "fn", 0
                while label in taken:
                    count += 1
                    label = f"{function.name or 'fn'}.{count}"
                taken.add(label)
                self.labels[id(function)] = label

    def parameter_line(self, parameter: Parameter) -> str:
        return f"param {parameter_name(parameter)}: {parameter.type} = {self.array(parameter.data)}{_origin(parameter.origin)}"

    def state_line(self, name: str, initial: Constant) -> str:
        return f"state {json.dumps(name)}: {initial.type} = {self.array(initial.data)}{_origin(initial.origin)}"

    def array(self, array: np.ndarray) -> str:
        if _is_small(array):
            return f"({', '.join(attribute_text(value) for value in array.ravel().tolist())})"
        name = array_hash(array)
        self.arrays[name] = array
        return f"#{name}"

    def label(self, function: Function) -> str:
        return f"@{_name(self.labels.get(id(function), function.name), _DOTTED_NAME)}"

    def function_lines(self, function: Function, outputs: tuple[str, ...] | None, version_of: str | None) -> list[str]:
        is_entry = outputs is not None
        label = self.labels.get(id(function), function.name)
        params = ", ".join(f"{var_name(p)}: {p.type}{_quoted_origin(p.origin)}" for p in function.params)
        head = f"{'entry' if is_entry else 'fn'} {self.label(function)}({params})"
        if outputs is not None:
            head += f" outputs({', '.join(map(json.dumps, outputs))})"
        if version_of is not None:
            head += f" version_of({json.dumps(version_of)})"
        if function.name != label:
            head += f" name={json.dumps(function.name)}"
        head += f"{' primitive' if function.primitive else ''} {{{_origin(function.origin)}"
        names = node_names(function)
        lines = [f"  {line}" for line in self.body_lines(function, names)]
        result = self.label(function.body) if isinstance(function.body, Function) else names[function.body]
        return [head, *lines, f"  return {result}", "}"]

    def body_lines(self, function: Function, names: dict[Expr, str]) -> Iterator[str]:
        def name(node: Expr) -> str:
            return self.label(node) if isinstance(node, Function) else names[node]

        declared: set[Var] = set(function.params)
        for node in post_order(function.body, into_functions=False):
            if isinstance(node, Var) and node not in declared:
                declared.add(node)
                yield f"var {names[node]}: {node.type}{_origin(node.origin)}"
            if isinstance(node, Let) and node.var not in declared:
                declared.add(node.var)
                yield f"var {var_name(node.var)}: {node.var.type}{_origin(node.var.origin)}"
            if names[node].startswith("%") and not isinstance(node, Var):
                right = self.right_side(node, [name(child) for child in children(node)])
                yield f"{names[node]} = {right} : {node.type}{_origin(node.origin)}"

    def right_side(self, node: Expr, below: list[str]) -> str:
        match node:
            case Call(op=Function() as function):
                return f"{self.label(function)}({', '.join(below)})"
            case Call():
                return f"{cast(Any, node.op).name}({', '.join(below)}){attributes_text(node.attrs)}"
            case Constant():
                return f"constant {self.array(node.data)}"
            case Tuple():
                return f"({', '.join(below)}{',' if len(below) == 1 else ''})"
            case TupleGetItem():
                return f"{below[0]}[{node.index}]"
            case Let():
                return f"let {var_name(node.var)} = {below[0]} in {below[1]}"
            case If():
                return f"if {below[0]} then {self.label(node.then)} else {self.label(node.otherwise)}({', '.join(below[1:])})"
            case Loop():
                return self.loop(node, below)
            case _:
                raise TypeError(f"{type(node).__name__} has no line of its own")

    def loop(self, node: Loop, below: list[str]) -> str:
        parts = {"while": [] if node.condition is None else [below.pop(0)]}
        for name, operands in (("carried", node.initial), ("scanned", node.scanned), ("captured", node.captured)):
            parts[name], below = below[: len(operands)], below[len(operands) :]
        given = " ".join(f"{name}({', '.join(values)})" for name, values in parts.items() if values)
        limit = "" if node.limit is None else f" limit({node.limit})"
        iteration = "" if node.iteration is None else f" iteration({node.iteration})"
        return f"loop {self.label(node.body)} {given}{limit} trips({node.trips}){iteration}"


def _called_functions(module: Module) -> list[Function]:
    """All functions of a module once each, those called before their callers."""
    order: list[Function] = []
    done: set[int] = set()
    stack: list[tuple[Function, bool]] = [(f, False) for f in reversed(list(module.functions.values()))]
    while stack:
        function, expanded = stack.pop()
        if id(function) in done:
            continue
        if expanded:
            done.add(id(function))
            order.append(function)
            continue
        stack.append((function, True))
        stack.extend((inner, False) for inner in reversed(functions_used(function)) if id(inner) not in done)
    return order


def functions_used(function: Function) -> list[Function]:
    """The functions that the body of ``function`` calls or passes on, in order, once each."""
    found: dict[int, Function] = {}
    for node in post_order(function.body, into_functions=False):
        if isinstance(node, Call) and isinstance(node.op, Function):
            found.setdefault(id(node.op), node.op)
        elif isinstance(node, Function):
            found.setdefault(id(node), node)
        for body in bodies(node):
            found.setdefault(id(body), body)
    return list(found.values())


def _parameters(functions: Iterable[Function]) -> list[Parameter]:
    """All parameters once each, by name. Raises InvalidModel where one name means two things."""
    found: dict[str, Parameter] = {}
    for function in functions:
        for node in post_order(function.body, into_functions=False):
            if isinstance(node, Parameter) and found.setdefault(node.name, node) is not node:
                other = found[node.name]
                if other.type != node.type or not np.array_equal(other.data, node.data):
                    raise InvalidModel(f"two parameters are named {node.name!r}: one {other.type}, one {node.type}")
    return list(found.values())


def _symbols(functions: Iterable[Function]) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for function in functions:
        for node in [*function.params, *post_order(function.body, into_functions=False)]:
            for symbol in symbols_of(*dims_of_node(node)).values():
                found.setdefault(symbol.name, symbol)
    return found


def dims_of_node(node: Expr) -> Iterator[Dim]:
    """All dims of a node's type, and the symbolic ones that stand in its attributes."""
    yield from dims_of_type(node.type)
    if isinstance(node, Call):
        yield from dims_of_attribute(tuple(value for _, value in _attribute_items(node.attrs)))
    if isinstance(node, Loop):
        yield from (dim for dim in (node.trips, node.limit, node.iteration) if dim is not None)


def dims_of_attribute(value: Any) -> Iterator[Dim]:
    """The symbolic dims inside an attribute's value."""
    if isinstance(value, DimExpr):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from dims_of_attribute(item)


def dims_of_type(type_: Type) -> Iterator[Dim]:
    """All dims of a type, integers too."""
    match type_:
        case TensorType():
            yield from type_.shape
        case TupleType():
            for inner in type_.fields:
                yield from dims_of_type(inner)
        case FunctionType():
            for inner in (*type_.params, type_.result):
                yield from dims_of_type(inner)


def _symbol_line(symbol: Symbol) -> str:
    return f"symbol {symbol}: {symbol.lower}..{'' if symbol.upper is None else symbol.upper}"


def _is_small(array: np.ndarray) -> bool:
    """Whether an array is written out: it is small, and its text gives back the same bits (some NaNs do not)."""
    if array.size > INLINE_SIZE:
        return False
    back = np.array(array.ravel().tolist(), array.dtype).reshape(array.shape)
    return back.tobytes() == array.tobytes()


def _is_inline(node: Expr) -> bool:
    return isinstance(node, Constant) and not node.origin and _is_small(node.data)


def _attribute_items(attrs: Attributes) -> list[tuple[Field[Any], Any]]:
    """Fields and values; calls of functions carry the base class, which has no fields."""
    return [(f, getattr(attrs, f.name)) for f in fields(cast(Any, attrs))] if is_dataclass(attrs) else []


def _is_default(field: Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is not MISSING and type(value) is type(default) and bool(value == default)


def _name(name: str, plain: re.Pattern[str]) -> str:
    return name if plain.fullmatch(name) else json.dumps(name)


def _origin(origin: str) -> str:
    """The origin as the comment that ends a line; quoted where plain text would not come back."""
    if not origin:
        return ""
    plain = origin == origin.strip() and origin.isprintable() and not origin.startswith('"')
    return f"  # {origin if plain else json.dumps(origin)}"


def _quoted_origin(origin: str) -> str:
    return f" from {json.dumps(origin)}" if origin else ""
