"""Shape operators: types by table (static and symbolic), values against numpy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Var
from aotc.ir.types import tensor
from aotc.ops.shape_values import value_of

B, S = symbol("b", 1), symbol("s", 2)


def var(*shape: Any, dtype: str = "float32") -> Var:
    return Var("x", tensor(dtype, *shape))


TYPES: list[tuple[Any, tuple[Any, ...]]] = [
    (lambda: ops.reshape(var(2, 3, 4), shape=(6, 4)), (6, 4)),
    (lambda: ops.reshape(var(B, S, 12), shape=(B, S, 3, 4)), (B, S, 3, 4)),
    (lambda: ops.reshape(var(B, S, 12), shape=(B * S, 12)), (B * S, 12)),
    (lambda: ops.reshape(var(B), shape=(S,)), (S,)),
    (lambda: ops.reshape(var(2, 0, 4), shape=(0, 7)), (0, 7)),
    (lambda: ops.reshape(var(1, 1), shape=()), ()),
    (lambda: ops.transpose(var(B, 3, S), axes=(2, 0, 1)), (S, B, 3)),
    (lambda: ops.broadcast_to(var(1, 3), shape=(B, S, 3)), (B, S, 3)),
    (lambda: ops.tile(var(B, 3), repeats=(2, S)), (2 * B, 3 * S)),
    (lambda: ops.slice_(var(10, 4), begins=(1, 0), ends=(9, 4), steps=(3, 1)), (3, 4)),
    (lambda: ops.slice_(var(10), begins=(9,), ends=(-1,), steps=(-1,)), (10,)),
    (lambda: ops.slice_(var(10), begins=(8,), ends=(1,), steps=(-3,)), (3,)),
    (lambda: ops.slice_(var(10), begins=(5,), ends=(2,), steps=(1,)), (0,)),
    (lambda: ops.slice_(var(S), begins=(1,), ends=(S,), steps=(1,)), (S - 1,)),
    (lambda: ops.slice_(var(S), begins=(0,), ends=(S,), steps=(2,)), ((S + 1) // 2,)),
    (lambda: ops.slice_(var(S), begins=(S - 1,), ends=(-1,), steps=(-1,)), (S,)),
    (lambda: ops.concat(var(B, 3), var(B, S), axis=1), (B, S + 3)),
    (lambda: ops.concat(var(2, 0), var(2, 3), axis=-1), (2, 3)),
    (lambda: ops.pad(var(B, 3), before=(1, 0), after=(0, 2)), (B + 1, 5)),
    (lambda: ops.layout_transform(var(B, 10, 5, 6), block=8, channels=10), (B, 2, 5, 6, 8)),
    (lambda: ops.layout_transform(var(B, 2, 5, 6, 8), block=8, channels=10, inverse=True), (B, 10, 5, 6)),
    (lambda: ops.full(shape=(B, 2), value=1.5, dtype="float32"), (B, 2)),
    (lambda: ops.trilu(var(B, S, S), upper=False), (B, S, S)),
]


@pytest.mark.parametrize("build,shape", TYPES, ids=[str(i) for i in range(len(TYPES))])
def test_types(build: Any, shape: tuple[Any, ...]) -> None:
    assert build().type == tensor("float32", *shape)


@pytest.mark.parametrize(
    "build,message",
    [
        (lambda: ops.reshape(var(2, 3), shape=(4,)), r"\[2, 3\] has 6 elements and cannot become \[4\], which has 4"),
        (lambda: ops.reshape(var(B, 3), shape=(B, 4)), r"cannot become \[b, 4\]"),
        (lambda: ops.reshape(var(4), shape=(-2, -2)), "must not be negative"),
        (lambda: ops.transpose(var(2, 3), axes=(0, 0)), "must name each axis"),
        (lambda: ops.broadcast_to(var(2, 3), shape=(2, 4)), r"\[2, 3\] does not broadcast to \[2, 4\]"),
        (lambda: ops.broadcast_to(var(2, 3), shape=(3,)), "does not broadcast"),
        (lambda: ops.tile(var(2, 3), repeats=(1,)), r"repeats must have one entry per axis of \[2, 3\], not 1"),
        (lambda: ops.slice_(var(3), begins=(0,), ends=(4,), steps=(1,)), r"must lie within \[3\]"),
        (lambda: ops.slice_(var(3), begins=(0,), ends=(3,), steps=(0,)), "steps not be 0"),
        (lambda: ops.concat(var(2, 3), var(3, 3), axis=1), r"may differ along axis 1 only: \[2, 3\] and \[3, 3\]"),
        (lambda: ops.concat(var(2), var(2, dtype="int8"), axis=0), "one dtype"),
        (lambda: ops.pad(var(3), before=(3,), after=(0,), mode="reflect"), "reflect adds less than the dims"),
        (lambda: ops.pad(var(0), before=(1,), after=(0,), mode="edge"), "nothing to repeat"),
        (lambda: ops.pad(var(3), before=(-1,), after=(0,)), "must not be negative"),
        (lambda: ops.pad(var(3), before=(0,), after=(0,), mode="mirror"), "not 'mirror'"),
        (lambda: ops.layout_transform(var(1, 3, 2), block=8, channels=4), "expected 4 channels at axis 1"),
        (lambda: ops.trilu(var(3)), "rank 2 or more"),
        (lambda: ops.dims(values=(1, 2), scalar=True), "a scalar is one value, not 2"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        build()


@pytest.mark.parametrize("mode,torch_mode", [("constant", "constant"), ("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pad(mode: str, torch_mode: str, dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(dtype)
    call = ops.pad(var(2, 3, 4, 5, dtype=dtype), before=(0, 0, 1, 3), after=(0, 0, 2, 4), mode=mode, value=0)
    want = torch.nn.functional.pad(torch.from_numpy(x), (3, 4, 1, 2), torch_mode).numpy()
    np.testing.assert_array_equal(ops.pad.reference(call.attrs, x), want)
    assert call.type == tensor(dtype, *want.shape)


def test_layout_transform_pads_with_zeros_and_comes_back() -> None:
    x = np.random.default_rng(0).normal(size=(2, 10, 3)).astype("float32")
    forth = ops.layout_transform(var(2, 10, 3), block=8, channels=10)
    back = ops.layout_transform(forth, block=8, channels=10, inverse=True)
    blocked = ops.layout_transform.reference(forth.attrs, x)
    assert blocked.shape == (2, 2, 3, 8) and (blocked[:, 1, :, 2:] == 0).all()
    np.testing.assert_array_equal(blocked[1, 1, 2, 1], x[1, 9, 2])
    np.testing.assert_array_equal(ops.layout_transform.reference(back.attrs, blocked), x)


def test_values_of_the_rest() -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    cut = ops.slice_.attributes(begins=(1, 2, 3), ends=(2, -1, 0), steps=(1, -1, -2))
    np.testing.assert_array_equal(ops.slice_.reference(cut, x), x[1:2, ::-1, 3:0:-2])
    np.testing.assert_array_equal(ops.tile.reference(ops.tile.attributes(repeats=(2, 1, 3)), x), np.tile(x, (2, 1, 3)))
    np.testing.assert_array_equal(ops.trilu.reference(ops.trilu.attributes(upper=False, k=-1), x), np.tril(x, -1))
    np.testing.assert_array_equal(ops.transpose.reference(ops.transpose.attributes(axes=(2, 0, 1)), x), x.transpose(2, 0, 1))
    step = ops.arange.attributes(start=0.5, step=0.1, count=7, dtype="float32")
    np.testing.assert_array_equal(ops.arange.reference(step), torch.arange(0.5, 1.15, 0.1).numpy())
    assert ops.full.reference(ops.full.attributes(shape=(2,), value=True, dtype="bool")).tolist() == [True, True]
    assert ops.shape_of.reference(None, x).tolist() == [2, 3, 4]


def ints(*values: int) -> Constant:
    return Constant(np.array(values, "int64"))


def test_shapes_that_flow_through_values() -> None:
    """Shape -> Gather -> Mul -> Cast -> Concat (case 34)."""
    shape = ops.shape_of(var(B, S, 12))
    batch = ops.gather(shape, ints(0))
    length = ops.slice_(shape, begins=(1,), ends=(2,), steps=(1,))
    doubled = ops.cast(ops.multiply(ops.cast(length, dtype="int32"), Constant(np.array(2, "int32"))), dtype="int64")
    value = value_of(ops.concat(batch, doubled, ints(-1), axis=0))
    assert value is not None and value.tolist() == [B, S * 2, -1]
    product = value_of(ops.prod(shape, axes=(0,)))
    assert product is not None and product.tolist() == B * S * 12
    scalar = value_of(ops.dims(values=(B + 1,), scalar=True))
    assert scalar is not None and scalar.shape == () and scalar.item() == B + 1


def test_values_that_are_known_only_at_run_time() -> None:
    shape = ops.shape_of(var(B, S))
    first, second = ops.gather(shape, ints(0)), ops.gather(shape, ints(1))
    assert value_of(ops.equal(first, ints(3))) is None
    assert value_of(ops.less(first, second)) is None
    assert value_of(var(3, dtype="int64")) is None
    assert value_of(ops.add(var(1, dtype="int64"), first)) is None
    assert value_of(ops.full(shape=(10**9,), value=0, dtype="int64")) is None
    decided = value_of(ops.where(ops.equal(first, ints(-1)), ints(7), first))
    assert decided is not None and decided.tolist() == [B]
    greatest = value_of(ops.maximum(second, ints(2)))
    assert greatest is not None and greatest.tolist() == [S]
