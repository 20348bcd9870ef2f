"""A fused function to CUDA kernels: tensor expressions, launches, CUDA C, cubins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_walk

from aotc.ir.dims import Dim
from aotc.ir.expr import Function
from aotc.ir.types import TensorType
from aotc.lowering.bits import over_bits
from aotc.lowering.compiled import CompiledFunction, CudaKernel, Operand, Selection
from aotc.lowering.cuda import nvrtc
from aotc.lowering.cuda.cubin import figures
from aotc.lowering.cuda.source import cuda_source
from aotc.lowering.identity import function_flops, function_key, function_label
from aotc.lowering.kernel import anchor_of, check_sizes
from aotc.lowering.scope import DimScope
from aotc.lowering.tensors import tensor_graph
from aotc.targets import Target
from aotc.targets.base import Gpu
from aotc.targets.schedules.choices import Choices
from aotc.targets.schedules.cuda import Launch, launches_of
from aotc.targets.schedules.cuda.work import Work

Cubins = tuple[tuple[int, bytes], ...]

_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")


@dataclass(frozen=True, slots=True)
class NotOnCuda:
    """No schedule applies; ``reason`` says why."""

    reason: str


def lower_function(function: Function, target: Target, selection: Selection | None = None) -> CompiledFunction | NotOnCuda:
    """CUDA kernels for a primitive function, as ``aotc.lowering.kernel.lower_function`` gives machine code of the CPU.

    Raises BuildError, which names the function's origin, where it cannot be lowered at all.
    """
    assert target.gpu is not None
    check_sizes(function)
    symbol = f"{function_label(function)}_{function_key(function, target, None, selection)[:16]}"
    scope, choices = DimScope(), Choices(selection or {})
    narrow = over_bits(function)
    work = Work(tensor_graph(narrow, scope), scope, target, target.gpu, narrow, anchor_of(narrow), choices)
    program, launches = launches_of(work)
    if any(_keeps_arrays(launch) for launch in launches):
        return NotOnCuda("its loops keep arrays of several dims, for which there is no CUDA schedule")
    used = set().union(*map(_used, launches))
    scratch = [buffer for buffer in program.allocated if buffer in used]  # what a launch passes on in registers needs none
    inputs = len(function.params)
    operands: list[Operand] = [("input", i) for i in range(inputs)]
    operands += [("output", i) for i in range(len(program.params) - inputs)]
    operands += [("scratch", i) for i in range(len(scratch))]
    buffers = dict(zip([*program.params, *scratch], operands, strict=True))
    kernels = []
    for i, launch in enumerate(launches):
        name = symbol if len(launches) == 1 else f"{symbol}_{i}"
        flops = function_flops(function) if i == len(launches) - 1 else 0
        kernels.append(_kernel(launch, buffers, scope, name, target.gpu, flops))
    tensors = [TensorType(tuple(scope.dim(extent) for extent in buffer.shape), str(buffer.dtype)) for buffer in scratch]
    return CompiledFunction(tuple(kernels), tuple(tensors), tuple(choices.offered.items()))


def _kernel(launch: Launch, buffers: dict[tirx.Buffer, Operand], scope: DimScope, symbol: str, gpu: Gpu, flops: Dim) -> CudaKernel:
    used = _used(launch)
    written = _written(launch)
    order = [buffer for buffer in buffers if buffer in used and buffer not in written]
    order += [buffer for buffer in buffers if buffer in used and buffer in written]
    dims = [(var, dim) for var, dim in zip(scope.vars, scope.dims, strict=True) if var in used]
    source, cubins = _compiled(cuda_source(launch, order, [var for var, _ in dims], symbol, gpu), symbol, gpu)
    ptx = nvrtc.ptx(source, symbol, gpu)
    return CudaKernel(
        symbol=symbol,
        source=source,
        cubins=cubins,
        operands=tuple(buffers[buffer] for buffer in order),
        outputs=sum(buffer in written for buffer in order),
        grid=(scope.dim(launch.blocks), 1, 1),
        block=(launch.threads, 1, 1),
        dims=tuple(dim for _, dim in dims),
        shared_bytes=launch.shared_bytes,
        flops=flops,
        ptx=ptx,
    )


def _used(launch: Launch) -> set[Any]:
    """Buffers and dims."""
    return set(tirx.analysis.undefined_vars(launch.body)) | set(tirx.analysis.undefined_vars(tirx.Evaluate(launch.blocks)))


def _compiled(source: str, symbol: str, gpu: Gpu) -> tuple[str, Cubins]:
    """Machine code, and the source that it was made from: where the compiler spills registers to have more blocks side by side, it is
    told that one is enough, and what spills less is taken."""
    cubins = _cubins(source, symbol, gpu)
    if not _spilled(cubins):
        return source, cubins
    alone = _LAUNCH_BOUNDS.sub(r"__launch_bounds__(\1, 1)", source)
    others = _cubins(alone, symbol, gpu)
    return (alone, others) if _spilled(others) < _spilled(cubins) else (source, cubins)


def _cubins(source: str, symbol: str, gpu: Gpu) -> Cubins:
    return tuple((sm, nvrtc.cubin(source, symbol, sm, gpu.cuda)) for sm in gpu.sm)


def _spilled(cubins: Cubins) -> int:
    return sum(kernel.local_bytes for _, cubin in cubins for kernel in figures(cubin))


def _keeps_arrays(launch: Launch) -> bool:
    """Whether a launch allocates a buffer of several dims, as operators that are written as loops may."""
    found: list[int] = []
    structural_walk(launch.body, (tirx.AllocBuffer, lambda alloc: found.append(len(alloc.buffer.shape))))
    return any(rank != 1 for rank in found)


def _written(launch: Launch) -> set[tirx.Buffer]:
    """The buffers that a launch stores to: elements, or what it hands to a named function as the target."""
    found: set[tirx.Buffer] = set(launch.written)
    structural_walk(launch.body, (tirx.BufferStore, lambda store: found.add(store.buffer)))
    return found
