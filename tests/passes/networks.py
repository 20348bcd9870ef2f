"""Random small networks for tests of the whole pipeline: one of each architecture that passes know, and random graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Expr, Function, Module, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, tensor


class Weights:
    """Seeded weights under fresh names."""

    def __init__(self, seed: int = 0, dtype: str = "float32") -> None:
        self.rng = np.random.default_rng(seed)
        self.count, self.dtype = 0, dtype

    def __call__(self, *shape: int, scale: float = 0.5, positive: bool = False) -> Parameter:
        self.count += 1
        data = self.rng.standard_normal(shape) * scale
        return Parameter(f"w{self.count}", (np.abs(data) + 0.5 if positive else data).astype(self.dtype))


def _module(params: tuple[Var, ...], *outputs: Expr) -> Module:
    body = outputs[0] if len(outputs) == 1 else Tuple(outputs)
    return Module({"main": Function(params, body, "main")}, {"main": tuple(f"y{i}" for i in range(len(outputs)))}, {})


def _conv(w: Weights, x: Expr, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, name: str = "conv") -> Expr:
    assert isinstance(x.type, TensorType)
    channels = int(x.type.shape[1])  # type: ignore[arg-type]
    weight = w(outputs, channels // groups, kernel, kernel)
    pad = (kernel - 1) // 2
    return ops.conv(x, weight, strides=(stride, stride), padding=(pad,) * 4, dilation=(1, 1), groups=groups, origin=name)


def _batch_norm(w: Weights, x: Expr) -> Expr:
    c = int(x.type.shape[1])  # type: ignore[union-attr, arg-type]
    return ops.batch_norm(x, w(c), w(c), w(c), w(c, positive=True), epsilon=1e-3, origin="bn")


def residual() -> Module:
    """Convolutions with batch norms, a shortcut with a projection, pools, a classifier."""
    w, x = Weights(), Var("x", tensor("float32", symbol("n", 1, 8), 3, 12, 10))
    h = ops.relu(_batch_norm(w, _conv(w, x, 8, stride=2)))
    h = ops.max_pool(h, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    main = _batch_norm(w, _conv(w, ops.relu(_batch_norm(w, _conv(w, h, 12))), 12))
    h = ops.relu(ops.add(main, _batch_norm(w, _conv(w, h, 12, kernel=1)), origin="sum"))
    h = ops.reshape(ops.mean(h, axes=(2, 3), keepdims=True), shape=(symbol("n", 1, 8), 12))
    return _module((x,), ops.softmax(ops.add(ops.matmul(h, w(12, 5)), w(5)), axis=1))


def inverted_residual() -> Module:
    """Depthwise convolutions, squeeze and excite, hard and soft activations in their parts."""
    w, x = Weights(1), Var("x", tensor("float32", 2, 6, 9, 7))
    h = _batch_norm(w, _conv(w, x, 20, kernel=1))
    h = ops.multiply(h, ops.sigmoid(h))
    h = _batch_norm(w, _conv(w, h, 20, kernel=5, groups=20))
    h = ops.divide(ops.multiply(h, ops.clip(ops.add(h, _number(3)), minimum=0, maximum=6)), _number(6))
    gate = ops.mean(h, axes=(2, 3), keepdims=True)
    gate = ops.relu(ops.add(_conv(w, gate, 5, kernel=1), w(1, 5, 1, 1)))
    gate = ops.hard_sigmoid(_conv(w, gate, 20, kernel=1), alpha=1 / 6, beta=0.5)
    h = ops.add(_conv(w, ops.multiply(h, gate), 6, kernel=1), x)
    return _module((x,), h, ops.subtract(h, w(6, 1, 1)))


def _number(value: float, dtype: str = "float32") -> Constant:
    return Constant(np.array(value, dtype))


def _layer_norm_in_parts(w: Weights, x: Expr, width: int) -> Expr:
    centred = ops.subtract(x, ops.mean(x, axes=(-1,), keepdims=True))
    again = ops.subtract(x, ops.mean(x, axes=(-1,), keepdims=True))
    variance = ops.mean(ops.power(again, _number(2)), axes=(-1,), keepdims=True)
    return ops.add(ops.multiply(ops.divide(centred, ops.sqrt(ops.add(variance, _number(1e-5)))), w(width)), w(width))


def transformer() -> Module:
    """An encoder layer as exporters write it: flattened products, norms and gelu in their parts, a mask."""
    n, s, width, heads = symbol("n", 1, 4), symbol("s", 1, 16), 16, 4
    w = Weights(2)
    x, mask = Var("x", tensor("float32", n, s, width)), Var("mask", tensor("int64", n, s))

    def linear(h: Expr, units: int) -> Expr:
        inputs = int(h.type.shape[-1])  # type: ignore[union-attr, arg-type]
        flat = ops.reshape(h, shape=(n * s, inputs))
        return ops.add(ops.reshape(ops.matmul(flat, w(inputs, units, scale=0.3)), shape=(n, s, units)), w(units), origin="linear")

    def split(h: Expr) -> Expr:
        return ops.transpose(ops.reshape(h, shape=(n, s, heads, width // heads)), axes=(0, 2, 1, 3))

    q, k, v = (split(linear(x, width)) for _ in range(3))
    scores = ops.divide(ops.matmul(q, ops.transpose(k, axes=(0, 1, 3, 2))), _number(2.0))
    bias = ops.multiply(ops.subtract(_number(1), ops.cast(mask, dtype="float32")), _number(-1e9))
    scores = ops.add(scores, ops.reshape(bias, shape=(n, 1, 1, s)))
    h = ops.transpose(ops.matmul(ops.softmax(scores, axis=-1), v), axes=(0, 2, 1, 3))
    h = _layer_norm_in_parts(w, ops.add(linear(ops.reshape(h, shape=(n, s, width)), width), x), width)
    wide = linear(h, 4 * width)
    wide = ops.multiply(ops.multiply(wide, ops.add(ops.erf(ops.divide(wide, _number(2**0.5))), _number(1))), _number(0.5))
    h = ops.add(linear(wide, width), h)
    return _module((x, mask), _layer_norm_in_parts(w, h, width))


def computed_shapes() -> Module:
    """Shape -> Gather -> Mul -> Cast -> Concat as tensors, beside the values they describe."""
    n = symbol("n", 1)
    x = Var("x", tensor("float32", n, 4, 6))
    shape = ops.shape_of(x)
    batch = ops.gather(shape, Constant(np.array(0)), axis=0)
    rows = ops.multiply(batch, Constant(np.array(4)))
    joined = ops.concat(ops.reshape(rows, shape=(1,)), Constant(np.array([6])), axis=0)
    return _module((x,), ops.reshape(x, shape=(n * 4, 6)), joined, ops.cast(rows, dtype="float32"))


def pieces() -> Module:
    """Multi-output calls, integers, booleans, concatenations, constants that fold."""
    w = Weights(3)
    x, i = Var("x", tensor("float32", 3, 8)), Var("i", tensor("int64", 3, 2))
    top = ops.top_k(x, k=2, axis=1, largest=True, sorted=True)
    table = ops.add(ops.broadcast_to(w(8), shape=(3, 8)), _number(1))
    picked = ops.gather(ops.transpose(table, axes=(1, 0)), i, axis=0)
    cat = ops.concat(ops.relu(x), ops.exp(x), x, axis=1)
    flags = ops.where(ops.greater(x, table), x, ops.full(shape=(3, 8), value=0.0, dtype="float32"))
    pooled = ops.max_pool_with_indices(ops.reshape(x, shape=(1, 1, 3, 8)), kernel=(2, 2), strides=(1, 1), padding=(0, 0, 0, 0))
    return _module((x, i), TupleGetItem(top, 0), TupleGetItem(top, 1), picked, cat, flags, TupleGetItem(pooled, 0), x)


def alias_and_sum() -> Module:
    """Case 21: a = x + .25, b = alias of a, c = x + .125, out = b + c."""
    x = Var("x", tensor("float32", 4, 4))
    a = ops.add(x, _number(0.25))
    b = ops.reshape(a, shape=(16,))
    c = ops.reshape(ops.add(x, _number(0.125)), shape=(16,))
    return _module((x,), ops.add(b, c), a)


def row_of_a_sum() -> Module:
    """Case 20: W + 1, then Gather of one row, in float16."""
    w, x = Weights(4, "float16"), Var("i", tensor("int64", 1))
    table = Var("w", tensor("float16", 5, 6))
    return _module(
        (table, x),
        ops.gather(ops.add(table, _number(1, "float16")), x, axis=0),
        ops.gather(ops.add(w(5, 6), _number(1, "float16")), x, axis=0),
    )


def random_graph(seed: int, length: int = 25) -> Module:
    """A random graph of elementwise calls, products, reductions and moves over [4, 8] and [8]."""
    rng = np.random.default_rng(seed)
    w = Weights(seed)
    x, y = Var("x", tensor("float32", 4, 8)), Var("y", tensor("float32", 4, 8))
    pool: list[Expr] = [x, y]
    binary: list[Callable[..., Expr]] = [ops.add, ops.subtract, ops.multiply, ops.maximum]
    unary: list[Callable[..., Expr]] = [ops.relu, ops.sigmoid, ops.tanh, ops.negative, ops.abs_, ops.erf]
    for _ in range(length):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 6), len(pool)))] for _ in range(2))
        kind = int(rng.integers(10))
        if kind < 4:
            made = binary[int(rng.integers(4))](a, [b, w(8), _number(float(rng.integers(-1, 3)))][int(rng.integers(3))])
        elif kind < 6:
            made = unary[int(rng.integers(6))](a)
        elif kind == 6:
            made = ops.matmul(a, w(8, 8, scale=0.2))
        elif kind == 7:
            made = ops.transpose(ops.reshape(ops.transpose(a, axes=(1, 0)), shape=(8, 4)), axes=(1, 0))
        elif kind == 8:
            made = ops.broadcast_to(ops.mean(a, axes=(1,), keepdims=True), shape=(4, 8))
        else:
            made = ops.reshape(ops.softmax(ops.reshape(a, shape=(2, 2, 8)), axis=2), shape=(4, 8))
        pool.append(made)
    return _module((x, y), pool[-1], pool[-2])


def random_images(seed: int, length: int = 18) -> Module:
    """A random graph of convolutions and what stands beside them, with channel counts that rarely fill blocks."""
    rng = np.random.default_rng(seed)
    w, n = Weights(seed), symbol("n", 1, 4)
    x = Var("x", tensor("float32", n, int(rng.integers(1, 6)), 6, 5))
    pool: list[Expr] = [x]

    def pick() -> Expr:
        return pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))]

    for _ in range(length):
        a = pick()
        shape = a.type.shape  # type: ignore[union-attr]
        channels = int(shape[1])  # type: ignore[arg-type]
        same = [b for b in pool if b.type == a.type]
        match int(rng.integers(14)):
            case 0 | 1:
                made = _conv(w, a, int(rng.integers(1, 14)), kernel=int(rng.choice([1, 3])))
            case 2:
                made = _conv(w, a, channels, groups=channels)
            case 3:
                made = ops.relu(ops.add(_conv(w, a, 8, kernel=1), w(8, 1, 1)))
            case 4:
                made = _batch_norm(w, a)
            case 5:
                made = ops.add(a, same[int(rng.integers(len(same)))])
            case 6:
                made = ops.multiply(a, ops.sigmoid(ops.mean(a, axes=(2, 3), keepdims=True)))
            case 7:
                made = ops.max_pool(a, kernel=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
            case 8:
                made = ops.avg_pool(a, kernel=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1), count_include_pad=bool(rng.integers(2)))
            case 9:
                made = ops.concat(a, pick(), axis=1)
            case 10:
                begin = int(rng.choice([0, 4])) if channels > 5 else 0
                full = ops.slice_(a, begins=(0, begin, 0, 0), ends=(n, channels, 6, 5), steps=(1, 1, 1, 1))
                made = [full, ops.transpose(ops.transpose(a, axes=(0, 2, 3, 1)), axes=(0, 3, 1, 2))][int(rng.integers(2))]
            case 11:
                made = [ops.tanh(a), ops.softmax(a, axis=1), ops.multiply(ops.exp(ops.negative(ops.abs_(a))), w(channels, 1, 1))][
                    int(rng.integers(3))
                ]
            case 12:
                made = ops.multiply(a, ops.mean(a, axes=(1,), keepdims=True))
            case _:
                up = ops.resize(a, shape=(n, channels, 12, 10), scales=(1.0, 1.0, 2.0, 2.0), mode="linear")
                made = ops.avg_pool(up, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0))
        pool.append(ops.tanh(made))
    return _module((x,), pool[-1], ops.mean(pool[-2], axes=(2, 3), keepdims=False))


NETWORKS: dict[str, Callable[[], Module]] = {
    build.__name__: build for build in (residual, inverted_residual, transformer, computed_shapes, pieces, alias_and_sum, row_of_a_sum)
}
