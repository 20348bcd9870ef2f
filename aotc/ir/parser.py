"""Text to module: the inverse of ``printer``. Errors name the line and the column.

The table of operators comes as an argument, since the IR knows none. Types after a node's colon are optional: they are
computed, and where one is written it must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir import dims
from aotc.ir.expr import Attributes, Constant, Expr, Function, If, Let, Loop, Module, Parameter, Tuple, TupleGetItem, Var, call
from aotc.ir.lexer import Token, shown
from aotc.ir.literals import LiteralReader, symbol_name
from aotc.ir.printer import VERSION
from aotc.ir.types import DTYPES, TensorType, Type


class OperatorEntry(Protocol):
    """What the parser needs of an operator: its attribute class, and its type relation through ``call``."""

    @property
    def name(self) -> str: ...

    @property
    def attributes(self) -> type[Attributes]: ...

    def infer_type(self, args: Any, attrs: Any) -> Type: ...


def parse_module(
    text: str, operators: Mapping[str, OperatorEntry], arrays: Mapping[str, np.ndarray] | None = None, name: str = "<text>"
) -> Module:
    """The module that ``text`` describes. ``arrays`` holds the data that it names by hash; ``name`` is for messages.

    Raises InvalidModel, with line and column, for text that does not parse or does not type.
    """
    return _Parser(text, operators, arrays or {}, name).module()


class _Parser(LiteralReader):
    def __init__(self, text: str, operators: Mapping[str, OperatorEntry], arrays: Mapping[str, np.ndarray], name: str) -> None:
        super().__init__(text, arrays, name)
        self.operators = operators
        self.functions: dict[str, Function] = {}
        self.parameters: dict[str, Parameter] = {}
        self.values: dict[str, Expr] = {}

    def module(self) -> Module:
        self.skip_lines()
        self.expect("aotc")
        version = self.peek()
        if self.integer() != VERSION:
            raise self.error(f"this is version {version.text} of the text form; version {VERSION} is read here", version)
        self.end_of_line()
        metadata: dict[str, str] = {}
        outputs: dict[str, tuple[str, ...]] = {}
        entries: dict[str, Function] = {}
        states: dict[str, Constant] = {}
        versions: dict[str, str] = {}
        self.skip_lines()
        while self.at < len(self.tokens):
            token = self.take()
            if token.text == "symbol":
                self.symbol_line()
            elif token.text == "metadata":
                key = self.string()
                self.expect(":")
                metadata[key] = self.string()
                self.end_of_line()
            elif token.text == "param":
                self.parameter_line()
            elif token.text == "state":
                name = self.string()
                self.expect(":")
                type_ = self.tensor_type()
                self.expect("=")
                data = self.array(type_)
                states[name] = Constant(data, self.end_of_line())
            elif token.text in ("entry", "fn"):
                label, function, names, version_of = self.function(token)
                if token.text == "entry":
                    entries[label], outputs[label] = function, names
                if version_of:
                    versions[label] = version_of
            else:
                raise self.error(f"expected symbol, metadata, param, state, fn or entry, found {shown(token)}", token)
            self.skip_lines()
        return Module(entries, outputs, metadata, states, versions)

    def symbol_line(self) -> None:
        token = self.take()
        if token.kind not in ("word", "symbol"):
            raise self.error(f"expected the name of a symbol, found {shown(token)}", token)
        name = symbol_name(token.text)
        self.expect(":")
        lower = self.integer()
        self.expect("..")
        upper = None if self.peek().kind in ("newline", "comment") else self.integer()
        self.symbols[name] = dims.symbol(name, lower, upper)
        self.end_of_line()

    def parameter_line(self) -> None:
        token = self.peek()
        label = self.sigil("$", "a parameter such as $conv1.weight")
        self.expect(":")
        type_ = self.tensor_type()
        self.expect("=")
        data = self.array(type_)
        if label in self.parameters:
            raise self.error(f"the parameter {label} is declared twice", token)
        self.parameters[label] = Parameter(self.plain(label), data, self.end_of_line())

    def function(self, keyword: Token) -> tuple[str, Function, tuple[str, ...], str]:
        token = self.peek()
        label = self.sigil("@", "the name of a function such as @main")
        if label in self.functions:
            raise self.error(f"the function {label} is declared twice", token)
        self.values = {}
        self.expect("(")
        params = tuple(self.separated(")", self.param)[0])
        names: tuple[str, ...] = ()
        if keyword.text == "entry":
            self.expect("outputs")
            self.expect("(")
            names = tuple(self.separated(")", self.string)[0])
        version_of = ""
        if self.accept("version_of"):
            self.expect("(")
            version_of = self.string()
            self.expect(")")
        name = self.plain(label)
        if self.accept("name"):
            self.expect("=")
            name = self.string()
        primitive = self.accept("primitive")
        self.expect("{")
        origin = self.end_of_line()
        self.skip_lines()
        while not self.accept("return"):
            self.statement()
            self.skip_lines()
        body = self.operand()
        self.end_of_line()
        self.skip_lines()
        self.expect("}")
        self.end_of_line()
        function = Function(params, body, name, primitive, origin)
        self.functions[label] = function
        return self.plain(label), function, names, version_of

    def param(self) -> Var:
        token = self.peek()
        label = self.sigil("%", "a parameter such as %x")
        self.expect(":")
        type_ = self.any_type()
        origin = self.string() if self.accept("from") else ""
        return cast(Var, self.define(label, Var(self.plain(label), type_, origin), token))

    def define(self, label: str, value: Expr, token: Token) -> Expr:
        if label in self.values:
            raise self.error(f"{label} is defined twice", token)
        self.values[label] = value
        return value

    def statement(self) -> None:
        token = self.peek()
        if self.accept("var"):
            label = self.sigil("%", "a name such as %v")
            self.expect(":")
            type_ = self.any_type()
            self.define(label, Var(self.plain(label), type_, self.end_of_line()), token)
            return
        label = self.sigil("%", "a statement: '%name = ...', 'var' or 'return'")
        self.expect("=")
        start = self.peek()
        try:
            build = self.right_side()
            written: Type | None = None
            if self.peek().text == ":":
                self.take()
                written = self.any_type()
            value = build(self.end_of_line(), written)
        except InvalidModel as error:
            if str(error).startswith(f"{self.name}:"):
                raise
            raise self.error(str(error), start) from error
        if written is not None and value.type != written:
            raise self.error(f"the type is {value.type}, not {written}", start)
        self.define(label, value, token)

    def right_side(self) -> Callable[[str, Type | None], Expr]:
        """What follows ``=``, as a function of the origin, which stands at the end of the line."""
        token = self.peek()
        if self.accept("constant"):
            return self.constant()
        if self.accept("let"):
            var = self.operand()
            self.expect("=")
            value = self.operand()
            self.expect("in")
            body = self.operand()
            return lambda origin, _: Let(cast(Var, var), value, body, origin)
        if self.accept("if"):
            return self.branches()
        if self.accept("loop"):
            return self.loop()
        if self.accept("("):
            items = self.separated(")", self.operand)[0]
            return lambda origin, _: Tuple(tuple(items), origin)
        if token.kind == "sigil" and token.text[0] in "%$":
            whole = self.operand()
            self.expect("[")
            index = self.integer()
            self.expect("]")
            return lambda origin, _: TupleGetItem(whole, index, origin)
        return self.call()

    def branches(self) -> Callable[[str, Type | None], Expr]:
        token = self.peek()
        condition = self.operand()
        self.expect("then")
        then = self.body()
        self.expect("else")
        otherwise = self.body()
        self.expect("(")
        args = self.separated(")", self.operand)[0]

        def build(origin: str, written: Type | None) -> Expr:
            if written is None:
                raise self.error("an if needs its type: 'if %c then @f else @g(%x) : float32[n]'", token)
            return If(condition, then, otherwise, tuple(args), written, origin)

        return build

    def loop(self) -> Callable[[str, Type | None], Expr]:
        body = self.body()
        parts: dict[str, list[Expr]] = {}
        for name in ("while", "carried", "scanned", "captured"):
            parts[name] = []
            if self.accept(name):
                self.expect("(")
                parts[name] = self.separated(")", self.operand)[0]
        limit = self.dim_in_brackets() if self.accept("limit") else None
        self.expect("trips")
        trips = self.dim_in_brackets()
        iteration = self.dim_in_brackets() if self.accept("iteration") else None
        condition = next(iter(parts["while"]), None)
        carried, scanned, captured = (tuple(parts[name]) for name in ("carried", "scanned", "captured"))
        return lambda origin, _: Loop(body, trips, condition, carried, scanned, captured, limit, iteration, origin)

    def dim_in_brackets(self) -> dims.Dim:
        self.expect("(")
        dim = self.dim()
        self.expect(")")
        return dim

    def body(self) -> Function:
        token = self.peek()
        operand = self.operand()
        if not isinstance(operand, Function):
            raise self.error("expected a function such as @body", token)
        return operand

    def call(self) -> Callable[[str, Type | None], Expr]:
        token = self.take()
        if token.kind == "sigil":
            function = self.functions.get(token.text)
            if function is None:
                raise self.error(f"the function {token.text} is not defined above", token)
            self.expect("(")
            given = self.separated(")", self.operand)[0]
            return lambda origin, _: call(function, given, None, origin)
        op = self.operators.get(token.text) if token.kind == "word" else None
        if op is None:
            raise self.error(f"expected an operator, found {shown(token)}", token)
        self.expect("(")
        args = self.separated(")", self.operand)[0]
        attrs = self.attributes(op.attributes, op.name)
        return lambda origin, _: call(op, args, attrs, origin)

    def constant(self) -> Callable[[str, Type | None], Expr]:
        """The type of a constant is written behind its data: look ahead for it."""
        start, token = self.at, self.peek()
        while self.peek().text != ":" and self.peek().kind != "newline":
            self.at += 1
        if not self.accept(":"):
            raise self.error("a constant needs its type: 'constant (1, 2) : int64[2]'", token)
        type_ = self.tensor_type()
        self.at = start
        data = self.array(type_)
        return lambda origin, _: Constant(data, origin)

    def operand(self) -> Expr:
        token = self.take()
        if token.kind == "sigil":
            table: Mapping[str, Expr] = {"%": self.values, "$": self.parameters, "@": self.functions}[token.text[0]]  # type: ignore[assignment]
            if token.text in table:
                return table[token.text]
            raise self.error(f"{token.text} is not defined above", token)
        if token.kind == "word" and token.text in DTYPES:
            shape = tuple(self.separated("]", self.integer)[0]) if self.accept("[") else ()
            return Constant(self.array(TensorType(shape, token.text)))
        raise self.error(f"expected an operand, found {shown(token)}", token)
