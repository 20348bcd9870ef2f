"""LSTM, GRU and RNN in all their forms: each direction is a layer of its own, and directions are put beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.quantise import dynamic_range
from aotc.frontends.recurrent import both, layer, permuted
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr
from aotc.ops.base import OpDef
from aotc.ops.recurrent import GATES, GruAttributes, LstmAttributes, RnnAttributes

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction of a node runs backwards."""

ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("relu", None, None),
    "tanh": ("tanh", None, None),
    "sigmoid": ("sigmoid", None, None),
    "affine": ("affine", 1.0, 0.0),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "thresholdedrelu": ("thresholded_relu", 1.0, None),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "elu": ("elu", 1.0, None),
    "softsign": ("softsign", None, None),
    "softplus": ("softplus", None, None),
}
"""ours, alpha and beta by ONNX's name in small letters; ``None`` where there is no such number."""


@dataclass(frozen=True)
class _Form:
    """``order``: where ONNX has the gates that ours are, in our order. ``activations``: those of one direction by default."""

    op: OpDef
    order: tuple[int, ...]
    activations: tuple[str, ...]
    states: tuple[str, ...]
    attributes: Callable[[Node, dict[str, Any]], RnnAttributes]


def _lstm_attributes(node: Node, common: dict[str, Any]) -> LstmAttributes:
    return LstmAttributes(**common, peepholes=node.optional(7) is not None, input_forget=node.flag("input_forget"))


def _gru_attributes(node: Node, common: dict[str, Any]) -> GruAttributes:
    return GruAttributes(**common, reset_after=node.flag("linear_before_reset"))


LSTM = _Form(ops.lstm, (0, 2, 3, 1), ("sigmoid", "tanh", "tanh"), ("h", "c"), _lstm_attributes)
GRU = _Form(ops.gru, (1, 0, 2), ("sigmoid", "tanh"), ("h",), _gru_attributes)
QUANTISED = _Form(
    ops.lstm,
    (0, 2, 3, 1),
    ("sigmoid", "tanh", "tanh"),
    ("h", "c"),
    lambda node, common: replace(_lstm_attributes(node, common), quantised=True),
)
RNN = _Form(ops.rnn, (0,), ("tanh",), ("h",), lambda node, common: RnnAttributes(**common))


def recurrent(form: _Form) -> Handler:
    def handler(node: Node) -> Results:
        return build(node, form, node.input(0), node.input(1), node.input(2))

    return handler


def build(node: Node, form: _Form, x: Expr, weight: Expr, recurrence: Expr) -> Results:
    """The node over x, weights [D, G * H, I] and recurrent weights [D, G * H, H]; its other inputs are where ONNX has them."""
    reversals = DIRECTIONS.get(node.text("direction", "forward"))
    if reversals is None:
        node.invalid(f"the direction must be {', '.join(DIRECTIONS)}, not {node.text('direction')!r}")
    batch_first = node.flag("layout")
    _check_shapes(node, form, x, weight, recurrence, len(reversals))
    if batch_first:
        x = node.call(ops.transpose, x, axes=(1, 0, 2))
    steps, rows, _ = node.shape(x)
    lengths = _lengths(node, steps, rows)
    every: list[list[Expr]] = []
    for number, reverse in enumerate(reversals):
        attrs = form.attributes(
            node, {**_activations(node, form, number, len(reversals)), "reverse": reverse, "lengths": lengths is not None}
        )
        weights = _weights(node, form, attrs, number, weight, recurrence)
        weights |= _states(node, form, number, rows, node.shape(recurrence)[2], batch_first)
        if lengths is not None:
            weights["lengths"] = lengths
        every.append(layer(node.call, form.op, attrs, x, weights))
    y = both(node.call, [results[0] for results in every], axis=1)
    if batch_first:
        y = node.call(ops.transpose, y, axes=(2, 0, 1, 3))
    states = [both(node.call, [results[i] for results in every], axis=1 if batch_first else 0) for i in range(1, len(every[0]))]
    return [y, *states]


def _check_shapes(node: Node, form: _Form, x: Expr, weight: Expr, recurrence: Expr, directions: int) -> None:
    gates = GATES[form.op]
    if node.rank(x) != 3 or node.rank(weight) != 3 or node.rank(recurrence) != 3:
        node.invalid(
            f"takes data, weights and recurrent weights of rank 3, not {node.type(x)}, {node.type(weight)} and {node.type(recurrence)}"
        )
    units = node.shape(recurrence)[2]
    if not isinstance(units, int):
        node.unsupported(f"the number of units is {units}, and must be known when the model is built")
    if node.integer("hidden_size", units) != units:
        node.invalid(f"hidden_size is {node.integer('hidden_size')}, and the recurrent weight {node.type(recurrence)} has {units} units")
    wanted = (directions, gates * units)
    if node.shape(weight)[:2] != wanted or node.shape(recurrence)[:2] != wanted or node.shape(weight)[2] != node.shape(x)[2]:
        node.invalid(
            f"for {directions} directions of {units} units and data {node.type(x)} the weights must be [{directions}, {gates * units}, {node.shape(x)[2]}]"
            f" and [{directions}, {gates * units}, {units}], not {node.type(weight)} and {node.type(recurrence)}"
        )


def _direction(node: Node, x: Expr, number: int, axis: int = 0) -> Expr:
    """The part of an input that belongs to one direction, without that axis."""
    shape = node.shape(x)
    if shape[axis] != 1:
        begins = [number if i == axis else 0 for i in range(len(shape))]
        ends = [number + 1 if i == axis else dim for i, dim in enumerate(shape)]
        x = node.call(ops.slice_, x, begins=tuple(begins), ends=tuple(ends), steps=(1,) * len(shape))
    return node.call(ops.reshape, x, shape=(*shape[:axis], *shape[axis + 1 :]))


def _weights(node: Node, form: _Form, attrs: RnnAttributes, number: int, weight: Expr, recurrence: Expr) -> dict[str, Expr]:
    def ordered(x: Expr, order: Sequence[int] = form.order) -> Expr:
        part = _direction(node, x, number)
        return part if tuple(order) == tuple(range(len(order))) else permuted(node.call, part, order)

    found = {"input": ordered(weight), "recurrent": ordered(recurrence)}
    units, gates = int(node.shape(recurrence)[2]), GATES[form.op]  # type: ignore[arg-type]
    bias = node.optional(3)
    if bias is not None:
        if node.shape(bias) != (node.shape(weight)[0], 2 * gates * units):
            node.invalid(f"the bias must be [{node.shape(weight)[0]}, {2 * gates * units}], not {node.type(bias)}")
        found |= _biases(node, ordered(bias, (*form.order, *(gates + i for i in form.order))), gates, units, attrs)
    elif isinstance(attrs, GruAttributes) and attrs.reset_after:
        found["reset_bias"] = node.constant(np.zeros(units), node.dtype(recurrence))
    if isinstance(attrs, LstmAttributes) and attrs.peepholes:
        found["peepholes"] = node.call(ops.reshape, ordered(node.input(7), (0, 2, 1)), shape=(3, units))
    return found


def _biases(node: Node, bias: Expr, gates: int, units: int, attrs: RnnAttributes) -> dict[str, Expr]:
    """ONNX has one bias for the input and one for the state; they are one, but for a new state whose reset gate comes after its
    product."""

    def part(begin: int, end: int) -> Expr:
        return node.call(ops.slice_, bias, begins=(begin * units,), ends=(end * units,), steps=(1,))

    if not (isinstance(attrs, GruAttributes) and attrs.reset_after):
        return {"bias": node.call(ops.add, part(0, gates), part(gates, 2 * gates))}
    together = node.call(ops.add, part(0, gates - 1), part(gates, 2 * gates - 1))
    return {"bias": node.call(ops.concat, together, part(gates - 1, gates), axis=0), "reset_bias": part(2 * gates - 1, 2 * gates)}


def _states(node: Node, form: _Form, number: int, rows: Dim, units: Dim, batch_first: bool) -> dict[str, Expr]:
    found: dict[str, Expr] = {}
    for index, name in enumerate(form.states, 5):
        given = node.optional(index)
        if given is None:
            found[name] = node.call(ops.full, shape=(rows, units), value=0.0, dtype=node.dtype(node.input(0)))
            continue
        axis = 1 if batch_first else 0
        if node.rank(given) != 3 or node.shape(given)[1 - axis] != rows or node.shape(given)[2] != units:
            node.invalid(
                f"the initial state must be [directions, {rows}, {units}]{' with the first two swapped' * batch_first}, not {node.type(given)}"
            )
        found[name] = _direction(node, given, number, axis)
    return found


def _lengths(node: Node, steps: Dim, rows: Dim) -> Expr | None:
    """sequence_lens, but where all rows are known to be whole."""
    given = node.optional(4)
    if given is None:
        return None
    if node.shape(given) != (rows,):
        node.invalid(f"sequence_lens must be int32[{rows}], not {node.type(given)}")
    known = node.known.get(given)
    if known is not None and all(length == steps for length in known.tolist()):
        return None
    return given if node.dtype(given) == "int32" else node.call(ops.cast, given, dtype="int32")


def _activations(node: Node, form: _Form, number: int, directions: int) -> dict[str, Any]:
    """The activations of one direction. Numbers that are given are consumed in order by the activations that have such."""
    count = len(form.activations)
    names = (
        [name.decode() for name in node.attributes["activations"].strings]
        if node.has("activations")
        else list(form.activations) * directions
    )
    unknown = [name for name in names if name.lower() not in ACTIVATIONS]
    if unknown or len(names) != count * directions:
        node.invalid(f"takes {count * directions} activations out of {', '.join(ACTIVATIONS)}, not {names}")
    rows = [ACTIVATIONS[name.lower()] for name in names]
    alphas = _numbers(node.numbers("activation_alpha", ()), [row[1] for row in rows])
    betas = _numbers(node.numbers("activation_beta", ()), [row[2] for row in rows])
    own = slice(number * count, (number + 1) * count)
    clip = abs(node.number("clip")) if node.has("clip") else None
    return {"activations": tuple(row[0] for row in rows[own]), "alphas": alphas[own], "betas": betas[own], "clip": clip or None}


def _numbers(given: Sequence[float], defaults: Sequence[float | None]) -> tuple[float, ...]:
    rest = iter(given)
    return tuple(0.0 if default is None else next(rest, default) for default in defaults)


def _dynamic_quantize_lstm(node: Node) -> Results:
    """W [D, I, 4 * H] and R [D, H, 4 * H] in 8 bits, data and state rounded to 8 bits as they come: the products of such numbers
    are what ONNX Runtime computes with integers, with one thread. Weights are kept as floats."""
    x = node.input(0)
    scale, zero = dynamic_range(node, x)
    x = node.call(ops.dequantise, node.call(ops.quantise, x, scale, zero, dtype="uint8"), scale, zero)
    weight, recurrence = (_dequantised(node, index, node.input(scales), node.optional(scales + 1)) for index, scales in ((1, 8), (2, 10)))
    return build(node, QUANTISED, x, weight, recurrence)


def _dequantised(node: Node, index: int, scale: Expr, zero: Expr | None) -> Expr:
    """A weight with its last two axes swapped, as LSTM has it; scales and zero points are one a direction, or one a column."""
    packed = node.input(index)
    if node.rank(packed) != 3:
        node.invalid(f"takes weights of rank 3, not {node.type(packed)}")
    known = [node.known.get(each) for each in (packed, scale, zero) if each is not None]
    if all(each is not None for each in known):
        data, factor, *start = (np.asarray(each, np.float32) for each in known)
        shape = (data.shape[0], 1, -1)
        data = data - start[0].reshape(shape) if start else data
        return node.weight(f"{node.proto.input[index]}~float", np.ascontiguousarray((data * factor.reshape(shape)).transpose(0, 2, 1)))
    node.unsupported("its weights must be known when the model is built")


HANDLERS: dict[str, Handler] = {"LSTM": recurrent(LSTM), "GRU": recurrent(GRU), "RNN": recurrent(RNN)}
MICROSOFT: dict[str, Handler] = {"DynamicQuantizeLSTM": _dynamic_quantize_lstm}
