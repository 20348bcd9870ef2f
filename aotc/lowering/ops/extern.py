"""Operators written as loops where a tensor expression cannot say them: running sums, sorting, scattering.

The body's outermost loop is parallel: its iterations are the kernel's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from aotc.ir.dims import Dim, bounds, ceildiv, product
from aotc.lowering.ops.common import Expr, Scope, unravel

TASK_ELEMENTS = 16384
"""Elements that a task handles at least, where there are as many: waking a thread costs some microseconds."""


def extern(
    inputs: Sequence[te.Tensor], shapes: Sequence[tuple[Sequence[Expr], str]], body: Callable[..., None], name: str
) -> list[te.Tensor]:
    """Tensors computed by ``body(*inputs, *outputs)``, which emits statements; ``shapes`` are (extents, dtype) of the outputs."""

    def emit(sources: list[tirx.Buffer], targets: list[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as builder:
            body(*[T.buffer_proxy(b) for b in sources], *[T.buffer_proxy(b) for b in targets])
            return builder.get()

    result = te.extern(
        [tuple(shape) for shape, _ in shapes],
        list(inputs),
        emit,
        name=name,
        in_buffers=[tirx.decl_buffer(t.shape, t.dtype, f"in{i}") for i, t in enumerate(inputs)],
        out_buffers=[tirx.decl_buffer(shape, dtype, f"out{i}") for i, (shape, dtype) in enumerate(shapes)],
    )
    return list(result) if isinstance(result, (list, tuple)) else [result]


def rows_per_task(length: Dim) -> int:
    """How many rows of ``length`` elements make a task worth its start."""
    low, high = bounds(length)
    typical = int(length) if isinstance(length, int) else high if high is not None else max(low or 0, 256)
    return max(1, TASK_ELEMENTS // max(typical, 1))


@contextmanager
def rows(scope: Scope, shape: Sequence[Dim], length: Dim) -> Iterator[list[Expr]]:
    """A loop over all index tuples of ``shape``, in tasks of some rows of ``length`` elements each."""
    total, chunk = product(shape), rows_per_task(length)
    extents = [scope.expr(dim) for dim in shape]
    with T.parallel(0, scope.expr(ceildiv(total, chunk))) as task:
        left = scope.expr(total) - task * chunk
        with T.serial(0, tirx.min(tirx.const(chunk, "int32"), left)) as step:
            yield unravel(task * chunk + step, extents)


def local(dtype: str) -> Any:
    """A scalar variable, read and written as ``[0]``."""
    return T.buffer_proxy(T.decl_buffer([1], dtype))
