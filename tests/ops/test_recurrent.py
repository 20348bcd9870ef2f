"""Recurrent layers: types, packed weights, references beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import TupleType, tensor
from aotc.ops.recurrent import block_starts, unpacked

T, B = symbol("t"), symbol("b")


def var(*shape: Any, dtype: str = "float32") -> Var:
    return Var("x", tensor(dtype, *shape))


def test_types() -> None:
    call = ops.lstm(var(T, B, 40), var(2, 10, 4, 8), var(B, 10), var(B, 10))
    assert call.type == TupleType((tensor("float32", T, B, 10), tensor("float32", B, 10), tensor("float32", B, 10)))
    projected = ops.lstm(var(T, B, 40), var(1, 3, 4, 10), var(B, 3), var(B, 10), var(1, 10, 1, 3), projected=True)
    assert projected.type == TupleType((tensor("float32", T, B, 3), tensor("float32", B, 3), tensor("float32", B, 10)))
    assert ops.gru(var(T, B, 30), var(1, 10, 3, 10), var(B, 10)).type == TupleType((tensor("float32", T, B, 10), tensor("float32", B, 10)))
    assert len(ops.rnn(var(T, B, 10), var(1, 10, 1, 10), var(B, 10), var(B, dtype="int32"), lengths=True).type.fields) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("args", "attrs", "message"),
    [
        ((var(T, B, 41), var(2, 10, 4, 8), var(B, 10), var(B, 10)), {}, r"gates \[steps, rows, 4 \* units\]"),
        ((var(T, B, 40), var(3, 10, 4, 8), var(B, 10), var(B, 10)), {}, r"recurrent weight .*\[blocks, 10, 4, block\]"),
        ((var(T, B, 40), var(2, 10, 4, 8), var(B, 10), var(T, 10)), {}, "takes states"),
        ((var(T, B, 40), var(2, 10, 4, 8), var(B, 10), var(B, 10)), {"lengths": True}, "lengths, and got 4"),
        ((var(T, B, 40), var(2, 10, 4, 8), var(B, 10), var(B, 10)), {"activations": ("cube", "tanh", "tanh")}, "activations out of"),
        ((var(T, B, 40, dtype="int32"), var(2, 10, 4, 8), var(B, 10), var(B, 10)), {}, "int32"),
    ],
)
def test_refusals(args: Any, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        ops.lstm(*args, **attrs)


@pytest.mark.parametrize(("units", "block"), [(10, 10), (10, 8), (8, 4), (3, 2), (1, 1)])
def test_packed_weights(units: int, block: int) -> None:
    plain = np.random.default_rng(0).standard_normal((4, units, 5))
    packed = np.stack([plain[:, start : start + block].transpose(2, 0, 1) for start in block_starts(units, block)])
    np.testing.assert_array_equal(unpacked(packed, units), plain)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_references_by_torch(kind: str) -> None:
    layer, x = getattr(torch.nn, kind)(5, 6, bias=False).double(), torch.randn(4, 3, 5).double()
    op, states = getattr(ops, kind.lower()), [torch.randn(1, 3, 6).double() for _ in range(2 if kind == "LSTM" else 1)]
    with torch.no_grad():
        y, last = layer(x, tuple(states) if kind == "LSTM" else states[0])
    weight, recurrent = (parameter.detach().numpy() for parameter in layer.parameters())
    gates = recurrent.shape[0] // 6
    packed = recurrent.reshape(gates, 6, 6).transpose(2, 0, 1)[None]
    attrs = {"reset_after": True} if kind == "GRU" else {}
    arrays = [x.numpy() @ weight.T, packed, *(state[0].numpy() for state in states), *([np.zeros(6)] if kind == "GRU" else [])]
    results = op.reference(op.attributes(**attrs), *arrays)
    for got, want in zip(results, [y, *(last if kind == "LSTM" else [last])], strict=True):
        np.testing.assert_allclose(got, want.numpy().reshape(got.shape), rtol=1e-12, atol=1e-14)
