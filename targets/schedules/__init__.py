"""TIR schedules for CPUs, chosen by the operator that a fused function is built around.

``RULES`` lists, per operator, the rules to try first; ``GENERIC`` the rules for everything, the last of which always
applies. ``DIRECT`` lists kernels written as TIR, tried before all of these.
"""

from __future__ import annotations

from aotc.targets.schedules import attention, byte_conv, byte_depthwise, byte_matmul, conv, generic, matmul, plain_conv, recurrent, winograd
from aotc.targets.schedules.base import Direct, DirectWork, Rule, Work

RULES: dict[str, tuple[Rule, ...]] = {}

GENERIC: tuple[Rule, ...] = (generic.schedule,)

DIRECT: dict[str, tuple[Direct, ...]] = {
    **matmul.DIRECT,
    **attention.DIRECT,
    **plain_conv.DIRECT,
    **recurrent.DIRECT,
    **winograd.DIRECT,
    **byte_conv.DIRECT,
    **byte_depthwise.DIRECT,
    **byte_matmul.DIRECT,
    "conv": (*conv.DIRECT["conv"], *plain_conv.DIRECT["conv"]),
    "integer_matmul": matmul.DIRECT["matmul"],
    "integer_conv": plain_conv.DIRECT["conv"],
}


def rules_for(operator: str) -> tuple[Rule, ...]:
    """The rules to try, in order, for a function built around ``operator``."""
    return (*RULES.get(operator, ()), *GENERIC)


__all__ = ["DIRECT", "GENERIC", "RULES", "Direct", "DirectWork", "Rule", "Work", "rules_for"]
