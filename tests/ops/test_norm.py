"""Normalisations against torch; half precision against float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from aotc.errors import InvalidModel
from aotc.ir.expr import Var
from aotc.ir.types import TensorType, tensor
from aotc.ops.norm import batch_norm, group_norm, instance_norm, layer_norm, lrn, rms_norm

RNG = np.random.default_rng(4)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(op, *arrays: np.ndarray, **attributes) -> np.ndarray:  # type: ignore[no-untyped-def]
    expression = op(*(Var("v", TensorType(a.shape, str(a.dtype))) for a in arrays), **attributes)
    result = op.reference(expression.attrs, *arrays)
    assert expression.type == TensorType(result.shape, str(result.dtype))
    return result


def close(result: np.ndarray, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(result, expected.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (3, 6), (1, 2, 1), (2, 4, 3, 2, 2), (0, 6, 2, 2)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta, mean = random(*shape), random(shape[1]), random(shape[1]), random(shape[1])
    var = np.abs(random(shape[1]))
    expected = functional.batch_norm(*map(torch.from_numpy, (x, mean, var, gamma, beta)), eps=1e-3)
    close(run(batch_norm, x, gamma, beta, mean, var, epsilon=1e-3), expected)


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_layer_and_rms_norm(axis: int) -> None:
    x = random(3, 4, 5)
    shape = x.shape[axis:]
    gamma, beta = random(*shape), random(*shape)
    tensors = list(map(torch.from_numpy, (x, gamma, beta)))
    close(run(layer_norm, x, gamma, beta, axis=axis, epsilon=1e-4), functional.layer_norm(tensors[0], shape, *tensors[1:], 1e-4))
    close(run(rms_norm, x, gamma, axis=axis, epsilon=1e-4), functional.rms_norm(tensors[0], shape, tensors[1], 1e-4))


@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (3, 6), (2, 6, 7)])
def test_group_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta = random(*shape), random(6), random(6)
    for groups in (1, 2, 6):
        if len(shape) == 2 and groups == 6:
            continue  # torch refuses one value a group
        expected = functional.group_norm(torch.from_numpy(x), groups, torch.from_numpy(gamma), torch.from_numpy(beta), 1e-4)
        close(run(group_norm, x, gamma, beta, groups=groups, epsilon=1e-4), expected)


@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (2, 6, 7), (1, 6, 2, 3, 2)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta = random(*shape), random(6), random(6)
    expected = functional.instance_norm(torch.from_numpy(x), weight=torch.from_numpy(gamma), bias=torch.from_numpy(beta), eps=1e-4)
    close(run(instance_norm, x, gamma, beta, epsilon=1e-4), expected)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_lrn(size: int) -> None:
    x = random(2, 7, 3, 4)
    # torch pads size // 2 before, ONNX (size - 1) // 2: they are the same for an odd size, and mirrored for an even one.
    flipped = torch.from_numpy(x).flip(1) if size % 2 == 0 else torch.from_numpy(x)
    expected = functional.local_response_norm(flipped, size, alpha=0.3, beta=0.6, k=1.5)
    close(run(lrn, x, size=size, alpha=0.3, beta=0.6, bias=1.5), expected.flip(1) if size % 2 == 0 else expected)


def test_case_27_float16_statistics_stay_finite() -> None:
    wide = RNG.uniform(300, 5000, (4, 768)).astype(np.float16)
    gamma, beta = np.ones(768, np.float16), np.zeros(768, np.float16)
    result = run(layer_norm, wide, gamma, beta, axis=-1)
    assert result.dtype == np.float16 and np.isfinite(result).all()
    expected = functional.layer_norm(torch.from_numpy(wide.astype(np.float32)), (768,))
    np.testing.assert_allclose(result.astype(np.float32), expected.numpy(), rtol=2e-3, atol=2e-3)
    assert np.isfinite(run(rms_norm, wide, gamma, axis=-1)).all()
    assert np.isfinite(run(group_norm, wide.reshape(4, 8, 96), gamma[:8], beta[:8], groups=2)).all()


def test_what_does_not_fit_is_refused() -> None:
    x = Var("x", tensor("float32", 2, 6, 4))
    six, five = Var("six", tensor("float32", 6)), Var("five", tensor("float32", 5))
    with pytest.raises(InvalidModel, match=r"mean must have shape \[6\] for data float32\[2, 6, 4\], not \[5\]"):
        batch_norm(x, six, six, five, six)
    with pytest.raises(InvalidModel, match="do not divide into 4 groups"):
        group_norm(x, six, six, groups=4)
    with pytest.raises(InvalidModel, match="axis 3 is not in a tensor of rank 3"):
        layer_norm(x, six, six, axis=3)
    with pytest.raises(InvalidModel, match="one dtype"):
        layer_norm(x, six, Var("half", tensor("float16", 6)), axis=1)
