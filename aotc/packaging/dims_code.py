"""Dims as the bytes of a plan have them: postfix code for a stack machine (csrc/dims.c)."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.errors import BuildError
from aotc.ir import dims as ir_dims
from aotc.ir.dims import Dim

CONSTANT, SYMBOL, ADD, MULTIPLY, FLOORDIV, MODULO, MINIMUM, MAXIMUM = range(8)
_OPERATIONS = {"floordiv": FLOORDIV, "mod": MODULO, "min": MINIMUM, "max": MAXIMUM}

Code = tuple[tuple[int, int], ...]
"""(operation, value) pairs."""


def postfix(dim: Dim, symbols: dict[str, int]) -> Code:
    """``dim`` as (operation, value) pairs for a stack machine. ``symbols``: the number of each symbol by name.
    Raises BuildError for a symbol that is not there, or a value that needs more than 64 bits."""
    if isinstance(dim, int):
        if not -(2**63) <= dim < 2**63:
            raise BuildError(f"the dim {dim} does not fit in 64 bits; the model's shapes are too large")
        return ((CONSTANT, dim),)
    code: list[tuple[int, int]] = []
    for position, (monomial, coefficient) in enumerate(dim.terms):
        factors: list[Code] = [_atom(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(postfix(coefficient, symbols))
        for number, factor in enumerate(factors):
            code.extend(factor)
            if number:
                code.append((MULTIPLY, 0))
        if position:
            code.append((ADD, 0))
    return tuple(code)


def _atom(atom: ir_dims.Atom, symbols: dict[str, int]) -> Code:
    if isinstance(atom, ir_dims.Symbol):
        if atom.name not in symbols:
            raise BuildError(f"the dim {atom.name!r} is not a dim of any input, nor set by a step; sizes must follow from those")
        return ((SYMBOL, symbols[atom.name]),)
    return (*postfix(atom.left, symbols), *postfix(atom.right, symbols), (_OPERATIONS[atom.kind], 0))


def depth(code: Code) -> int:
    """The places that the stack needs."""
    used = deepest = 0
    for operation, _ in code:
        used += 1 if operation in (CONSTANT, SYMBOL) else -1
        deepest = max(deepest, used)
    return deepest


def from_postfix(code: Sequence[tuple[int, int]], symbols: Sequence[Dim]) -> Dim:
    """The dim that ``postfix`` wrote. ``symbols``: by their numbers."""
    stack: list[Dim] = []
    for operation, value in code:
        if operation == CONSTANT:
            stack.append(value)
        elif operation == SYMBOL:
            stack.append(symbols[value])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_apply(operation, left, right))
    return stack[0]


def _apply(operation: int, left: Dim, right: Dim) -> Dim:
    if operation == ADD:
        return left + right
    if operation == MULTIPLY:
        return left * right
    kind = next(kind for kind, number in _OPERATIONS.items() if number == operation)
    return ir_dims.OPERATIONS[kind](left, right)
