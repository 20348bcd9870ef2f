"""Handwritten plans with steps of a GPU. The kernels are those of csrc/fake_cuda.c, and of csrc/kernels.c for the host."""

from __future__ import annotations

from dataclasses import replace

from aotc.ir.dims import Dim, symbol
from aotc.lowering.plan import (  # fmt: skip
    Buffer,
    Cubin,
    CudaKernel,
    EntryPoint,
    ExecutionPlan,
    Memory,
    State,
    Step,
    StepKind,
    Storage,
    Symbol,
    TensorSpec,
    Value,
)
from tests.runtime.kernels import BIAS_RELU, F32, SCALE

CUBINS = b"fake cubin".ljust(64, b"\0") + b"fake cubin".ljust(64, b"\0")
DEVICE_WEIGHTS = 96
_CUBINS = (Cubin(72, 0, 64), Cubin(87, 64, 64))
_KERNELS = tuple(CudaKernel(name, 3, 1, (32, 1, 1), 64 << 10, (0, 1)) for name in ("c_scale", "c_bias_relu", "c_add"))
_SCALE, _BIAS_RELU, _ADD = range(3)
_HOST = (SCALE, BIAS_RELU)

DEVICE, SHARED = Memory.DEVICE, Memory.SHARED


def _launch(kernel: int, *arguments: int, rows: Dim, source: str = "layer") -> Step:
    return Step(StepKind.LAUNCH, arguments, 1, kernel, (8, rows, 1, 1), source=source, label=_KERNELS[kernel].symbol)


def _kernel(kernel: int, *arguments: int, rows: Dim, source: str = "host") -> Step:
    return Step(StepKind.KERNEL, arguments, 1, kernel, (8,), rows, source, _HOST[kernel].symbol)


def _to_device(*values: int) -> Step:
    return Step(StepKind.TO_DEVICE, values, 0, label="to device")


def _to_host(*values: int) -> Step:
    return Step(StepKind.TO_HOST, values, 0, label="to host")


def _deliver(*values: int, on_device: bool = True) -> Step:
    return Step(StepKind.DELIVER, values, 0, label="deliver", target=int(on_device))


def _plan(*entries: EntryPoint, states: tuple[State, ...] = ()) -> ExecutionPlan:
    return ExecutionPlan(entries, _HOST, states, _KERNELS, _CUBINS, DEVICE_WEIGHTS)


def _entry(
    name: str, rows: Dim, inputs: tuple[str, ...], outputs: tuple[str, ...], values: tuple[Value, ...], buffers: tuple[Buffer, ...],
    steps: tuple[Step, ...],
) -> EntryPoint:  # fmt: skip
    fixed = isinstance(rows, int)
    size = max(
        (b.offset + b.size for b in buffers if b.memory is Memory.HOST and b.offset is not None and isinstance(b.size, int)), default=0
    )
    return EntryPoint(
        name,
        tuple(TensorSpec(each, F32, (rows, 8)) for each in inputs),
        tuple(TensorSpec(each, F32, (rows, 8)) for each in outputs),
        values,
        buffers if fixed else tuple(replace(buffer, offset=None) for buffer in buffers),
        steps,
        size if fixed else None,
        None,
        () if fixed else (Symbol("rows", 0, 64, 0, 0),),
    )


def _mixed_entry(name: str, rows: Dim) -> EntryPoint:
    """y = relu(x * w + b) on the device; z = x * w^4, whose third factor the host multiplies, in memory of its own."""
    values = (
        Value(F32, (rows, 8), Storage.INPUT),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        Value(F32, (rows, 8), Storage.ARENA, 0),
        Value(F32, (8,), Storage.WEIGHT, 0, 64),
        Value(F32, (rows, 8), Storage.OUTPUT, 0),
        Value(F32, (rows, 8), Storage.ARENA, 1),
        Value(F32, (rows, 8), Storage.ARENA, 2),
        Value(F32, (rows, 8), Storage.OUTPUT, 1),
        Value(F32, (rows, 8), Storage.ARENA, 3),
    )
    size = rows * 32
    buffers = (Buffer(size, 1, 3, 0, DEVICE), Buffer(size, 3, 5, 0, SHARED), Buffer(size, 6, 8, 128, SHARED), Buffer(size, 5, 6, 0))
    steps = (
        _to_device(0),
        _launch(_SCALE, 0, 1, 2, rows=rows),
        _launch(_BIAS_RELU, 2, 3, 4, rows=rows),
        _launch(_SCALE, 2, 1, 5, rows=rows),
        _to_host(5),
        _kernel(0, 5, 1, 8, rows=rows),
        Step(StepKind.COPY, (8, 6), 1, label="copy"),
        _to_device(6),
        _launch(_SCALE, 6, 1, 7, rows=rows),
        _deliver(4, 7),
    )
    return _entry(name, rows, ("x",), ("y", "z"), values, buffers, steps)


def _host_entry(name: str, rows: Dim) -> EntryPoint:
    """The same on the host."""
    values = (
        Value(F32, (rows, 8), Storage.INPUT),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        *(Value(F32, (rows, 8), Storage.ARENA, number) for number in range(3)),
        Value(F32, (8,), Storage.WEIGHT, 0, 64),
        Value(F32, (rows, 8), Storage.OUTPUT, 0),
        Value(F32, (rows, 8), Storage.OUTPUT, 1),
    )
    size = rows * 32
    buffers = (Buffer(size, 0, 2, 0), Buffer(size, 2, 3, 128), Buffer(size, 3, 4, 256))
    steps = (
        _kernel(0, 0, 1, 2, rows=rows),
        _kernel(1, 2, 5, 6, rows=rows),
        _kernel(0, 2, 1, 3, rows=rows),
        _kernel(0, 3, 1, 4, rows=rows),
        _kernel(0, 4, 1, 7, rows=rows),
    )
    return _entry(name, rows, ("x",), ("y", "z"), values, buffers, steps)


def cuda() -> ExecutionPlan:
    return _plan(_mixed_entry("main", 4))


def cuda_rows() -> ExecutionPlan:
    """For any number of rows."""
    return _plan(_mixed_entry("main", symbol("rows", 0, 64)))


def cuda_or_host() -> ExecutionPlan:
    return _plan(replace(_mixed_entry("main", 4), fallback=1), _host_entry("main", 4))


def cuda_turns() -> ExecutionPlan:
    """y = x * w + x * w * w: the host writes both factors of w into the same shared memory, one after the other."""
    rows = 4
    values = (
        Value(F32, (rows, 8), Storage.INPUT),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        *(Value(F32, (rows, 8), Storage.ARENA, number) for number in range(4)),
        Value(F32, (rows, 8), Storage.OUTPUT, 0),
    )
    buffers = (Buffer(128, 1, 3, 0, SHARED), Buffer(128, 3, 7, 0, DEVICE), Buffer(128, 4, 6, 0, SHARED), Buffer(128, 6, 7, 128, DEVICE))
    steps = (
        _to_host(0),
        Step(StepKind.COPY, (0, 2), 1, label="copy"),
        _to_device(2),
        _launch(_SCALE, 2, 1, 3, rows=rows),
        _kernel(0, 0, 1, 4, rows=rows),
        _to_device(4),
        _launch(_SCALE, 4, 1, 5, rows=rows),
        _launch(_ADD, 3, 5, 6, rows=rows),
        _deliver(6),
    )
    return _plan(_entry("main", rows, ("x",), ("y",), values, buffers, steps))


def cuda_states() -> ExecutionPlan:
    """total += x on the device, and y = total; `read` gives it from the host, `twice` twice the total from the device."""
    values = (
        Value(F32, (1, 8), Storage.INPUT),
        Value(F32, (1, 8), Storage.STATE, 0),
        Value(F32, (1, 8), Storage.ARENA, 0),
        Value(F32, (1, 8), Storage.OUTPUT, 0),
    )
    steps = (
        _to_device(0, 1),
        _launch(_ADD, 0, 1, 2, rows=1),
        Step(StepKind.DEVICE_COPY, (2, 1), 1, label="copy"),
        Step(StepKind.DEVICE_COPY, (2, 3), 1, label="copy"),
        _to_host(1),
        _deliver(3),
    )
    add = _entry("add", 1, ("x",), ("y",), values, (Buffer(32, 1, 3, 0, DEVICE),), steps)
    read_values = (Value(F32, (1, 8), Storage.STATE, 0), Value(F32, (1, 8), Storage.OUTPUT, 0))
    read = _entry("read", 1, (), ("y",), read_values, (), (Step(StepKind.COPY, (0, 1), 1, label="copy"),))
    twice_values = (Value(F32, (1, 8), Storage.STATE, 0), Value(F32, (1, 8), Storage.STATE, 0), Value(F32, (1, 8), Storage.OUTPUT, 0))
    twice_steps = (_to_device(0), _launch(_ADD, 0, 1, 2, rows=1), _deliver(2))
    twice = _entry("twice", 1, (), ("y",), twice_values, (), twice_steps)
    return _plan(add, read, twice, states=(State("total", F32, (1, 8), 64),))


CUDA_MODELS = {
    "cuda": cuda,
    "cuda_rows": cuda_rows,
    "cuda_or_host": cuda_or_host,
    "cuda_turns": cuda_turns,
    "cuda_states": cuda_states,
}
