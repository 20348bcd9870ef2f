"""Recurrent layers over projected inputs: one call runs one direction of one layer over all of time.

``gates`` [T, B, G * H] holds x W^T plus all biases, computed by an ordinary matrix product for all steps at once; units of one
gate stand together. T, B and H are steps, rows of the batch and units. The recurrent weight is packed as kernels read it,
[blocks, inputs, G, block]: block i holds the units from min(i * block, H - block) on, so that the last block is always
full and overlaps the one before it. A single block of all units is the plain weight transposed. All results are y [T, B, units]
and the state after the last step.

Sources: Hochreiter and Schmidhuber, Long short-term memory, 1997, with the peepholes of Gers and others, 2002; Cho and others,
2014, for the gated unit; the operators LSTM, GRU and RNN of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, ceildiv
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType, TupleType
from aotc.ops.base import Fusion, OpDef, format_shape, same_dtype
from aotc.ops.elementwise import accept

FLOATS = ("float32", "float64")
Activation = Callable[[np.ndarray, float, float], np.ndarray]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    power = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, power, x.dtype.type(1)) / (1 + power))


ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
}
"""By name, with what they do to x and two numbers, of which some use one or none."""


@dataclass(frozen=True, slots=True)
class RnnAttributes(Attributes):
    """``reverse``: from the last step to the first. ``lengths``: the last argument is int32[B], the steps of each row; those
    after them give zeros in y and do not change the state; a row of no steps gives zero states, as in ONNX Runtime. ``activations`` by their names in ``ACTIVATIONS``, each with
    its ``alphas`` and ``betas``. What goes into them is held within ``clip`` of 0, if any."""

    activations: tuple[str, ...] = ("tanh",)
    alphas: tuple[float, ...] = (0.0,)
    betas: tuple[float, ...] = (0.0,)
    clip: float | None = None
    reverse: bool = False
    lengths: bool = False


@dataclass(frozen=True, slots=True)
class GruAttributes(RnnAttributes):
    """Activations of (reset and update gate, new state). ``reset_after``: the reset gate is applied to the product of the state, with
    a bias of its own as a further argument [H]; else to the state before the product."""

    activations: tuple[str, ...] = ("sigmoid", "tanh")
    alphas: tuple[float, ...] = (0.0, 0.0)
    betas: tuple[float, ...] = (0.0, 0.0)
    reset_after: bool = False


@dataclass(frozen=True, slots=True)
class LstmAttributes(RnnAttributes):
    """Activations of (gates, new cell, output). ``peepholes``: a further argument [3, H], by which the cell enters the input,
    forget and output gates. ``projected``: then one [blocks, H, 1, block], packed as the recurrent weight is, makes the
    output of H units. ``input_forget``: the forget gate is 1 less the input gate. ``quantised``: what the recurrent weight is
    multiplied by is the state as 8 bits would hold it, scaled in each step by the range of all rows, zero included."""

    activations: tuple[str, ...] = ("sigmoid", "tanh", "tanh")
    alphas: tuple[float, ...] = (0.0, 0.0, 0.0)
    betas: tuple[float, ...] = (0.0, 0.0, 0.0)
    peepholes: bool = False
    projected: bool = False
    input_forget: bool = False
    quantised: bool = False


# --- packed weights --------------------------------------------------------------------------------------------------


def block_starts(units: int, block: int) -> list[int]:
    """The first unit of each block."""
    return [min(i * block, units - block) for i in range(-(-units // block))]


def unpacked(packed: np.ndarray, units: int) -> np.ndarray:
    """[blocks, inputs, G, block] as [G, units, inputs]."""
    _, inputs, gates, block = packed.shape
    plain = np.zeros((gates, units, inputs), packed.dtype)
    for part, start in zip(packed, block_starts(units, block), strict=True):
        plain[:, start : start + block] = part.transpose(1, 2, 0)
    return plain


def _check_packed(what: str, weight: TensorType, inputs: Dim, gates: int, units: Dim) -> None:
    fits = weight.rank == 4 and weight.shape[1:3] == (inputs, gates) and all(isinstance(dim, int) for dim in weight.shape)
    if not fits or not 0 < int(weight.shape[3]) <= int(units) or weight.shape[0] != ceildiv(units, int(weight.shape[3])):  # type: ignore[arg-type]
        wanted = f"[blocks, {inputs}, {gates}, block] for {units} units in blocks of that many"
        raise InvalidModel(f"{what} has the shape {wanted}, not {format_shape(weight.shape)}")


# --- types ------------------------------------------------------------------------------------------------------------


class _Arguments:
    """The arguments of a call by name, in order, for types as for arrays."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        if len(names) != len(values):
            raise InvalidModel(f"takes {', '.join(names)}, and got {len(values)} arguments")
        self._by_name = dict(zip(names, values, strict=True))

    def __getattr__(self, name: str) -> Any:
        return self._by_name[name]


def lstm_arguments(attrs: LstmAttributes) -> list[str]:
    """The names of an lstm's arguments, in order."""
    optional = [name for name in ("peepholes", "projected") if getattr(attrs, name)]
    return ["gates", "recurrent", "h", "c", *optional, *_lengths(attrs)]


def gru_arguments(attrs: GruAttributes) -> list[str]:
    return ["gates", "recurrent", "h", *(["reset_bias"] if attrs.reset_after else []), *_lengths(attrs)]


def rnn_arguments(attrs: RnnAttributes) -> list[str]:
    return ["gates", "recurrent", "h", *_lengths(attrs)]


def _lengths(attrs: RnnAttributes) -> list[str]:
    return ["lengths"] if attrs.lengths else []


def _check_common(given: _Arguments, types: Sequence[TensorType], attrs: Any, gates: int, units: Dim, activations: int) -> None:
    accept(given.gates, FLOATS)
    same_dtype([t for t in types if t.dtype != "int32"])
    if given.gates.rank != 3 or not isinstance(units, int) or units < 1:
        raise InvalidModel(f"takes gates [steps, rows, {gates} * units] and a state [rows, units], not {given.gates} and {given.h}")
    _, rows, width = given.gates.shape
    if width != gates * units or given.h.shape[0] != rows:
        raise InvalidModel(f"takes gates [steps, rows, {gates} * units] and states [rows, units], not {given.gates} and {given.h}")
    if attrs.lengths and given.lengths != TensorType((rows,), "int32", given.gates.device):
        raise InvalidModel(f"lengths must be int32[{rows}], not {given.lengths}")
    unknown = [name for name in attrs.activations if name not in ACTIVATIONS]
    if unknown or not len(attrs.activations) == len(attrs.alphas) == len(attrs.betas) == activations:
        raise InvalidModel(f"takes {activations} activations out of {', '.join(ACTIVATIONS)}, not {attrs.activations}")


def _plain_relation(names: Callable[[Any], list[str]], gates: int, activations: int, types: Sequence[TensorType], attrs: Any) -> TupleType:
    """Of gru and rnn: y and h."""
    given = _Arguments(names(attrs), types)
    units = given.h.shape[-1] if given.h.rank == 2 else -1
    _check_common(given, types, attrs, gates, units, activations)
    _check_packed("the recurrent weight", given.recurrent, units, gates, units)
    if "reset_bias" in names(attrs) and given.reset_bias.shape != (units,):
        raise InvalidModel(f"the bias has the shape [{units}], not {format_shape(given.reset_bias.shape)}")
    return TupleType((TensorType((*given.gates.shape[:2], units), given.gates.dtype, given.gates.device), given.h))


def _lstm_relation(types: Sequence[TensorType], attrs: LstmAttributes) -> TupleType:
    given = _Arguments(lstm_arguments(attrs), types)
    if given.h.rank != 2 or given.c.rank != 2 or given.h.shape[0] != given.c.shape[0]:
        raise InvalidModel(f"takes states [rows, units], not {given.h} and {given.c}")
    (_, outputs), (_, units) = given.h.shape, given.c.shape
    _check_common(given, types, attrs, 4, units, 3)
    _check_packed("the recurrent weight", given.recurrent, outputs, 4, units)
    if attrs.projected:
        _check_packed("the projection", given.projected, units, 1, outputs)
    elif outputs != units:
        raise InvalidModel(f"the states must be of one shape, not {given.h} and {given.c}")
    if attrs.peepholes and given.peepholes.shape != (3, units):
        raise InvalidModel(f"peepholes have the shape [3, {units}], not {format_shape(given.peepholes.shape)}")
    return TupleType((TensorType((*given.gates.shape[:2], outputs), given.gates.dtype, given.gates.device), given.h, given.c))


# --- references -------------------------------------------------------------------------------------------------------


def _activation(attrs: RnnAttributes, number: int) -> Callable[[np.ndarray], np.ndarray]:
    function, alpha, beta = ACTIVATIONS[attrs.activations[number]], attrs.alphas[number], attrs.betas[number]

    def apply(x: np.ndarray) -> np.ndarray:
        if attrs.clip is not None:
            x = np.clip(x, -attrs.clip, attrs.clip)
        return np.asarray(function(x, alpha, beta)).astype(x.dtype)

    return apply


def _over_time(
    attrs: RnnAttributes, given: _Arguments, outputs: int, states: tuple[np.ndarray, ...], step: Callable[..., tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, ...]:
    """y and the last states; ``step(gates of a step, *states)`` gives the next states, the first of which is the output."""
    steps, rows, _ = given.gates.shape
    y = np.zeros((steps, rows, outputs), given.gates.dtype)
    if attrs.lengths:
        states = tuple(np.where(given.lengths[:, None] > 0, state, state.dtype.type(0)) for state in states)
    with np.errstate(all="ignore"):
        for t in reversed(range(steps)) if attrs.reverse else range(steps):
            live = (t < given.lengths if attrs.lengths else np.ones(rows, bool))[:, None]
            states = tuple(np.where(live, new, old) for new, old in zip(step(given.gates[t], *states), states, strict=True))
            y[t] = np.where(live, states[0], 0)
    return (y, *states)


def _rounded(x: np.ndarray) -> np.ndarray:
    """``x`` as 8 bits without sign hold it, by DynamicQuantizeLinear's rule."""
    kind = x.dtype.type
    low, high = kind(x.min(initial=0)), kind(x.max(initial=0))
    scale = (high - low) / kind(255) if high > low else kind(1)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale, x.dtype)


def _lstm(attrs: LstmAttributes, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    given = _Arguments(lstm_arguments(attrs), arrays)
    units, outputs = given.c.shape[1], given.h.shape[1]
    recurrent = unpacked(given.recurrent, units).reshape(4 * units, outputs)
    gate, new = _activation(attrs, 0), _activation(attrs, 1)
    shown = _activation(LstmAttributes(attrs.activations, attrs.alphas, attrs.betas), 2)  # the cell itself is not clipped
    peep = given.peepholes if attrs.peepholes else np.zeros((3, units), given.c.dtype)
    projection = unpacked(given.projected, outputs)[0] if attrs.projected else None

    def step(gates: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
        i, f, g, o = np.split(gates + (_rounded(h) if attrs.quantised else h) @ recurrent.T, 4, axis=1)
        i = gate(i + peep[0] * c)
        f = 1 - i if attrs.input_forget else gate(f + peep[1] * c)
        c = f * c + i * new(g)
        h = gate(o + peep[2] * c) * shown(c)
        return (h if projection is None else h @ projection.T), c

    return _over_time(attrs, given, outputs, (given.h, given.c), step)


def _gru(attrs: GruAttributes, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    given = _Arguments(gru_arguments(attrs), arrays)
    units = given.h.shape[1]
    reset, update, candidate = unpacked(given.recurrent, units)
    gate, new = _activation(attrs, 0), _activation(attrs, 1)

    def step(gates: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, ...]:
        r, z, n = np.split(gates, 3, axis=1)
        r, z = gate(r + h @ reset.T), gate(z + h @ update.T)
        n = new(n + (r * (h @ candidate.T + given.reset_bias) if attrs.reset_after else (r * h) @ candidate.T))
        return ((1 - z) * n + z * h,)

    return _over_time(attrs, given, units, (given.h,), step)


def _rnn(attrs: RnnAttributes, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    given = _Arguments(rnn_arguments(attrs), arrays)
    units = given.h.shape[1]
    recurrent, new = unpacked(given.recurrent, units)[0], _activation(attrs, 0)
    return _over_time(attrs, given, units, (given.h,), lambda gates, h: (new(gates + h @ recurrent.T),))


lstm = OpDef("lstm", _lstm_relation, _lstm, Fusion.OPAQUE, LstmAttributes, (4, 5, 6, 7))
"""(gates in the order input, forget, cell, output; recurrent; h [B, outputs]; c [B, H]; ...) -> (y, h, c)."""
gru = OpDef("gru", partial(_plain_relation, gru_arguments, 3, 2), _gru, Fusion.OPAQUE, GruAttributes, (3, 4, 5))
"""(gates in the order reset, update, new; recurrent; h [B, H]; ...) -> (y, h). h = (1 - update) * new + update * h."""
rnn = OpDef("rnn", partial(_plain_relation, rnn_arguments, 1, 1), _rnn, Fusion.OPAQUE, RnnAttributes, (3, 4))
"""(gates; recurrent; h [B, H]; ...) -> (y, h)."""

ARGUMENTS: dict[OpDef, Callable[[Any], list[str]]] = {lstm: lstm_arguments, gru: gru_arguments, rnn: rnn_arguments}
"""What gives the names of an operator's arguments, in order, from its attributes."""
GATES: dict[OpDef, int] = {lstm: 4, gru: 3, rnn: 1}

__all__ = ["gru", "lstm", "rnn"]
