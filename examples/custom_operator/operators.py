"""Two operators of a project's own: a tensor expression, which fuses with its neighbours, and a C file with a CUDA file beside it."""

from pathlib import Path

import numpy as np
from tvm import te, tirx

from aotc import CustomOperator, TensorType


def shrink(x: te.Tensor, bias: float) -> te.Tensor:
    """Soft shrinkage: towards zero by ``bias``."""
    return te.compute(x.shape, lambda *i: tirx.max(x(*i) - bias, 0.0) + tirx.min(x(*i) + bias, 0.0))


soft_shrink = CustomOperator("example::soft_shrink", shape=lambda x, **_: x, expression=shrink, fusion="elementwise")

row_energy = CustomOperator(
    "example::row_energy",
    shape=lambda x, power: TensorType(x.shape[:-1], x.dtype),
    source=Path(__file__).with_name("row_energy.c"),
    cuda=Path(__file__).with_name("row_energy.cu"),
    tasks=lambda x, power: x.shape[0],
    attributes={"power": 2},
    reference=lambda x, power: np.sum(np.abs(x) ** power, axis=-1, dtype=x.dtype),
)
