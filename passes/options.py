"""What passes may ask of the target, and which of them to leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotc.ir.expr import Call
from aotc.targets.base import Target

Pick = Callable[[Call, Sequence[str]], str]
"""Which of several algorithms computes a call, of those offered in the order of their estimated time."""


def first(node: Call, algorithms: Sequence[str]) -> str:
    """What is estimated to be the fastest."""
    return algorithms[0]


@dataclass(frozen=True)
class Options:
    """``channel_block`` is the number of channels that stand together in blocked layouts, 0 for none; ``dense_block`` the
    number of outputs in a block of packed dense weights, 0 for none; ``recurrent_block`` the same for recurrent weights, at most.
    ``target`` is the machine with whose numbers times are estimated, ``None`` for no estimates. ``skip`` names passes to leave
    out; ``verify`` checks the module after each pass; without ``fuse`` each call is a kernel of its own. ``panel`` is the number
    of output blocks of a convolution whose weights stand together, at most. ``fill_input`` says whether a first layer's few channels
    are filled up to a power of two, so that a pixel's are one access; ``merge_products`` whether dense layers of one input become one. ``pick`` chooses the algorithm of a call that has several. ``precision`` is ``fp32``, or ``fp16`` where float32 values become halves."""

    channel_block: int = 8
    dense_block: int = 16
    recurrent_block: int = 8
    target: Target | None = None
    skip: frozenset[str] = frozenset()
    verify: bool = False
    fuse: bool = True
    panel: int = 1
    fill_input: bool = False
    merge_products: bool = False
    pick: Pick = first
    precision: str = "fp32"


GPU_CHANNELS = 8
"""Channels that stand together for a GPU: 16 bytes of halves, which is what its threads move at once."""


def options_for(target: Target, skip: frozenset[str] = frozenset(), verify: bool = False, pick: Pick = first) -> Options:
    """The options that suit a target: a channel block of one vector; dense blocks of two vectors, so that each element of x
    that is loaded is used twice; recurrent blocks of one, which has several gates, or of four short ones: what a step reads then
    lies side by side, and loads go in pairs; panels of the blocks in a register tile. For a GPU, blocks that its threads move."""
    if target.gpu is not None:
        return Options(GPU_CHANNELS, target=target, skip=skip, verify=verify, fill_input=True, merge_products=True)
    lanes = target.lanes("float32")
    panel = 4 if target.vector_registers >= 32 else 2
    return Options(lanes, max(8, 2 * lanes), lanes if lanes >= 8 else 4 * lanes, target, skip, verify, panel=panel, pick=pick)
