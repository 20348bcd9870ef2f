"""Text to tokens, and a reader over them whose errors name the line and the column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aotc.errors import InvalidModel


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int
    column: int


_TOKENS = re.compile(
    r"""(?P<space>[ \t\r]+)
      | (?P<newline>\n)
      | (?P<hash>\#[0-9a-f]{32}\b)
      | (?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<symbol>`(?:[^`\\\n]|\\.)*`)
      | (?P<sigil>[%$@](?:"(?:[^"\\\n]|\\.)*"|[\w./~]+))
      | (?P<number>\d+(?:\.(?!\.)\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>//|\.\.|[(){}\[\]:,=*+%@.-])""",
    re.VERBOSE | re.ASCII,
)
T = TypeVar("T")


class Reader:
    """Tokens of a text, taken one after another."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.at = 0
        self.tokens = self.tokenise(text)

    def tokenise(self, text: str) -> list[Token]:
        tokens, line, start, at = [], 1, 0, 0
        while at < len(text):
            match = _TOKENS.match(text, at)
            if match is None:
                raise self.error(f"cannot read {text[at]!r}", Token("", "", line, at - start + 1))
            kind = str(match.lastgroup)
            if kind != "space":
                tokens.append(Token(kind, match.group(), line, at - start + 1))
            at = match.end()
            if kind == "newline":
                line, start = line + 1, at
        return [*tokens, Token("newline", "\n", line, len(text) - start + 1)]

    def error(self, message: str, token: Token | None = None) -> InvalidModel:
        token = token or self.peek()
        shown = self.lines[token.line - 1] if 0 < token.line <= len(self.lines) else ""
        return InvalidModel(f"{self.name}:{token.line}:{token.column}: {message}\n  {shown}\n  {' ' * (token.column - 1)}^")

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.peek().text == text and self.peek().kind in ("word", "mark"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if self.peek().text != text:
            raise self.error(f"expected {text!r}, found {shown(self.peek())}")
        return self.take()

    def kind(self, kind: str, what: str) -> Token:
        if self.peek().kind != kind:
            raise self.error(f"expected {what}, found {shown(self.peek())}")
        return self.take()

    def skip_lines(self) -> None:
        while self.at < len(self.tokens) and self.peek().kind in ("newline", "comment"):
            self.at += 1

    def end_of_line(self) -> str:
        """Ends a statement; the comment that closes its line is the node's origin."""
        origin = ""
        if self.peek().kind == "comment":
            token = self.take()
            origin = token.text[1:].strip()
            if origin.startswith('"'):
                origin = self.string(Token("string", origin, token.line, token.column))
        if self.peek().kind != "newline":
            raise self.error(f"expected the end of the line, found {shown(self.peek())}")
        self.at += 1
        return origin

    def separated(self, close: str, item: Callable[[], T]) -> tuple[list[T], bool]:
        """Items up to ``close``, and whether a comma ended them."""
        items: list[T] = []
        comma = False
        while not self.accept(close):
            if items and not comma:
                raise self.error(f"expected ',' or {close!r}, found {shown(self.peek())}")
            items.append(item())
            comma = self.accept(",")
        return items, comma

    def string(self, token: Token | None = None) -> str:
        token = token or self.kind("string", "a quoted string")
        try:
            return str(json.loads(token.text))
        except ValueError as error:
            raise self.error(f"not a valid string: {error}", token) from error

    def sigil(self, mark: str, what: str) -> str:
        token = self.kind("sigil", what)
        if token.text[0] != mark:
            raise self.error(f"expected {what}, found {shown(token)}", token)
        return token.text

    def plain(self, text: str) -> str:
        return str(json.loads(text[1:])) if text[1:2] == '"' else text[1:]

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.kind("number", "an integer")
        if not token.text.isdigit():
            raise self.error(f"expected an integer, found {shown(token)}", token)
        return -int(token.text) if negative else int(token.text)


def shown(token: Token) -> str:
    return "the end of the line" if token.kind == "newline" else repr(token.text)
