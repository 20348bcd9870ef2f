"""All operators. ``ops.relu(x, origin="conv1")`` builds a typed call; ``ALL`` has every operator by its name."""

from __future__ import annotations

from types import ModuleType

from aotc.ops import elementwise, index, linear, reduce, shape
from aotc.ops.base import Fusion as Fusion
from aotc.ops.base import OpDef as OpDef
from aotc.ops.elementwise import *  # noqa: F403
from aotc.ops.index import *  # noqa: F403
from aotc.ops.linear import *  # noqa: F403
from aotc.ops.reduce import *  # noqa: F403
from aotc.ops.shape import *  # noqa: F403


def _join(*families: ModuleType) -> dict[str, OpDef]:
    joined: dict[str, OpDef] = {}
    for family in families:
        for operator in (getattr(family, name) for name in family.__all__):
            if operator.name in joined:
                raise ValueError(f"two operators are named {operator.name!r}; the second is in {family.__name__}")
            joined[operator.name] = operator
    return joined


ALL: dict[str, OpDef] = _join(elementwise, linear, reduce, shape, index)
