"""Tiles of recurrent layers: rows of the batch that share each weight they read, and vectors of units summed together."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx

from aotc.lowering.ops import recurrent
from aotc.ops.base import OpDef
from aotc.ops.recurrent import GATES, gru, lstm, rnn
from aotc.targets.base import Target
from aotc.targets.schedules.base import SCRATCH, Direct, DirectWork
from aotc.targets.schedules.emit import const, known, product
from aotc.targets.schedules.fused import prim_func
from aotc.targets.schedules.tile import Tile
from aotc.targets.schedules.tile_sums import by_element

TASKS = 4
"""Tasks that a batch should still make where rows share weights."""
ROWS = 4
"""Rows that share weights where there are many."""
ROUND_WORK = 1 << 16
"""Multiply-adds of a step from which on threads share it: to wait for one another takes them about as long as 10 000."""


def layer(op: OpDef, work: DirectWork) -> tirx.PrimFunc | None:
    func = work.graph.prim_func()
    params = [param for param in func.params if tirx.is_buffer_var(param)]
    inputs = [params[list(work.function.params).index(arg)] for arg in work.anchor.args]  # type: ignore[arg-type]
    gates = inputs[0]
    units = int(known(gates.shape[2]) or 0) // GATES[op]
    scratch = [
        tirx.decl_buffer((gates.shape[1], const(width)), str(gates.dtype), f"{SCRATCH}{name}")
        for name, width in recurrent.scratch_widths(op, work.anchor.attrs, units, int(known(inputs[2].shape[1]) or 0)).items()
    ]
    dtype = str(gates.dtype)
    rows, macs = known(gates.shape[1]), int(known(product(inputs[1].shape)) or 0)
    shared = recurrent.has_one_phase(op, work.anchor.attrs) and rows is not None and 0 < rows < TASKS and rows * macs >= ROUND_WORK
    tile = choose(work.target, GATES[op], rows, work.anchor.attrs, rows if shared else None)
    cut = recurrent.Cut(tile, work.target.lanes(dtype), by_element(work.target, dtype), shared)
    outputs = params[len(work.function.params) :]
    return prim_func(params, recurrent.kernel(op, work.anchor.attrs, inputs, outputs, scratch, cut), scratch)


def choose(target: Target, gates: int, rows: int | None, attrs: Any, together: int | None = None) -> Tile:
    """Half the registers for sums, at most: eight hide the latency of a multiply-add, and more need fewer loads of the state. All
    rows ``together`` share weights, if any."""
    room = max(1, target.vector_registers // 2 // gates)
    share = together or (1 if attrs.lengths else min(ROWS, room, 2 if rows is None else max(1, rows // TASKS)))
    return Tile(max(1, room // share), share)


DIRECT: dict[str, tuple[Direct, ...]] = {op.name: (partial(layer, op),) for op in (lstm, gru, rnn)}
