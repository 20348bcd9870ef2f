"""Einsum as transposes, products, matrix products and sums, two operands at a time from the left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr

Labels = tuple[str, ...]


@dataclass(frozen=True)
class _Operand:
    expr: Expr
    labels: Labels


def _einsum(node: Node) -> Results:
    operands = node.given()
    terms, output = _parsed(node, node.text("equation").replace(" ", ""), operands)
    left = [_diagonal(node, _Operand(expr, labels)) for expr, labels in zip(operands, terms, strict=True)]
    current = left[0]
    for i, operand in enumerate(left[1:], start=1):
        later = {label for rest in left[i + 1 :] for label in rest.labels} | set(output)
        current = _product(
            node, _summed(node, current, set(operand.labels) | later), _summed(node, operand, set(current.labels) | later), later
        )
    return _arranged(node, _summed(node, current, set(output)), output).expr


def _parsed(node: Node, equation: str, operands: Sequence[Expr]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; an ellipsis becomes labels "...0", "...1" counted from its end."""
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(operands):
        node.invalid(f"the equation {equation!r} has {len(texts)} terms for {len(operands)} inputs")
    terms = [_labels(node, text, node.rank(expr), equation) for text, expr in zip(texts, operands, strict=True)]
    everything = [label for term in terms for label in term]
    dots = sorted({label for label in everything if label.startswith("...")}, reverse=True, key=lambda label: int(label[3:]))
    if not arrow:
        once = sorted(label for label in set(everything) if everything.count(label) == 1 and not label.startswith("..."))
        return terms, (*dots, *once)
    if "..." in right:
        before, _, after = right.partition("...")
        output: Labels = (*before, *dots, *after)
    else:
        output = tuple(right)
    if len(set(output)) != len(output) or not set(output) <= set(everything):
        node.invalid(f"the result of the equation {equation!r} must name labels of the inputs, each once")
    return terms, output


def _labels(node: Node, text: str, rank: int, equation: str) -> Labels:
    before, dots, after = text.partition("...")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots) or not all(c.isalpha() for c in before + after):
        node.invalid(f"the term {text!r} of the equation {equation!r} does not fit an input of rank {rank}")
    return (*before, *(f"...{i}" for i in reversed(range(hidden))), *after)


def _sizes(node: Node, operand: _Operand) -> dict[str, Dim]:
    return dict(zip(operand.labels, node.shape(operand.expr), strict=True))


def _diagonal(node: Node, operand: _Operand) -> _Operand:
    """A label that stands twice keeps the diagonal: all else is multiplied by zero and summed away."""
    for label in dict.fromkeys(operand.labels):
        while operand.labels.count(label) > 1:
            first = operand.labels.index(label)
            second = operand.labels.index(label, first + 1)
            shape = node.shape(operand.expr)
            positions = [
                node.call(
                    ops.reshape,
                    node.call(ops.arange, start=0, step=1, count=shape[axis], dtype="int64"),
                    shape=tuple(shape[axis] if i == axis else 1 for i in range(len(shape))),
                )
                for axis in (first, second)
            ]
            mask = node.call(ops.cast, node.call(ops.equal, *positions), dtype=node.dtype(operand.expr))
            masked = node.call(ops.multiply, operand.expr, mask)
            labels = operand.labels[:second] + operand.labels[second + 1 :]
            operand = _Operand(node.call(ops.sum_, masked, axes=(second,), keepdims=False), labels)
    return operand


def _summed(node: Node, operand: _Operand, kept: set[str]) -> _Operand:
    axes = tuple(axis for axis, label in enumerate(operand.labels) if label not in kept)
    if not axes:
        return operand
    labels = tuple(label for label in operand.labels if label in kept)
    return _Operand(node.call(ops.sum_, operand.expr, axes=axes, keepdims=False), labels)


def _arranged(node: Node, operand: _Operand, labels: Iterable[str]) -> _Operand:
    order = tuple(labels)
    axes = tuple(operand.labels.index(label) for label in order)
    if axes == tuple(range(len(axes))):
        return operand
    return _Operand(node.call(ops.transpose, operand.expr, axes=axes), order)


def _product(node: Node, a: _Operand, b: _Operand, later: set[str]) -> _Operand:
    """``a`` times ``b``, summed over the labels that both have and nothing needs later."""
    shared = [label for label in a.labels if label in b.labels]
    batch, inner = [x for x in shared if x in later], [x for x in shared if x not in later]
    rows, columns = [x for x in a.labels if x not in shared], [x for x in b.labels if x not in shared]
    size_a, size_b = _sizes(node, a), _sizes(node, b)
    left, right = _arranged(node, a, [*batch, *rows, *inner]), _arranged(node, b, [*batch, *inner, *columns])
    shape_a, shape_b = [size_a[x] for x in batch], [size_b[x] for x in batch]
    row_sizes, column_sizes = [size_a[x] for x in rows], [size_b[x] for x in columns]
    if inner:
        depth = product(size_a[x] for x in inner)
        x = _reshaped(node, left.expr, (*shape_a, product(row_sizes), depth))
        y = _reshaped(node, right.expr, (*shape_b, depth, product(column_sizes)))
        z: Expr = node.call(ops.matmul, x, y)
    else:
        x = _reshaped(node, left.expr, (*shape_a, *row_sizes, *[1] * len(columns)))
        y = _reshaped(node, right.expr, (*shape_b, *[1] * len(rows), *column_sizes))
        z = node.call(ops.multiply, x, y)
    whole = (*node.shape(z)[: len(batch)], *row_sizes, *column_sizes)
    return _Operand(_reshaped(node, z, whole), (*batch, *rows, *columns))


def _reshaped(node: Node, x: Expr, shape: tuple[Dim, ...]) -> Expr:
    return x if node.shape(x) == shape else node.call(ops.reshape, x, shape=shape)


HANDLERS: dict[str, Handler] = {"Einsum": _einsum}
