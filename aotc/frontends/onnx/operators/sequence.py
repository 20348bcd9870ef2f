"""Sequences and optional values. Their length is known while importing: a sequence is a tuple of its items here, so that only
tensors are left of it. An optional value is what it holds, or an input that is left out."""

from __future__ import annotations

from collections.abc import Sequence

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.shape import require_equal, total_of
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr, Tuple

MOST = 1024  # items that a tensor is split into


def items_of(node: Node, expr: Expr) -> list[Expr]:
    """The items of a sequence."""
    if not isinstance(expr, Tuple):
        node.invalid(f"takes a sequence, not {expr.type}")
    return list(expr.fields)


def _sequence(node: Node, items: Sequence[Expr]) -> Expr:
    return Tuple(tuple(items), node.origin)


def _construct(node: Node) -> Results:
    return _sequence(node, node.given())


def _length(node: Node) -> Results:
    return node.constant(len(items_of(node, node.input(0))), "int64")


def _position(node: Node, index: int, count: int) -> int:
    """A known position in a sequence, from the front; it must be one of ``count``."""
    found = node.static_integers(index, "the position") or ()
    if len(found) != 1 or not -count <= found[0] < count:
        node.invalid(f"the position must be one number from {-count} to {count - 1}, not {list(found)}")
    return found[0] % count


def _at(node: Node) -> Results:
    """Of a position that a run tells, the items are laid side by side and one is gathered: they must be of one shape."""
    items = items_of(node, node.input(0))
    if node.is_known(1):
        return items[_position(node, 1, len(items))]
    stacked = _stacked(node, items, 0)
    return node.call(ops.gather, stacked, node.call(ops.reshape, node.input(1), shape=()), axis=0)


def _stacked(node: Node, items: Sequence[Expr], axis: int) -> Expr:
    """All items along a new axis."""
    if not items or any(item.type != items[0].type for item in items):
        types = ", ".join(str(item.type) for item in items) or "none"
        node.unsupported(f"items at a position known only at run time must be of one type and shape; they are {types}")
    shape = node.shape(items[0])
    rows = [node.call(ops.reshape, item, shape=(*shape[:axis], 1, *shape[axis:])) for item in items]
    return node.call(ops.concat, *rows, axis=axis)


def _insert(node: Node) -> Results:
    items, new = items_of(node, node.input(0)), node.input(1)
    if node.optional(2) is None:
        return _sequence(node, [*items, new])
    if not node.is_known(2):
        at = _computed(node, 2, len(items))
        return _gathered(node, [*items, new], [_where(node, i, at, len(items), -1) for i in range(len(items) + 1)])
    found = node.static_integers(2, "the position") or ()
    if len(found) != 1 or not -len(items) <= found[0] <= len(items):
        node.invalid(f"the position must be one number from {-len(items)} to {len(items)}, not {list(found)}")
    place = found[0] + len(items) if found[0] < 0 else found[0]
    return _sequence(node, [*items[:place], new, *items[place:]])


def _erase(node: Node) -> Results:
    items = items_of(node, node.input(0))
    if node.optional(1) is None:
        return _sequence(node, items[:-1])
    if not node.is_known(1):
        at = _computed(node, 1, len(items))
        return _gathered(node, items, [_where(node, i, at, i + 1, 1) for i in range(len(items) - 1)])
    place = _position(node, 1, len(items))
    return _sequence(node, items[:place] + items[place + 1 :])


def _computed(node: Node, index: int, count: int) -> Expr:
    """A position that a run tells, from the front, in a sequence of ``count`` items."""
    at = node.call(ops.cast, node.call(ops.reshape, node.input(index), shape=()), dtype="int64")
    negative = node.call(ops.less, at, node.constant(0, "int64"))
    return node.call(ops.where, negative, node.call(ops.add, at, node.constant(count, "int64")), at)


def _where(node: Node, i: int, at: Expr, equal: int, step: int) -> Expr:
    """i where it lies before the position ``at``, ``equal`` where it is that, i + step behind it."""
    place = node.constant(i, "int64")
    behind = node.call(ops.where, node.call(ops.equal, place, at), node.constant(equal, "int64"), node.constant(i + step, "int64"))
    return node.call(ops.where, node.call(ops.less, place, at), place, behind)


def _gathered(node: Node, items: Sequence[Expr], sources: Sequence[Expr]) -> Expr:
    """The items of the computed numbers ``sources``."""
    stacked = _stacked(node, items, 0)
    return _sequence(node, [node.call(ops.gather, stacked, source, axis=0) for source in sources])


def _split(node: Node) -> Results:
    """Into pieces of one length, of lengths one by one, or into slices without the axis."""
    x = node.input(0)
    axis = node.axis(node.integer("axis", 0), node.rank(x))
    total, split = node.shape(x)[axis], node.optional(1)
    if split is None or not node.rank(split):
        size = 1 if split is None else (node.static_integers(1, "the length of the pieces") or (1,))[0]
        if not isinstance(total, int) or size < 1:
            node.unsupported(f"axis {axis} of {node.type(x)} makes an unknown number of pieces; fix the input's shape")
        count = -(-total // size)
        sizes: Sequence[Dim] = [min(size, total - i * size) for i in range(min(count, MOST + 1))]
    else:
        sizes = node.dims(1, "the lengths of the pieces") or ()
        whole = total_of(sizes)
        if isinstance(whole, int) and isinstance(total, int) and whole != total:
            node.invalid(f"pieces of {list(sizes)} do not make up axis {axis} of {node.type(x)}")
        x = require_equal(node, x, whole, total, f"whether pieces of {list(sizes)} make up axis {axis} of {node.type(x)}")
    if len(sizes) > MOST:
        node.unsupported(f"axis {axis} of {node.type(x)} makes more than {MOST} pieces")
    pieces: list[Expr] = []
    begin: Dim = 0
    for length in sizes:
        pieces.append(_piece(node, x, axis, begin, length, split is not None or node.flag("keepdims", True)))
        begin = begin + length
    return _sequence(node, pieces)


def _piece(node: Node, x: Expr, axis: int, begin: Dim, size: Dim, keepdims: bool) -> Expr:
    shape = node.shape(x)
    begins = tuple(begin if i == axis else 0 for i in range(len(shape)))
    ends = tuple(begin + size if i == axis else dim for i, dim in enumerate(shape))
    piece = node.call(ops.slice_, x, begins=begins, ends=ends, steps=(1,) * len(shape))
    return piece if keepdims else node.call(ops.reshape, piece, shape=shape[:axis] + shape[axis + 1 :])


def _concat(node: Node) -> Results:
    items = items_of(node, node.input(0))
    if not items:
        node.invalid("there is nothing in the sequence")
    if node.flag("new_axis"):
        return _stacked(node, items, node.axis(node.integer("axis"), node.rank(items[0]) + 1))
    axis = node.axis(node.integer("axis"), node.rank(items[0]))
    return items[0] if len(items) == 1 else node.call(ops.concat, *items, axis=axis)


def _map(node: Node) -> Results:
    """The body once for each item; an input that is a tensor goes to all of them."""
    if not node.has("body"):
        node.invalid("the attribute 'body' is missing")
    count = len(items_of(node, node.input(0)))
    columns = [items_of(node, x) if isinstance(x, Tuple) else [x] * count for x in node.given()]
    if any(len(column) != count for column in columns):
        node.invalid(f"the sequences must be of one length, not {', '.join(str(len(column)) for column in columns)}")
    body = node.attributes["body"].g
    results = [node.graphs.inline(body, [column[i] for column in columns], f"{i}/") for i in range(count)]
    return [_sequence(node, [result[i] for result in results]) for i in range(len(body.output))]


def _optional(node: Node) -> Results:
    value = node.optional(0)
    if value is None:
        node.unsupported("an optional value without a value; leave the input out where it is read")
    return value


HANDLERS: dict[str, Handler] = {
    "SequenceEmpty": lambda node: _sequence(node, []),
    "SequenceConstruct": _construct,
    "SequenceLength": _length,
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "SequenceMap": _map,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": lambda node: node.constant(node.optional(0) is not None, "bool"),
}
