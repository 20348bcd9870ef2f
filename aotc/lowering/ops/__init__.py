"""Tensor expressions: what each operator computes, said once for all schedules. One file per family, as in ``aotc.ops``."""

from __future__ import annotations

from aotc.lowering.ops import (
    attention,
    byte_products,
    calibration,
    conv,
    elementwise,
    fold,
    index,
    linear,
    norm,
    pool,
    quantise,
    random,
    recurrent,
    reduce,
    resize,
    sampling,
    select,
    shape,
    signal,
    small,
    tree,
    winograd,
)
from aotc.lowering.ops.common import Expression

FAMILIES = (
    elementwise,
    small,
    quantise,
    byte_products,
    linear,
    attention,
    conv,
    winograd,
    pool,
    norm,
    reduce,
    shape,
    index,
    resize,
    sampling,
    select,
    fold,
    signal,
    calibration,
    tree,
    random,
    recurrent,
)


def _joined() -> dict[str, Expression]:
    joined: dict[str, Expression] = {}
    for family in FAMILIES:
        twice = joined.keys() & family.EXPRESSIONS.keys()
        if twice:
            raise ValueError(f"operators with two tensor expressions: {', '.join(sorted(twice))}")
        joined.update(family.EXPRESSIONS)
    return joined


EXPRESSIONS: dict[str, Expression] = _joined()
