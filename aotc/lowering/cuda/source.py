"""A launch to CUDA C: TVM's passes and code generator, and the header that takes the place of CUDA's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.s_tir import pipeline
from tvm_ffi.structural import structural_map, structural_walk

from aotc.errors import BuildError
from aotc.targets.base import Gpu
from aotc.targets.schedules.cuda.launch import BLOCK, THREAD, Launch

_KERNEL = 'extern "C" __global__ void'
_REINTERPRET = tvm.ir.Op.get("tirx.reinterpret")
_LLVM = tvm.ir.Op.get("tirx.call_llvm_pure_intrin")
_C_FUNCTIONS = {
    ("llvm.copysign", "float32"): "copysignf",
    ("llvm.copysign", "float64"): "copysign",
    ("llvm.arithmetic.fence", "float32"): "aotc_rounded",
}
_S, _T = s_tir.transform, tirx.transform


def cuda_source(launch: Launch, buffers: Sequence[tirx.Buffer], dims: Sequence[tirx.Var], symbol: str, gpu: Gpu) -> str:
    """The translation unit of ``__global__ void symbol(T *x buffers, int32_t x dims)``."""
    target = _tvm_target(min(gpu.sm))
    pointers = [tirx.Var(f"{buffer.name}_ptr", tvm.ir.PointerType(tvm.ir.PrimType(buffer.dtype))) for buffer in buffers]
    decls = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in zip(buffers, pointers, strict=True)]
    body = _bound("threadIdx.x", THREAD, tirx.const(launch.threads, "int32"), _prepared(launch.body))
    body = tirx.SeqStmt([*decls, _bound("blockIdx.x", BLOCK, launch.blocks, body)])
    strays = set(tirx.analysis.undefined_vars(body, [*pointers, *dims]))
    if strays:
        raise BuildError(f"a CUDA kernel uses variables that are no dims of it: {', '.join(sorted(var.name for var in strays))}")
    attrs = {"global_symbol": symbol, "calling_conv": 2, "target": target, "tirx.is_global_func": True, "tirx.noalias": True}
    func = tirx.PrimFunc([*pointers, *dims], body, None, tvm.ir.make_node("ir.DictAttrs", **attrs))
    func = func.with_attr("tirx.kernel_launch_params", ["blockIdx.x", "threadIdx.x"])
    passes = [
        _T.StmtSimplify(), _T.NarrowDataType(32), _T.UnrollLoop(), _T.ConvertSSA(), _S.RenormalizeSplitPattern(), _T.StmtSimplify(),
        _T.RemoveNoOp(), pipeline.finalize_device_passes(),
    ]  # fmt: skip
    with tvm.transform.PassContext(config={"tirx.UnrollLoop": {"explicit_unroll": False}}):  # NVRTC unrolls: the source stays short
        module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({symbol: func}))
    text = tvm.get_global_func("target.build.cuda")(module, target).inspect_source("cuda")
    return header() + text[text.rindex(_KERNEL) :]


def _prepared(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` as TVM's code generator wants it: buffers that are allocated without a scope are a thread's own (registers, or
    local memory), no constant's bits are taken, and LLVM's intrinsics are C functions."""
    locals_: dict[tirx.Buffer, tirx.Buffer] = {}

    def collect(alloc: tirx.AllocBuffer) -> None:
        if alloc.buffer.scope() == "global":
            locals_[alloc.buffer] = tirx.decl_buffer(alloc.buffer.shape, alloc.buffer.dtype, alloc.buffer.name, scope="local")

    structural_walk(body, (tirx.AllocBuffer, collect))

    def of(buffer: tirx.Buffer) -> tirx.Buffer:
        return locals_.get(buffer, buffer)

    return structural_map(
        body,
        [
            (tvm.ir.TensorLoad, lambda load: tirx.BufferLoad(of(load.source), load.indices)),
            (tirx.BufferStore, lambda store: tirx.BufferStore(of(store.buffer), store.value, store.indices)),
            (tirx.AllocBuffer, lambda alloc: tirx.AllocBuffer(of(alloc.buffer), alloc.annotations)),
            (tvm.ir.Call, _in_c),
        ],
    )


def _in_c(call: tvm.ir.Call) -> Any:
    if call.op.same_as(_LLVM):
        name = tvm.get_global_func("target.llvm_get_intrinsic_name")(call.args[0].value)
        return tirx.call_pure_extern(str(call.ty), _C_FUNCTIONS[name, str(call.ty)], *call.args[1:])
    if not call.op.same_as(_REINTERPRET) or not isinstance(call.args[0], tirx.FloatImm):
        return call
    value, source, result = call.args[0].value, str(call.args[0].ty), str(call.ty)
    return tirx.const(int(np.array(value, source).view(result)), result)


def _bound(tag: str, var: tirx.Var, extent: Any, body: tirx.Stmt) -> tirx.Stmt:
    axis = tirx.IterVar(tvm.ir.Range(0, extent), var, 1, tag)
    return tirx.AttrStmt(axis, "thread_extent", extent, body)


@cache
def _tvm_target(sm: int) -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": f"sm_{sm}", "max_num_threads": 1024, "thread_warp_size": 32})


@lru_cache(maxsize=1)
def header() -> str:
    return (Path(__file__).parent / "device.h").read_text()
