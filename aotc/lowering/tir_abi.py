"""Scheduled TIR to object code with a plain C signature: no TVM runtime, no packed arguments, no hooks.

    int32_t kernel(void *buffer..., int32_t dim..., int32_t begin, int32_t end)      0 is success

A scheduled function is a sequence of loop nests at its root. Each becomes a kernel of its own: its outermost parallel loop
is the task range [begin, end), and the tensors that pass between nests become scratch parameters. So the objects need
neither of TVM's hooks (parallel launch, workspace), which ``object_file.check_symbols`` makes sure of.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import pipeline
from tvm.tirx.stmt import ForKind
from tvm_ffi.structural import structural_map, structural_walk

from aotc.cache_dir import cache_dir
from aotc.errors import BuildError
from aotc.ir.dims import Dim
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction, CompiledKernel, Operand
from aotc.lowering.flatten import flat
from aotc.lowering.object_file import check_symbols, strip
from aotc.lowering.scope import DimScope
from aotc.targets import Target
from aotc.targets.schedules.base import SCRATCH
from aotc.targets.schedules.emit import FIRST_TASK, IN_REGISTERS, ROUND

STACK_LIMIT = 1024
"""Bytes that one local buffer may take on a worker's stack; larger ones become scratch parameters."""

_S, _T = s_tir.transform, tirx.transform


@dataclass(frozen=True, slots=True)
class Nest:
    """One root loop nest as a function. ``buffers`` numbers its buffers among the whole function's parameters, then its
    scratch buffers; the last ``outputs`` of them are written. ``round`` is as in ``CompiledKernel``."""

    func: tirx.PrimFunc
    buffers: tuple[int, ...]
    outputs: int
    tasks: Dim
    round: int


def tvm_target(target: Target) -> tvm.target.Target:
    """The LLVM target that generates code for ``target``."""
    features = [f"+{feature}" for feature in target.features]
    if target.vector_bits == 512:
        features.append("-prefer-256-bit")  # LLVM would cut our vectors in two
    return tvm.target.Target({"kind": "llvm", "mtriple": target.triple, "mcpu": target.mcpu, "mattr": features})


def compile_function(
    func: tirx.PrimFunc, inputs: int, scope: DimScope, target: Target, symbol: str, flops: Dim, in_place: int | None = None
) -> CompiledFunction:
    """Machine code for a scheduled function whose parameters are ``inputs`` inputs, then its outputs.

    ``flops`` is counted for the last kernel. The output and the input numbered ``in_place`` are one buffer. Raises BuildError where the code would need what no model may need.
    """
    llvm = tvm_target(target)
    shared: set[str] = set()
    while True:
        nests, scratch = split(func, scope, shared)
        symbols = [symbol if len(nests) == 1 else f"{symbol}_{i}" for i in range(len(nests))]
        lowered = [_lower_blocks(nest.func.with_attr("global_symbol", name), llvm) for nest, name in zip(nests, symbols, strict=True)]
        large = {name for body in lowered for name in _large_buffers(body.body)} - shared
        if not large:
            break
        shared |= large
    operands: list[Operand] = [("input", i) for i in range(inputs)]
    operands += [("output", i) for i in range(len(func.params) - inputs)]
    operands += [("scratch", i) for i in range(len(scratch))]
    kernels = []
    for i, (nest, name, body) in enumerate(zip(nests, symbols, lowered, strict=True)):
        both = in_place is not None and in_place in nest.buffers and inputs in nest.buffers
        dropped = nest.buffers.index(in_place) if both else None
        over = nest.buffers.index(inputs) if both else None
        final, dims = _with_c_signature(_lower_loops(body, llvm), scope, dropped, over)
        object_code = _object_code(final, name, llvm)
        work = flops if i == len(nests) - 1 else 0
        passed = tuple(operands[number] for position, number in enumerate(nest.buffers) if position != dropped)
        kernels.append(CompiledKernel(name, object_code, passed, nest.outputs, dims, nest.tasks, work, nest.round))
    tensors = [TensorType(tuple(scope.dim(extent) for extent in buffer.shape), str(buffer.dtype)) for buffer in scratch]
    return CompiledFunction(tuple(kernels), tuple(tensors))


def split(func: tirx.PrimFunc, scope: DimScope, shared: set[str]) -> tuple[list[Nest], list[tirx.Buffer]]:
    """The root loop nests of a scheduled function, and the buffers that become scratch: those that more than one nest uses,
    and those named in ``shared`` or as ``SCRATCH`` says."""
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    free = [set(tirx.analysis.undefined_vars(nest)) for nest in nests]
    local: list[tirx.Buffer] = []
    scratch: list[tirx.Buffer] = []
    for buffer in root.alloc_buffers:
        uses = sum(buffer in names for names in free)
        (scratch if uses > 1 or buffer.name in shared or buffer.name.startswith(SCRATCH) else local).append(buffer)
    known = [*func.params, *scratch]
    pieces = []
    for nest, names in zip(nests, free, strict=True):
        written = _written(nest)
        used = [i for i, buffer in enumerate(known) if buffer in names]
        order = [i for i in used if known[i] not in written] + [i for i in used if known[i] in written]
        allocated = [buffer for buffer in local if buffer in names]
        block = s_tir.SBlock([], [], [], "root", nest, None, allocated)
        body = s_tir.SBlockRealize([], True, block)
        piece = tirx.PrimFunc([known[i] for i in order], body, func.ret_type, func.attrs)
        pieces.append(Nest(piece, tuple(order), sum(known[i] in written for i in order), *_tasks(nest, scope)))
    return pieces, scratch


def _tasks(nest: tirx.stmt.Stmt, scope: DimScope) -> tuple[Dim, int]:
    """The tasks of a nest, and how many a round has."""
    loops = _parallel(nest)
    if len(loops) > 1:
        raise BuildError(f"a loop nest of a kernel has {len(loops)} parallel loops one after the other: expected one at most")
    return (scope.dim(loops[0].extent), int(loops[0].annotations.get(ROUND, 0))) if loops else (1, 0)


def _parallel(stmt: tirx.stmt.Stmt) -> list[tirx.For]:
    if isinstance(stmt, s_tir.SBlockRealize):
        return _parallel(stmt.block.body)
    if isinstance(stmt, tirx.SeqStmt):
        return [found for child in stmt.seq for found in _parallel(child)]
    return [stmt] if isinstance(stmt, tirx.For) and int(stmt.kind) == ForKind.PARALLEL else []


def _written(nest: tirx.stmt.Stmt) -> set[tirx.Buffer]:
    found: set[tirx.Buffer] = set()
    structural_walk(nest, (tirx.BufferStore, lambda store: found.add(store.buffer)))
    return found


def _lower_blocks(func: tirx.PrimFunc, llvm: tvm.target.Target) -> tirx.PrimFunc:
    """TVM's default pipeline up to flat buffers: blocks are gone, local buffers have their final size."""
    passes = [
        _T.BindTarget(llvm.with_host(llvm)),
        _S.CanonicalizeLoop(), _S.LowerInitBlock(), _S.PlanAndUpdateBufferAllocationLocation(), _S.ConvertBlocksToOpaque(),
        _S.CompactBufferAllocation(), _S.LowerMatchBuffer(), _S.StmtSimplify(), _S.LowerOpaqueBlock(),
    ]  # fmt: skip
    return _run([_T.StmtSimplify(), _T.NarrowDataType(32)], flat(_run(passes, func)))


def _lower_loops(func: tirx.PrimFunc, llvm: tvm.target.Target) -> tirx.PrimFunc:
    """The rest of the default pipeline up to, and without, SplitHostDevice and MakePackedAPI."""
    passes = [
        _S.LoopPartition(), _T.VectorizeLoop(True), _T.StorageRewrite(), _T.UnrollLoop(), _T.ConvertSSA(), _S.RenormalizeSplitPattern(),
        _T.StmtSimplify(), _T.RemoveNoOp(), _S.RewriteUnsafeSelect(),
    ]  # fmt: skip
    lowered = _run(passes, func)
    # Those left fit the stack or live in registers; StorageRewrite has dropped the annotation that says so.
    keep = (tirx.AllocBuffer, lambda alloc: tirx.AllocBuffer(alloc.buffer, {IN_REGISTERS: tirx.IntImm("bool", 1)}))
    return lowered.with_body(structural_map(lowered.body, keep))


def _run(passes: Sequence[Any], func: tirx.PrimFunc) -> tirx.PrimFunc:
    # A module of its own: some passes rewrite the module that they are given.
    (result,) = tvm.ir.transform.Sequential(passes)(tvm.IRModule({"kernel": func})).functions.values()
    return result


def _large_buffers(body: tirx.stmt.Stmt) -> list[str]:
    """Names of local buffers that do not fit the stack."""
    found: list[str] = []

    def visit(alloc: tirx.AllocBuffer) -> None:
        if IN_REGISTERS in alloc.annotations:
            return
        elements = 1
        for extent in alloc.buffer.shape:
            elements = elements * int(extent.value) if isinstance(extent, tirx.IntImm) else STACK_LIMIT + 1
        if elements * tvm.DataType(str(alloc.buffer.dtype)).itemsize > STACK_LIMIT:
            found.append(alloc.buffer.name)

    structural_walk(body, (tirx.AllocBuffer, visit))
    return found


def _with_c_signature(func: tirx.PrimFunc, scope: DimScope, dropped: int | None, over: int | None) -> tuple[tirx.PrimFunc, tuple[Dim, ...]]:
    """The function over plain pointers, the dims that it uses, and its task range. The buffer numbered ``dropped`` has no
    pointer of its own: it is that numbered ``over``, which is written in place (pointers are declared free of aliases)."""
    begin, end = FIRST_TASK, tirx.Var("end", "int32")
    pointers = [tirx.Var(f"{buffer.name}_ptr", tvm.ir.PointerType(tvm.ir.PrimType(buffer.dtype))) for buffer in func.params]
    if dropped is not None and over is not None:
        pointers[dropped] = pointers[over]
    decls = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in zip(func.params, pointers, strict=True)]
    alone = _parallel_loops(func.body) == 1
    body = tirx.SeqStmt([*decls, _over_tasks(func.body, begin, end, alone), tirx.Return(tirx.IntImm("int32", 0))])
    free = set(tirx.analysis.undefined_vars(body, [*pointers, begin, end]))
    used = [(var, dim) for var, dim in zip(scope.vars, scope.dims, strict=True) if var in free]
    strays = free - {var for var, _ in used}
    if strays:
        raise BuildError(f"a kernel uses variables that are no dims of it: {', '.join(sorted(var.name for var in strays))}")
    params = [*(pointer for i, pointer in enumerate(pointers) if i != dropped), *(var for var, _ in used), begin, end]
    return tirx.PrimFunc(params, body, tvm.ir.PrimType("int32"), func.attrs), tuple(dim for _, dim in used)


def _parallel_loops(stmt: tirx.stmt.Stmt) -> int:
    if isinstance(stmt, tirx.SeqStmt):
        return sum(_parallel_loops(child) for child in stmt.seq)
    return int(isinstance(stmt, tirx.For) and int(stmt.kind) == ForKind.PARALLEL)


def _over_tasks(stmt: tirx.stmt.Stmt, begin: tirx.Var, end: tirx.Var, alone: bool) -> tirx.stmt.Stmt:
    """The root parallel loop runs over [begin, end), serially; several (a partitioned one) share that range out."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_over_tasks(child, begin, end, alone) for child in stmt.seq])
    if not isinstance(stmt, tirx.For) or int(stmt.kind) != ForKind.PARALLEL:
        return stmt
    # As a maximum: so LLVM knows that no index is negative, and divides and addresses with fewer instructions.
    first, stop = (tirx.max(begin, 0), end) if alone else (tirx.max(begin, stmt.min), tirx.min(end, stmt.min + stmt.extent))
    return tirx.For(stmt.loop_var, first, stop - first, ForKind.SERIAL, stmt.body, None, stmt.annotations)


def _object_code(func: tirx.PrimFunc, symbol: str, llvm: tvm.target.Target) -> bytes:
    built = tvm.get_global_func("target.build.llvm")(pipeline.finalize_host_passes()(tvm.IRModule({symbol: func})), llvm)
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=cache_dir()) as folder:  # the one folder that can surely be written
        path = Path(folder) / "kernel.o"
        built.write_to_file(str(path), "o")
        object_code = strip(path.read_bytes())
    check_symbols(object_code, symbol)
    return object_code
