"""TfIdfVectorizer on numbers: how often each of a pool's n-grams occurs, by comparing all places with the whole pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.dims import Dim, maximum
from aotc.ir.expr import Expr


def _tf_idf(node: Node) -> Results:
    """Rows of counts, one column for each index; the mode says what a count is worth."""
    x = node.input(0)
    if node.has("pool_strings"):
        node.unsupported("it works on strings; aotc takes numbers")
    if node.rank(x) not in (1, 2):
        node.invalid(f"takes one row or rows of numbers, not {node.type(x)}")
    columns = node.integers("ngram_indexes")
    if not columns or min(columns) < 0 or max(columns) > 1 << 24:
        node.invalid(f"ngram_indexes must be numbers of at least 0, not {list(columns)[:8]}")
    width, rows = max(columns) + 1, x
    if node.rank(x) == 1:
        rows = node.call(ops.reshape, x, shape=(1, *node.shape(x)))
    total: Expr = node.call(ops.full, shape=(node.shape(rows)[0], width), value=0.0, dtype="float32")
    first = 0
    for size, grams in enumerate(_pools(node), 1):
        places = columns[first : first + len(grams)]
        first += len(grams)
        if len(places) < len(grams):
            node.invalid(f"ngram_indexes has {len(columns)} entries, fewer than the pool has n-grams")
        if grams.size and node.integer("min_gram_length") <= size <= node.integer("max_gram_length"):
            total = node.call(ops.add, total, _placed(node, _counts(node, rows, grams), places, width))
    weighted = _weighted(node, total, columns, width)
    return weighted if node.rank(x) == 2 else node.call(ops.reshape, weighted, shape=(width,))


def _pools(node: Node) -> list[np.ndarray]:
    """The n-grams [count, n] for n = 1, 2, ..."""
    pool, starts = np.asarray(node.integers("pool_int64s"), np.int64), node.integers("ngram_counts")
    if list(starts) != sorted(starts) or any(not 0 <= start <= pool.size for start in starts):
        node.invalid(f"ngram_counts must be rising places in a pool of {pool.size} numbers, not {list(starts)}")
    parts = [pool[start:end] for start, end in zip(starts, (*starts[1:], pool.size), strict=True)]
    if any(part.size % size for size, part in enumerate(parts, 1)):
        node.invalid("the pool's parts, as ngram_counts cuts it, are no whole n-grams")
    return [part.reshape(-1, size) for size, part in enumerate(parts, 1)]


def _counts(node: Node, rows: Expr, grams: np.ndarray) -> Expr:
    """[rows, n-grams]: occurrences with 0 to max_skip_count items left out between neighbours. Single items count once."""
    size = grams.shape[1]
    skips = range(node.integer("max_skip_count") + 1) if size > 1 else range(1)
    batch, length = node.shape(rows)
    total: Expr | None = None
    for skip in skips:
        count = maximum(length - (size - 1) * (skip + 1), 0)
        if count == 0:
            break
        found = _found(node, rows, grams, batch, count, skip + 1)
        occurrences = node.call(ops.sum_, node.call(ops.cast, found, dtype="float32"), axes=(1,))
        total = occurrences if total is None else node.call(ops.add, total, occurrences)
    return node.call(ops.full, shape=(batch, len(grams)), value=0.0, dtype="float32") if total is None else total


def _found(node: Node, rows: Expr, grams: np.ndarray, batch: Dim, count: Dim, distance: int) -> Expr:
    """Whether each n-gram begins at each place: bool[rows, places, n-grams]."""
    result: Expr | None = None
    for i, items in enumerate(grams.T):
        begin = i * distance
        part = node.call(ops.slice_, rows, begins=(0, begin), ends=(batch, count + begin), steps=(1, 1))
        column = node.call(ops.reshape, node.call(ops.cast, part, dtype="int64"), shape=(batch, count, 1))
        same = node.call(ops.equal, column, node.constant(items, "int64"))
        result = same if result is None else node.call(ops.logical_and, result, same)
    assert result is not None
    return result


def _placed(node: Node, counts: Expr, columns: Sequence[int], width: int) -> Expr:
    """Counts in the columns that their n-grams have; those of one column are added."""
    if sorted(columns) == list(range(width)):
        return node.call(ops.gather, counts, node.constant(np.argsort(columns), "int64"), axis=1)
    places = np.zeros((len(columns), width), np.float32)
    places[np.arange(len(columns)), columns] = 1
    return node.call(ops.matmul, counts, node.constant(places, "float32"))


def _weighted(node: Node, counts: Expr, columns: Sequence[int], width: int) -> Expr:
    """``weights`` belong to the n-grams in the pool's order."""
    mode, weights = node.text("mode"), node.numbers("weights", ())
    if mode not in ("TF", "IDF", "TFIDF") or (weights and mode != "TF" and len(weights) != len(columns)):
        node.invalid(
            f"mode must be TF, IDF or TFIDF, with a weight for each of {len(columns)} n-grams if any, not {mode!r} and {len(weights)}"
        )
    if mode == "IDF":
        counts = node.call(ops.cast, node.call(ops.greater, counts, node.constant(0, "float32")), dtype="float32")
    if mode == "TF" or not weights:
        return counts
    by_column = np.zeros(width)
    by_column[list(columns)] = weights
    return node.call(ops.multiply, counts, node.constant(by_column, "float32"))


HANDLERS: dict[str, Handler] = {"TfIdfVectorizer": _tf_idf}
