"""``python -m benchmarks.gpu_kernels``: what the CUDA kernels of two networks take of each board, and how fast they can be at best.

Writes docs/gpu_kernels.md. Nothing is timed: arithmetic and bytes are counted, registers and shared memory read from the cubins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from aotc import targets
from aotc.compiler import primitive_functions
from aotc.frontends import import_model
from aotc.ir.expr import Call, Function, Module
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.build import compile_functions
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from aotc.lowering.cuda.cubin import KernelFigures, figures
from aotc.lowering.identity import function_flops, function_key, function_label
from aotc.lowering.placement import place_devices
from aotc.lowering.views import needs_kernel
from aotc.passes.pipeline import optimise
from aotc.targets.base import Gpu
from tests.cuda.machine_code import instructions
from tests.zoo import classifiers, minilm

BOARDS = ("jetson-xavier", "jetson-orin", "jetson-thor")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "gpu_kernels.md"
FLOAT_MULTIPLIES = 128
"""Multiply-adds of float32 that a multiprocessor starts in a cycle (64 on Volta)."""
LEAST = 0.01
"""Functions below this share of a network's estimated time are summed up."""


def models() -> Iterator[tuple[str, Module]]:
    yield "ResNet-50, one picture of 224x224", import_model(classifiers.onnx_path("resnet50"), inputs={"x": (1, 3, 224, 224)})
    tokens = {"input_ids": (1, 128), "attention_mask": (1, 128)}
    yield "MiniLM-L6, 128 tokens", import_model(minilm.onnx_path(), inputs=tokens)


def main() -> None:
    parts = [
        "# What CUDA kernels take of each board\n",
        "Written by `python -m benchmarks.gpu_kernels`; nothing here was timed. *bytes* are each operand and result once; *least* is the longer of arithmetic at",
        "the GPU's peak and bytes at its memory's rate, for all uses together; *busy* is the share of a multiprocessor's warps that registers and shared memory allow;",
        "*instructions* are those of tensor cores (HMMA) and asynchronous copies (LDGSTS).",
        f"Functions below {LEAST:.0%} of the sum are left out of a table, not of the sum.\n",
    ]
    for name, module in models():
        for board in BOARDS:
            for precision in ("fp32", "fp16"):
                parts += _section(name, module, board, precision)
    PAGE.write_text("\n".join(parts).rstrip() + "\n")


def _section(name: str, module: Module, board: str, precision: str) -> list[str]:
    target = targets.get(board)
    gpu = cast(Gpu, target.gpu)
    optimised = optimise(module, target, precision=precision)
    placed = place_devices(optimised)
    launched = [function for function in primitive_functions(optimised) if placed[function].on_device]
    alike = {function_key(function, target): function for function in launched}
    functions = list(alike.values())
    compiled = compile_functions(functions, target, jobs=0)
    uses: Counter[Function] = Counter()
    for whole in all_functions(optimised):
        called = [cast(Function, cast(Call, node).op) for node in post_order(whole.body) if needs_kernel(node)]
        uses.update(alike[function_key(function, target)] for function in called if placed[function].on_device)
    times = {function: uses[function] * _least(function, compiled[function], gpu) for function in functions}
    total = sum(times.values())
    launches = sum(uses[function] * len(compiled[function].kernels) for function in functions)
    lines = [
        f"## {name}: {board}, {precision}\n",
        f"{launches} launches, at least {total * 1e3:.2f} ms; {sum(k.local_bytes for f in functions for k in _figures(compiled[f]))} bytes of spills.\n",
        "| function | uses | launches | MFLOP | KB | registers | shared KB | busy | instructions | least us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for function in sorted(functions, key=lambda function: -times[function]):
        if times[function] >= LEAST * total:
            lines.append(_row(function, compiled[function], uses[function], times[function], gpu))
    return [*lines, ""]


def _row(function: Function, compiled: CompiledFunction, uses: int, least: float, gpu: Gpu) -> str:
    kernel, taken = _kernels(compiled)[0], _figures(compiled)[0]
    busy = taken.occupancy(gpu.sm[0], kernel.block[0], kernel.shared_bytes) or 0.0
    shape = "x".join(map(str, flatten(function.body.type)[0].shape))
    work = f"{_flops(function) / 1e6:.1f} | {_bytes(function) / 1e3:.0f}"
    shared = (taken.shared_bytes + kernel.shared_bytes) / 1024
    label = f"{function_label(function)} {shape}"
    return f"| {label} | {uses} | {len(compiled.kernels)} | {work} | {taken.registers} | {shared:.0f} | {busy:.0%} | {_named(kernel)} | {least * 1e6:.1f} |"


def _named(kernel: CudaKernel) -> str:
    """The instructions of tensor cores and asynchronous copies that a kernel has."""
    (sm, cubin), *_ = kernel.cubins
    return " ".join(sorted(instructions(cubin))) if sm >= 70 else ""


def _kernels(compiled: CompiledFunction) -> list[CudaKernel]:
    return [kernel for kernel in compiled.kernels if isinstance(kernel, CudaKernel)]


def _figures(compiled: CompiledFunction) -> list[KernelFigures]:
    return [figures(kernel.cubins[0][1])[0] for kernel in _kernels(compiled)]


def _least(function: Function, compiled: CompiledFunction, gpu: Gpu) -> float:
    """Seconds of one use."""
    tensor_cores = any("aotc_multiply<" in kernel.source[kernel.source.rindex('extern "C"') :] for kernel in _kernels(compiled))
    rate = gpu.tensor_multiplies if tensor_cores else FLOAT_MULTIPLIES // (2 if min(gpu.sm) in (70, 72) else 1)
    return max(_flops(function) / (2 * rate * gpu.multiprocessors * gpu.clock_ghz * 1e9), _bytes(function) / (gpu.memory_gbs * 1e9))


def _flops(function: Function) -> int:
    return int(cast(int, function_flops(function)))


def _bytes(function: Function) -> int:
    """Each operand and result once; of a table that is gathered from, as much as is gathered."""
    results = sum(_size(tensor) for tensor in flatten(function.body.type))
    gathers = "gather" in function_label(function)
    operands = [_size(cast(TensorType, param.type)) for param in function.params]
    return results + sum(min(size, results) if gathers else size for size in operands)


def _size(tensor: TensorType) -> int:
    return int(cast(int, tensor.size)) * tensor.itemsize


if __name__ == "__main__":
    main()
