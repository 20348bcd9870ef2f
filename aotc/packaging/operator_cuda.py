"""Users' own operators that are CUDA files: compiled for each node, with its attributes as constants, into a kernel like others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import aotc.lowering.cuda
from aotc.errors import BuildError
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Function
from aotc.ir.types import TensorType
from aotc.lowering import kernel_cache
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from aotc.lowering.cuda import nvrtc
from aotc.lowering.identity import function_label, source_digest
from aotc.ops.custom import CustomOpDef
from aotc.packaging.operator_source import C_TYPES, HEADER, INCLUDE, Operands, attributes_of, operands_of, tasks_of
from aotc.targets import Target

CUDA_TYPES = {**C_TYPES, "float16": "half"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)[^\n]*$', re.MULTILINE)
_CONSTANTS = """#ifdef __CUDACC_RTC__
#define INT64_C(value) value##LL
#define INT64_MIN (-9223372036854775807LL - 1)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000LL)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000LL)
#endif
"""


def is_cuda_source(function: Function) -> bool:
    """Whether a fused function is a user's operator that has a CUDA file; such a one stands alone."""
    return isinstance(function.body, Call) and isinstance(function.body.op, CustomOpDef) and function.body.op.cuda is not None


def check_cpu_code(functions: Iterable[Function]) -> None:
    """Raises BuildError for a user's operator that has no code for the CPU, which shall run it."""
    for function in functions:
        node = function.body
        if not (is_cuda_source(function) and isinstance(node, Call) and isinstance(node.op, CustomOpDef) and node.op.definition):
            continue
        if node.op.definition.source is None and node.op.definition.expression is None:
            raise BuildError(
                f"{node.origin or node.op.name}: the operator {node.op.name} is written for the GPU alone ({node.op.cuda}): build with "
                "--device cuda, or give it a source or an expression too"
            )


def compile_cuda_sources(functions: Iterable[Function], target: Target) -> dict[Function, CompiledFunction]:
    """The kernels of functions that ``is_cuda_source`` picks. Raises BuildError with what NVRTC says."""
    return {function: _compile(function, target) for function in functions}


def _compile(function: Function, target: Target) -> CompiledFunction:
    node, gpu = function.body, target.gpu
    assert gpu is not None and isinstance(node, Call) and isinstance(node.op, CustomOpDef) and node.op.definition is not None
    path, threads = node.op.cuda, node.op.definition.threads
    assert path is not None
    what = f"{node.origin or node.op.name}: the operator {node.op.name} in {path}"
    operands = operands_of(function)
    tasks = tasks_of(node, operands.inputs, what)
    body = _unit(node, operands, path, threads, what)
    known = (
        body, gpu.sm, gpu.ptx, nvrtc.nvrtc_version(gpu), operands.dims, operands.numbers, tasks, operands.outputs, threads, source_digest(),
    )  # fmt: skip
    key = hashlib.sha256(repr(known).encode()).hexdigest()
    if (found := kernel_cache.load(key)) is not None:
        return found
    symbol = f"{function_label(function)}_{key[:16]}"
    source = body.replace("@SYMBOL@", symbol)
    try:
        cubins = tuple((sm, nvrtc.cubin(source, symbol, sm, gpu.cuda)) for sm in gpu.sm)
        ptx = nvrtc.ptx(source, symbol, gpu)
    except BuildError as error:
        raise BuildError(f"{what}: {error}") from error
    kernel = CudaKernel(
        symbol, source, cubins, operands.roles, len(operands.outputs), (tasks, 1, 1), (threads, 1, 1), operands.dims, 0, operands.outputs[0].size, ptx
    )  # fmt: skip
    compiled = CompiledFunction((kernel,))
    kernel_cache.store(key, compiled)
    return compiled


def _unit(node: Call, operands: Operands, path: Path, threads: int, what: str) -> str:
    """One translation unit that includes nothing, with the operator's file in the middle and a kernel behind it."""
    header = (Path(aotc.lowering.cuda.__path__[0]) / "device.h").read_text()
    lines = [f"#define AOTC_INPUTS {len(operands.inputs)}", f"#define AOTC_OUTPUTS {len(operands.outputs)}"]
    for kind, tensors in (("input", operands.inputs), ("output", operands.outputs)):
        lines += [f"typedef {CUDA_TYPES[tensor.dtype]} aotc_{kind}{number};" for number, tensor in enumerate(tensors)]
    lines += attributes_of(node, what, "static __device__ const")
    tensor_type = _without_includes((INCLUDE / HEADER).read_text()).replace("int64_t static inline", "static __device__ inline int64_t")
    declared = "static __device__ int32_t aotc_operator(const aotc_tensor *, const aotc_tensor *, int32_t, int32_t);"
    own = _inlined(path, what, [])
    return "\n".join([header, _CONSTANTS, tensor_type, *lines, declared, own, _kernel(operands, threads)])


def _kernel(operands: Operands, threads: int) -> str:
    types = [*operands.inputs, *operands.outputs]
    pointers = [f"{CUDA_TYPES[tensor.dtype]} *b{number}" for number, tensor in enumerate(types)]
    parameters = ", ".join([*pointers, *(f"int32_t d{number}" for number in range(len(operands.dims)))])

    def tensors(name: str, part: Sequence[TensorType], first: int) -> str:
        entries = [f"{{b{first + number}, {tensor.rank}, {{{_extents(tensor, operands.dims)}}}}}" for number, tensor in enumerate(part)]
        return f"    const aotc_tensor {name}[] = {{{', '.join(entries) or '{}'}}};\n"

    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) @SYMBOL@({parameters}) {{\n'
        f"{tensors('inputs', operands.inputs, 0)}{tensors('outputs', operands.outputs, len(operands.inputs))}"
        "    aotc_operator(inputs, outputs, (int32_t)blockIdx.x, (int32_t)blockIdx.x + 1);\n}\n"
    )


def _extents(tensor: TensorType, dims: Sequence[Dim]) -> str:
    return ", ".join(str(dim) if isinstance(dim, int) else f"d{dims.index(dim)}" for dim in tensor.shape) or "0"


def _inlined(path: Path, what: str, inside: list[Path]) -> str:
    """The file with those that it includes from its folder in their place; of others there are none on a GPU."""
    if path in inside:
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{what}: {path} cannot be read: {error.strerror}") from error

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return "" if name == HEADER or match[2] else _inlined(path.parent / name, what, [*inside, path])

    return _INCLUDE.sub(replace, text)


def _without_includes(text: str) -> str:
    return _INCLUDE.sub("", text)
