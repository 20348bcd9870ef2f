"""Products of bfloat16 take their operands as they are, where a GPU multiplies them."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import targets
from aotc.ir.expr import Module
from aotc.passes.fuse_operators import fuse_operators
from aotc.passes.join_bfloats import join_bfloats
from aotc.passes.options import options_for
from tests.passes.helpers import agree, fused, module, weight

ORIN, XAVIER = (options_for(targets.get(board)) for board in ("jetson-orin", "jetson-xavier"))
EXACT = weight(6, 4).astype("bfloat16").astype(np.float32)


def _layer(data: np.ndarray) -> Module:
    return module(
        '(%x: bfloat16[3, 4]) {\n %0 = cast(%x) {dtype="float32"}\n %1 = dense(%0, $w)\n %2 = cast(%1) {dtype="bfloat16"}\n return %2\n}',
        {"w": data},
    )


def test_weights_that_were_bfloats() -> None:
    before = _layer(EXACT)
    after = join_bfloats(before, ORIN)
    agree(before, after)
    assert join_bfloats(after, ORIN) is after
    assert fused(fuse_operators(after, ORIN)) == ["cast_cast_dense_cast"]


@pytest.mark.parametrize(("data", "options"), [(weight(6, 4), ORIN), (EXACT, XAVIER)])
def test_what_stays(data: np.ndarray, options: object) -> None:
    """Weights with more bits, and GPUs without tensor cores for bfloat16."""
    before = _layer(data)
    assert join_bfloats(before, options) is before  # type: ignore[arg-type]
    assert "cast" in fused(fuse_operators(before, XAVIER))


def test_several_products_of_one_value() -> None:
    """Each reads it; casts behind what only moves elements stand before it afterwards."""
    text = (
        '(%x: bfloat16[4, 6]) {\n %0 = cast(%x) {dtype="float32"}\n %1 = transpose(%0) {axes=(1, 0)}\n %2 = matmul(%0, %1)\n'
        " %3 = dense(%0, $w)\n %4 = (%2, %3)\n return %4\n}"
    )
    before = module(text, {"w": weight(5, 6).astype("bfloat16").astype(np.float32)})
    after = join_bfloats(before, ORIN)
    agree(before, after)
    assert sorted(fused(fuse_operators(after, ORIN))) == ["cast_cast_dense", "cast_cast_matmul", "transpose"]
