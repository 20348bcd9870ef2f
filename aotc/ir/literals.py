"""Dims, types, arrays and attributes as they stand in the text form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np

from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.lexer import Reader, shown
from aotc.ir.types import DTYPES, TensorType, TupleType, Type


def parse_dim(text: str, symbols: Mapping[str, Dim] | None = None) -> Dim:
    """One dim, such as ``2*b + 1``. Symbols that are not in ``symbols`` are without bounds. Raises InvalidModel."""
    reader = LiteralReader(text, {}, "<dim>")
    reader.symbols, reader.free_symbols = dict(symbols or {}), True
    result = reader.dim()
    reader.end_of_line()
    return result


class LiteralReader(Reader):
    """Reads everything below the level of statements. ``arrays`` holds the data that the text names by hash."""

    def __init__(self, text: str, arrays: Mapping[str, np.ndarray], name: str) -> None:
        super().__init__(text, name)
        self.arrays = arrays
        self.symbols: dict[str, Dim] = {}
        self.free_symbols = False

    def dim(self) -> Dim:
        total = self.term()
        while self.peek().text in ("+", "-"):
            total = total + self.term() if self.take().text == "+" else total - self.term()
        return total

    def term(self) -> Dim:
        result = self.factor()
        while self.peek().text in ("*", "//", "%"):
            operator = self.take()
            right = self.factor()
            if operator.text != "*" and isinstance(right, int) and right == 0:
                raise self.error("division of a dim by zero", operator)
            result = result * right if operator.text == "*" else result // right if operator.text == "//" else result % right
        return result

    def factor(self) -> Dim:
        token = self.take()
        if token.text == "-":
            return self.factor() * -1
        if token.text == "(":
            inner = self.dim()
            self.expect(")")
            return inner
        if token.kind == "number" and token.text.isdigit():
            return int(token.text)
        if token.text in ("min", "max") and token.kind == "word":
            self.expect("(")
            left = self.dim()
            self.expect(",")
            right = self.dim()
            self.expect(")")
            return dims.OPERATIONS[token.text](left, right)
        if token.kind == "symbol" or (token.kind == "word" and token.text not in dims.RESERVED):
            name = symbol_name(token.text)
            if name not in self.symbols:
                if not self.free_symbols:
                    raise self.error(f"the symbol {token.text} is not declared: add a line 'symbol {token.text}: 0..'", token)
                self.symbols[name] = dims.symbol(name)
            return self.symbols[name]
        raise self.error(f"expected a dim, found {shown(token)}", token)

    def any_type(self) -> Type:
        if self.accept("("):
            return TupleType(tuple(self.separated(")", self.any_type)[0]))
        dtype = self.kind("word", "a type")
        if dtype.text not in DTYPES:
            raise self.error(f"expected a type, found {shown(dtype)}; dtypes are {', '.join(DTYPES)}", dtype)
        self.expect("[")
        shape = tuple(self.separated("]", self.dim)[0])
        if self.peek().kind == "sigil" and self.peek().text[0] == "@":
            return TensorType(shape, dtype.text, self.take().text[1:])
        return TensorType(shape, dtype.text)

    def tensor_type(self) -> TensorType:
        start = self.peek()
        type_ = self.any_type()
        if not isinstance(type_, TensorType) or not type_.is_static:
            raise self.error(f"expected the type of an array, not {type_}", start)
        return type_

    def number(self) -> float | int | bool:
        """A literal element of an array."""
        value = self.attribute()
        if not isinstance(value, (int, float)):
            raise self.error(f"expected a number, not {value!r}", self.peek(-1))
        return value

    def array(self, type_: TensorType) -> np.ndarray:
        token = self.peek()
        if token.kind == "hash":
            self.take()
            data = self.arrays.get(token.text[1:])
            if data is None:
                raise self.error("no data for this array: the .npz file beside the text lacks it", token)
            if data.shape != type_.static_shape() or str(data.dtype) != type_.dtype:
                raise self.error(f"the data of this array is {data.dtype}{list(data.shape)}, not {type_}", token)
            return data
        self.expect("(")
        values = self.separated(")", self.number)[0]
        if len(values) != type_.size:
            raise self.error(f"{type_} has {type_.size} elements, not {len(values)}", token)
        return np.array(values, type_.dtype).reshape(type_.static_shape())

    def attribute(self) -> Any:
        token = self.peek()
        if token.kind == "string":
            return self.string(self.take())
        if token.kind == "word" and token.text in ("true", "false", "none"):
            return {"true": True, "false": False, "none": None}[self.take().text]
        if token.text == "(":
            start = self.at
            items, comma = self.tuple_items()
            if len(items) != 1 or comma:
                return tuple(items)
            self.at = start  # a dim in brackets, not a tuple
        sign = 1 if token.text != "-" else 0
        literal = self.peek(1 - sign)
        if (literal.kind == "number" and not literal.text.isdigit()) or (literal.kind == "word" and literal.text in ("inf", "nan")):
            self.at += 2 - sign
            return float(literal.text) if sign else -float(literal.text)
        return self.dim()

    def tuple_items(self) -> tuple[list[Any], bool]:
        self.expect("(")
        return self.separated(")", self.attribute)

    def attributes(self, cls: type[Attributes], op: str) -> Attributes:
        given: dict[str, Any] = {}
        start = self.peek()
        if self.accept("{"):
            known = [f.name for f in fields(cast(Any, cls))]

            def item() -> None:
                token = self.kind("word", "the name of an attribute")
                if token.text not in known:
                    raise self.error(f"{op} has no attribute {token.text!r}; it has: {', '.join(known) or 'none'}", token)
                self.expect("=")
                given[token.text] = self.attribute()

            self.separated("}", item)
        try:
            return cls(**given)
        except TypeError as error:
            raise self.error(f"{op}: {error}", start) from error


def symbol_name(text: str) -> str:
    if not text.startswith("`"):
        return text
    return re.sub(r"\\(.)", lambda m: "\n" if m.group(1) == "n" else m.group(1), text[1:-1])
