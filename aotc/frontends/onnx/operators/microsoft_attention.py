"""Attention of the domain com.microsoft: fused query, key and value projections, masks in all their forms, rotary embeddings."""

from __future__ import annotations

import math

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr


def heads_apart(node: Node, x: Expr, heads: int) -> Expr:
    """[B, S, N * H] as [B, N, S, H]."""
    batch, length, width = node.shape(x)
    if not isinstance(width, int) or width % heads:
        node.invalid(f"the width {width} of {node.type(x)} does not divide into {heads} heads")
    split = node.call(ops.reshape, x, shape=(batch, length, heads, width // heads))
    return node.call(ops.transpose, split, axes=(0, 2, 1, 3))


def heads_together(node: Node, x: Expr) -> Expr:
    """[B, N, S, H] as [B, S, N * H]."""
    batch, heads, length, size = node.shape(x)
    return node.call(ops.reshape, node.call(ops.transpose, x, axes=(0, 2, 1, 3)), shape=(batch, length, heads * size))


def attend(node: Node, q: Expr, k: Expr, v: Expr, bias: Expr | None, scale: float, cap: float = 0.0) -> Expr:
    """softmax(q k' * scale + bias) v over [..., S, H] and [..., T, H]; ``cap``, if any, bounds the scores by a tanh."""
    rank, scale = node.rank(q), scale or 1 / math.sqrt(_size(node, q))
    scores = node.call(ops.matmul, q, node.call(ops.transpose, k, axes=(*range(rank - 2), rank - 1, rank - 2)))
    scores = node.call(ops.multiply, scores, node.constant(scale, node.dtype(q)))
    if cap:
        limit = node.constant(cap, node.dtype(q))
        scores = node.call(ops.multiply, node.call(ops.tanh, node.call(ops.divide, scores, limit)), limit)
    if bias is not None:
        scores = node.call(ops.add, scores, bias)
    return node.call(ops.matmul, node.call(ops.softmax, scores, axis=rank - 1), v)


def _size(node: Node, x: Expr) -> int:
    size = node.shape(x)[-1]
    if not isinstance(size, int):
        node.unsupported(f"the size of the heads of {node.type(x)} must be known when the model is built")
    return size


def _masked(node: Node, kept: Expr, dtype: str, value: float) -> Expr:
    """0 where ``kept`` (bool), else ``value``."""
    return node.call(ops.where, kept, node.constant(0, dtype), node.constant(value, dtype))


def _row(node: Node, count: Dim, shape: tuple[Dim, ...]) -> Expr:
    return node.call(ops.reshape, node.call(ops.arange, start=0, step=1, count=count, dtype="int32"), shape=shape)


def causal(node: Node, length: Dim, total: Dim, dtype: str, window: int = 0) -> Expr:
    """[S, T]: what comes after a token, whose place is ``total - length`` further, is hidden; so is what lies ``window`` or
    more before it, where there is one."""
    rows = node.call(ops.add, _row(node, length, (length, 1)), dims_value(node, total - length))
    columns = _row(node, total, (1, total))
    kept: Expr = node.call(ops.less_equal, columns, rows)
    if window > 0:
        first = node.call(ops.subtract, rows, node.constant(window, "int32"))
        kept = node.call(ops.logical_and, kept, node.call(ops.greater, columns, first))
    return _masked(node, kept, dtype, -math.inf)


def dims_value(node: Node, dim: Dim) -> Expr:
    if isinstance(dim, int):
        return node.constant(dim, "int32")
    return node.call(ops.cast, node.call(ops.dims, values=(dim,), scalar=True), dtype="int32")


def mask_bias(node: Node, mask: Expr | None, length: Dim, total: Dim, dtype: str) -> Expr | None:
    """A mask of the operator Attention, or a key padding mask, as what is added to scores [B, N, S, T].

    int32 of [B, T], [B, S, T] or [B, 1, M, M]: 1 for what may be seen; [B]: lengths of the keys; [2B]: their ends, then starts.
    """
    if mask is None:
        return None
    value, rank, shape = node.number("mask_filter_value", -10000.0), node.rank(mask), node.shape(mask)
    if rank == 1:
        return _masked(node, _between(node, mask, total), dtype, value)
    if rank == 2:
        mask = node.call(ops.reshape, mask, shape=(shape[0], 1, 1, shape[1]))
    elif rank == 3:
        mask = node.call(ops.reshape, mask, shape=(shape[0], 1, *shape[1:]))
    elif rank == 4:
        begins, ends = (0, 0, total - length, 0), (shape[0], shape[1], total, total)
        mask = node.call(ops.slice_, mask, begins=begins, ends=ends, steps=(1, 1, 1, 1))
    else:
        node.invalid(f"a mask has one to four axes, not {node.type(mask)}")
    return _masked(node, node.call(ops.not_equal, mask, node.constant(0, node.dtype(mask))), dtype, value)


def _between(node: Node, mask: Expr, total: Dim) -> Expr:
    (count,) = node.shape(mask)
    batch = node.shape(node.input(0))[0]
    column = _row(node, total, (1, 1, 1, total))
    if count == batch:
        return node.call(ops.less, column, node.call(ops.reshape, mask, shape=(batch, 1, 1, 1)))
    if count != 2 * batch:
        node.unsupported(f"a mask {node.type(mask)} for a batch of {batch}: give one that has the shape [batch, keys]")
    ends = node.call(ops.slice_, mask, begins=(0,), ends=(batch,), steps=(1,))
    starts = node.call(ops.slice_, mask, begins=(batch,), ends=(2 * batch,), steps=(1,))
    ends, starts = (node.call(ops.reshape, each, shape=(batch, 1, 1, 1)) for each in (ends, starts))
    return node.call(ops.logical_and, node.call(ops.less, column, ends), node.call(ops.greater_equal, column, starts))


def _sum(node: Node, *parts: Expr | None) -> Expr | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    total = given[0]
    for part in given[1:]:
        total = node.call(ops.add, total, part)
    return total


def split_last(node: Node, x: Expr, sizes: tuple[int, ...]) -> list[Expr]:
    """Pieces of the last axis."""
    shape, begin = node.shape(x), 0
    parts: list[Expr] = []
    for size in sizes:
        begins, ends = (*[0] * (len(shape) - 1), begin), (*shape[:-1], begin + size)
        parts.append(node.call(ops.slice_, x, begins=begins, ends=ends, steps=(1,) * len(shape)))
        begin += size
    return parts


def self_attention(node: Node, projected: Expr, mask: Expr | None, past: Expr | None, extra: Expr | None) -> Results:
    """Attention over query, key and value side by side, [B, S, 3 * D], and the keys and values so far [2, B, N, P, H]."""
    if node.flag("do_rotary"):
        node.unsupported("do_rotary is on; export the model with rotary embeddings of its own")
    heads, width = node.integer("num_heads"), node.shape(projected)[-1]
    if not isinstance(width, int):
        node.invalid(f"the width of {node.type(projected)} must be known")
    sizes = node.integers("qkv_hidden_sizes", ()) or (width // 3,) * 3
    q, k, v = (heads_apart(node, part, heads) for part in split_last(node, projected, sizes))
    present = None
    if past is not None:
        k, v = (_appended(node, _half(node, past, i), each) for i, each in enumerate((k, v)))
    if node.wants(1):
        parts = [node.call(ops.reshape, each, shape=(1, *node.shape(each))) for each in (k, v)]
        present = node.call(ops.concat, *parts, axis=0)
    length, total, dtype = node.shape(q)[2], node.shape(k)[2], node.dtype(q)
    hidden = causal(node, length, total, dtype) if node.flag("unidirectional") else None
    bias = _sum(node, mask_bias(node, mask, length, total, dtype), extra, hidden)
    y = attend(node, q, k, v, bias, node.number("scale", 0.0))
    return [heads_together(node, y), present]


def _half(node: Node, past: Expr, index: int) -> Expr:
    shape = node.shape(past)
    begins, ends = (index, *[0] * (len(shape) - 1)), (index + 1, *shape[1:])
    part = node.call(ops.slice_, past, begins=begins, ends=ends, steps=(1,) * len(shape))
    return node.call(ops.reshape, part, shape=shape[1:])


def _appended(node: Node, past: Expr | None, new: Expr) -> Expr:
    return new if past is None else node.call(ops.concat, past, new, axis=2)


def _attention(node: Node) -> Results:
    x, weight, bias = node.input(0), node.input(1), node.optional(2)
    projected = node.call(ops.matmul, x, weight)
    if bias is not None:
        projected = node.call(ops.add, projected, bias)
    return self_attention(node, projected, node.optional(3), node.optional(4), node.optional(5))


def _multi_head_attention(node: Node) -> Results:
    heads = node.integer("num_heads")
    q, k, v = _query_key_value(node, heads)
    k, v = _appended(node, node.optional(6), k), _appended(node, node.optional(7), v)
    length, total, dtype = node.shape(q)[2], node.shape(k)[2], node.dtype(q)
    hidden = causal(node, length, total, dtype) if node.flag("unidirectional") else None
    bias = _sum(node, mask_bias(node, node.optional(4), length, total, dtype), node.optional(5), hidden)
    return [heads_together(node, attend(node, q, k, v, bias, node.number("scale", 0.0))), k, v]


def _query_key_value(node: Node, heads: int) -> tuple[Expr, Expr, Expr]:
    """As [B, N, S, H] each: apart, query with packed keys and values [B, T, N, 2, H], or all packed [B, S, N, 3, H]."""
    query, key, value, bias = node.input(0), node.optional(1), node.optional(2), node.optional(3)
    if node.rank(query) == 5:
        parts = [_packed(node, query, i) for i in range(3)]
    elif key is None:
        node.invalid("the key is missing")
    elif node.rank(key) == 5:
        parts = [query, _packed(node, key, 0), _packed(node, key, 1)]
    elif value is None:
        node.invalid("the value is missing")
    else:
        parts = [query, key, value]
    if bias is not None:
        sizes = [_width(node, part, heads) for part in parts]
        pieces = split_last(node, bias, tuple(sizes))
        parts = [_biased(node, part, piece, heads) for part, piece in zip(parts, pieces, strict=True)]
    q, k, v = (part if node.rank(part) == 4 else heads_apart(node, part, heads) for part in parts)
    return q, k, v


def _width(node: Node, x: Expr, heads: int) -> int:
    size = _size(node, x)
    return size * heads if node.rank(x) == 4 else size


def _biased(node: Node, x: Expr, bias: Expr, heads: int) -> Expr:
    if node.rank(x) == 4:
        bias = node.call(ops.reshape, bias, shape=(heads, 1, _size(node, x)))
    return node.call(ops.add, x, bias)


def _packed(node: Node, x: Expr, index: int) -> Expr:
    batch, length, heads, _, size = node.shape(x)
    begins, ends = (0, 0, 0, index, 0), (batch, length, heads, index + 1, size)
    part = node.call(ops.slice_, x, begins=begins, ends=ends, steps=(1,) * 5)
    return node.call(ops.transpose, node.call(ops.reshape, part, shape=(batch, length, heads, size)), axes=(0, 2, 1, 3))


def _rotary_embedding(node: Node) -> Results:
    """x[B, S, N * H] or [B, N, S, H]; positions [B, S], or [1] where they count from there."""
    x, positions, tables = node.input(0), node.input(1), (node.input(2), node.input(3))
    flat = node.rank(x) == 3
    if flat:
        width, half = _size(node, x), _size(node, tables[0])
        heads = node.integer("num_heads", 0) or width // (2 * half)
        x = heads_apart(node, x, heads)
    turned = node.integer("rotary_embedding_dim", 0) or _size(node, x)
    y = rotated(node, x, positions, tables, turned, node.flag("interleaved"))
    return heads_together(node, y) if flat else y


def rotated(node: Node, x: Expr, positions: Expr, tables: tuple[Expr, Expr], turned: int, interleaved: bool) -> Expr:
    """x[B, N, S, H] turned by the angles of its positions, in the first ``turned`` of H."""
    size, length = _size(node, x), node.shape(x)[2]
    if (node.shape(positions) == (1,) and node.shape(x)[0] != 1) or node.rank(positions) == 1:
        positions = node.call(ops.add, positions, _counted(node, length, node.dtype(positions)))
    rows = node.shape(positions)
    shape = (*((1,) if len(rows) == 1 else rows[:1]), 1, length, turned // 2)
    cos, sin = (node.call(ops.reshape, node.call(ops.gather, table, positions, axis=0), shape=shape) for table in tables)
    parts: list[Expr]
    head, *rest = [x] if turned == size else split_last(node, x, (turned, size - turned))
    if interleaved:
        pairs = node.call(ops.reshape, head, shape=(*node.shape(head)[:3], turned // 2, 2))
        half = (*node.shape(head)[:3], turned // 2)
        parts = [node.call(ops.reshape, part, shape=half) for part in split_last(node, pairs, (1, 1))]
    else:
        parts = split_last(node, head, (turned // 2,) * 2)
    first, second = parts
    real = node.call(ops.subtract, node.call(ops.multiply, first, cos), node.call(ops.multiply, second, sin))
    other = node.call(ops.add, node.call(ops.multiply, second, cos), node.call(ops.multiply, first, sin))
    if interleaved:
        pairs = node.call(ops.concat, *(node.call(ops.reshape, each, shape=(*half, 1)) for each in (real, other)), axis=4)
        head = node.call(ops.reshape, pairs, shape=node.shape(head))
    else:
        head = node.call(ops.concat, real, other, axis=3)
    return node.call(ops.concat, head, *rest, axis=3) if rest else head


def _counted(node: Node, count: Dim, dtype: str) -> Expr:
    return node.call(ops.arange, start=0, step=1, count=count, dtype=dtype)


def _group_query_attention(node: Node) -> Results:
    """Some queries share each key and value. The keys and values so far hold the past alone, without room for what comes, and all
    sequences of a batch are of one length: a run fails where they are not."""
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    if node.optional(11) is not None or node.integer("smooth_softmax", 0) == 1:
        node.unsupported("it has a sink of attention; export the model without")
    q, k, v = _grouped(node, heads, groups)
    past_keys, past_values = node.optional(3), node.optional(4)
    length = node.shape(q)[2]
    before: Dim = 0 if past_keys is None else node.shape(past_keys)[2]
    total = before + length
    q = _of_one_length(node, q, node.input(5), total)
    if node.flag("do_rotary"):
        tables = node.input(7), node.input(8)
        positions = node.optional(9)
        if positions is None:
            positions = node.call(ops.add, _row(node, length, (1, length)), dims_value(node, before))
        turned, interleaved = 2 * _size(node, tables[0]), node.flag("rotary_interleaved")
        q, k = (rotated(node, each, positions, tables, turned, interleaved) for each in (q, k))
    k, v = _appended(node, past_keys, k), _appended(node, past_values, v)
    bias = _sum(node, causal(node, length, total, node.dtype(q), node.integer("local_window_size", -1)), node.optional(10))
    batch, size = node.shape(q)[0], _size(node, q)
    together = node.call(ops.reshape, q, shape=(batch, groups, heads // groups, length, size))
    apart = [node.call(ops.reshape, each, shape=(*node.shape(each)[:2], 1, *node.shape(each)[2:])) for each in (k, v)]
    if bias is not None and node.rank(bias) == 4:
        split = (groups, heads // groups) if node.shape(bias)[1] == heads and heads != 1 else (1, 1)
        bias = node.call(ops.reshape, bias, shape=(node.shape(bias)[0], *split, *node.shape(bias)[2:]))
    y = attend(node, together, apart[0], apart[1], bias, node.number("scale", 0.0), node.number("softcap", 0.0))
    return [heads_together(node, node.call(ops.reshape, y, shape=(batch, heads, length, node.shape(y)[-1]))), k, v]


def _grouped(node: Node, heads: int, groups: int) -> tuple[Expr, Expr, Expr]:
    """Queries, keys and values by heads; they come apart, or side by side in the first input."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    if groups < 1 or heads % groups:
        node.invalid(f"{heads} heads do not divide into {groups} groups")
    if key is None or value is None:
        width = _size(node, query) // (heads + 2 * groups)
        query, key, value = split_last(node, query, (heads * width, groups * width, groups * width))
    return heads_apart(node, query, heads), heads_apart(node, key, groups), heads_apart(node, value, groups)


def _of_one_length(node: Node, x: Expr, lengths: Expr, total: Dim) -> Expr:
    """``x``, with a check when it runs that all sequences have ``total`` tokens; ``lengths`` are one less."""
    ends = [node.call(operator, lengths, axes=tuple(range(node.rank(lengths))), keepdims=False) for operator in (ops.min_, ops.max_)]
    counts = [node.call(ops.add, node.call(ops.cast, end, dtype="int64"), node.constant(1, "int64")) for end in ends]
    found = [node.measured(count, "the length of a sequence", [(0, None)])[0] for count in counts]
    return node.call(ops.check_dims, x, pairs=tuple((each, total) for each in found))


HANDLERS: dict[str, Handler] = {
    "GroupQueryAttention": _group_query_attention,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": _rotary_embedding,
}
