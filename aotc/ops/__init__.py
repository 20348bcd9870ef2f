"""All operators. ``ops.relu(x, origin="conv1")`` builds a typed call; ``ALL`` has every operator by its name."""

from __future__ import annotations

from types import ModuleType

from aotc.ops import attention as attention_family
from aotc.ops import byte_products as byte_family
from aotc.ops import (
    calibration,
    elementwise,
    index,
    linear,
    norm,
    pool,
    random,
    recurrent,
    reduce,
    sampling,
    select,
    shape,
    signal,
    small,
    tree,
)
from aotc.ops import conv as conv_family
from aotc.ops import fold as fold_family
from aotc.ops import quantise as quantise_family
from aotc.ops import resize as resize_family
from aotc.ops import winograd as winograd_family
from aotc.ops.attention import attention as attention
from aotc.ops.base import Fusion as Fusion
from aotc.ops.base import OpDef as OpDef
from aotc.ops.byte_products import *  # noqa: F403
from aotc.ops.calibration import fake_quantise as fake_quantise
from aotc.ops.calibration import observe as observe
from aotc.ops.conv import conv as conv
from aotc.ops.conv import conv_transpose as conv_transpose
from aotc.ops.elementwise import *  # noqa: F403
from aotc.ops.fold import fold as fold
from aotc.ops.index import *  # noqa: F403
from aotc.ops.linear import *  # noqa: F403
from aotc.ops.norm import batch_norm as batch_norm
from aotc.ops.norm import group_norm as group_norm
from aotc.ops.norm import instance_norm as instance_norm
from aotc.ops.norm import layer_norm as layer_norm
from aotc.ops.norm import lrn as lrn
from aotc.ops.norm import rms_norm as rms_norm
from aotc.ops.pool import adaptive_avg_pool as adaptive_avg_pool
from aotc.ops.pool import adaptive_max_pool as adaptive_max_pool
from aotc.ops.pool import avg_pool as avg_pool
from aotc.ops.pool import max_pool as max_pool
from aotc.ops.pool import max_pool_with_indices as max_pool_with_indices
from aotc.ops.quantise import dequantise as dequantise
from aotc.ops.quantise import integer_conv as integer_conv
from aotc.ops.quantise import integer_matmul as integer_matmul
from aotc.ops.quantise import integer_sum as integer_sum
from aotc.ops.quantise import look_up as look_up
from aotc.ops.quantise import quantise as quantise
from aotc.ops.quantise import requantise as requantise
from aotc.ops.random import random_bits as random_bits
from aotc.ops.recurrent import *  # noqa: F403
from aotc.ops.reduce import *  # noqa: F403
from aotc.ops.resize import resize as resize
from aotc.ops.sampling import *  # noqa: F403
from aotc.ops.select import *  # noqa: F403
from aotc.ops.shape import *  # noqa: F403
from aotc.ops.signal import *  # noqa: F403
from aotc.ops.small import *  # noqa: F403
from aotc.ops.tree import *  # noqa: F403
from aotc.ops.winograd import winograd_conv as winograd_conv


def _join(*families: ModuleType) -> dict[str, OpDef]:
    joined: dict[str, OpDef] = {}
    for family in families:
        for operator in vars(family).values():
            if not isinstance(operator, OpDef):
                continue
            if joined.get(operator.name, operator) is not operator:
                raise ValueError(f"two operators are named {operator.name!r}; the second is in {family.__name__}")
            joined[operator.name] = operator
    return joined


ALL: dict[str, OpDef] = _join(
    elementwise,
    small,
    quantise_family,
    byte_family,
    linear,
    attention_family,
    conv_family,
    winograd_family,
    pool,
    norm,
    reduce,
    shape,
    index,
    resize_family,
    sampling,
    select,
    fold_family,
    signal,
    calibration,
    tree,
    random,
    recurrent,
)
