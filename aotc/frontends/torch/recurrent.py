"""Recipes of ATen's recurrent layers, and what keeps them whole in an export.

torch.export keeps ``aten.lstm.input`` and its kin where the number of steps is known; to find shapes it runs them step by step,
and so it refuses a number of steps that is dynamic. While we export a module they stand in the graph as operators of our own, whose
shapes are known at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aotc import ops
from aotc.frontends.recurrent import both, layer
from aotc.frontends.torch.builder import Builder, Recipe, shape_of
from aotc.ir.expr import Expr
from aotc.ops.base import OpDef
from aotc.ops.recurrent import GruAttributes, LstmAttributes, RnnAttributes

aten = torch.ops.aten


def _layers(
    b: Builder, op: OpDef, make: Callable[..., RnnAttributes], x: Expr, states: Sequence[Expr], params: Sequence[Expr], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[Expr]:  # fmt: skip
    """``num_layers`` layers, one above the other. ``states`` and those that come back are [layers * directions, B, units]."""
    if train and dropout:
        raise b.unsupported("recurrent layers with dropout: call module.eval() before exporting")
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    if batch_first:
        x = b.transpose(x, (1, 0, 2))
    last: list[list[Expr]] = []
    for number in range(num_layers):
        outputs = []
        for position in range(number * directions, (number + 1) * directions):
            weights = _weights(b, op, params[position * each : (position + 1) * each], has_biases)
            weights |= {name: _state(b, state, position) for name, state in zip(("h", "c"), states, strict=False)}
            y, *after = layer(b.emit, op, make(reverse=position % directions == 1, weights=weights), x, weights)
            outputs.append(y)
            last.append(after)
        x = b.concat(outputs, 2)
    return [b.transpose(x, (1, 0, 2)) if batch_first else x, *(_stacked(b, [after[i] for after in last]) for i in range(len(states)))]


def _stacked(b: Builder, states: Sequence[Expr]) -> Expr:
    return both(b.emit, states, axis=0)


def _state(b: Builder, states: Expr, position: int) -> Expr:
    return b.reshape(b.slice(states, 0, position, position + 1), shape_of(states)[1:])


def _weights(b: Builder, op: OpDef, params: Sequence[Expr], has_biases: bool) -> dict[str, Expr]:
    weight, recurrent, *rest = params
    found = {"input": weight, "recurrent": recurrent}
    units = shape_of(weight)[0] // (3 if op is ops.gru else 1)
    if has_biases:
        (of_input, of_state), rest = rest[:2], rest[2:]
        if op is ops.gru:  # the reset gate is applied to the state's product and bias together
            gates, reset = b.slice(of_state, 0, 0, 2 * units), b.slice(of_state, 0, 2 * units, 3 * units)
            of_state = b.concat([gates, b.emit(ops.full, shape=(units,), value=0.0, dtype=b.dtype)], 0)
            found["reset_bias"] = reset
        found["bias"] = b.emit(ops.add, of_input, of_state)
    elif op is ops.gru:
        found["reset_bias"] = b.emit(ops.full, shape=(units,), value=0.0, dtype=b.dtype)
    if rest:
        found["projected"] = rest[0]
    return found


def _lstm_attributes(reverse: bool, weights: dict[str, Expr]) -> LstmAttributes:
    return LstmAttributes(reverse=reverse, projected="projected" in weights)


def _gru_attributes(reverse: bool, weights: dict[str, Expr]) -> GruAttributes:
    return GruAttributes(reverse=reverse, reset_after=True)


def _rnn_attributes(activation: str) -> Callable[..., RnnAttributes]:
    return lambda reverse, weights: RnnAttributes(activations=(activation,), reverse=reverse)


def aten_lstm(b: Builder, x: Expr, hx: Sequence[Expr], params: Sequence[Expr], *form: Any) -> list[Expr]:
    return _layers(b, ops.lstm, _lstm_attributes, x, hx, params, *form)


def aten_gru(b: Builder, x: Expr, hx: Expr, params: Sequence[Expr], *form: Any) -> list[Expr]:
    return _layers(b, ops.gru, _gru_attributes, x, [hx], params, *form)


def _aten_rnn(activation: str) -> Recipe:
    def recipe(b: Builder, x: Expr, hx: Expr, params: Sequence[Expr], *form: Any) -> list[Expr]:
        return _layers(b, ops.rnn, _rnn_attributes(activation), x, [hx], params, *form)

    return recipe


# --- whole layers in an export --------------------------------------------------------------------------------------------


def _output(x: Tensor, state: Tensor, bidirectional: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], state.shape[2] * (2 if bidirectional else 1)))


def _run_lstm(
    x: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.lstm(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)


_lstm: Any = torch.library.custom_op("aotc::lstm", _run_lstm, mutates_args=())
_lstm.register_fake(lambda x, hx, params, *form: (_output(x, hx[0], form[4]), torch.empty_like(hx[0]), torch.empty_like(hx[1])))


def _whole(name: str, function: Callable[..., Any]) -> Any:
    """The operator ``aotc::<name>`` for a layer with one state."""

    def run(
        x: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return function(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)

    made: Any = torch.library.custom_op(f"aotc::{name}", run, mutates_args=())
    made.register_fake(lambda x, hx, params, *form: (_output(x, hx, form[4]), torch.empty_like(hx)))
    return made


_KEPT: dict[Any, Any] = {
    torch.lstm: _lstm,
    **{
        function: _whole(name, function)
        for name, function in (("gru", torch.gru), ("rnn_tanh", torch.rnn_tanh), ("rnn_relu", torch.rnn_relu))
    },
}


class WholeLayers(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, recurrent layers are operators of ours, which torch.export takes as they are."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = _KEPT.get(function) if callable(function) else None
        if kept is not None and not kwargs and len(args) == 9 and not isinstance(args[3], (Tensor, list, tuple)):
            return kept(*args[:1], list(args[1]) if isinstance(args[1], tuple) else args[1], list(args[2]), *args[3:])
        return function(*args, **(kwargs or {}))


RECIPES: dict[Any, Recipe] = {
    aten.lstm.input: aten_lstm,
    aten.gru.input: aten_gru,
    aten.rnn_tanh.input: _aten_rnn("tanh"),
    aten.rnn_relu.input: _aten_rnn("relu"),
    torch.ops.aotc.lstm.default: aten_lstm,
    torch.ops.aotc.gru.default: aten_gru,
    torch.ops.aotc.rnn_tanh.default: _aten_rnn("tanh"),
    torch.ops.aotc.rnn_relu.default: _aten_rnn("relu"),
}
