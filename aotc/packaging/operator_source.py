"""Users' own operators that are C files: compiled for each node, with its attributes as constants, into a kernel like others."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.cache_dir import cache_dir
from aotc.errors import BuildError
from aotc.ir.dims import Dim, DimExpr
from aotc.ir.expr import Call, Function
from aotc.ir.types import TensorType, flatten, storage_dtype
from aotc.lowering import kernel_cache
from aotc.lowering.compiled import CompiledFunction, CompiledKernel, Operand
from aotc.lowering.identity import function_label, source_digest
from aotc.lowering.object_file import ALLOWED_SYMBOLS, defined_symbols, outside_symbols
from aotc.ops.custom import CustomOpDef
from aotc.packaging.toolchain import ARCHITECTURE_FLAGS, COMMON_FLAGS, ZigToolchain
from aotc.targets import Target

HEADER = "aotc_operator.h"
INCLUDE = Path(__file__).resolve().parent.parent / "runtime" / "csrc"
C_TYPES = {
    "float16": "_Float16", "float32": "float", "float64": "double", "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def is_source(function: Function) -> bool:
    """Whether a fused function is a user's operator that is written in C; such a one stands alone."""
    return isinstance(function.body, Call) and isinstance(function.body.op, CustomOpDef) and function.body.op.source is not None


def compile_sources(functions: Iterable[Function], target: Target) -> dict[Function, CompiledFunction]:
    """The kernels of functions that ``is_source`` picks. Raises BuildError with what the compiler says."""
    tools = ZigToolchain(target.triple, min(target.glibc, (2, 27)))
    return {function: _compile(function, target, tools) for function in functions}


def _compile(function: Function, target: Target, tools: ZigToolchain) -> CompiledFunction:
    node = function.body
    assert isinstance(node, Call) and isinstance(node.op, CustomOpDef) and node.op.source is not None
    what = f"{node.origin or node.op.name}: the operator {node.op.name} in {node.op.source}"
    operands = operands_of(function)
    args, numbers, results, dims = operands.inputs, operands.numbers, operands.outputs, operands.dims
    before, after = _prologue(node, args, results, what), _epilogue(args, results, dims)
    cpu = "+".join(re.sub(r"\W", "_", name) for name in (target.mcpu, *target.features))  # zig writes LLVM's names so
    flags = [*COMMON_FLAGS, *ARCHITECTURE_FLAGS[target.triple], f"-mcpu={cpu}", "-fno-stack-protector"]
    flags += [f"-I{INCLUDE}", f"-I{node.op.source.absolute().parent}"]
    with tempfile.TemporaryDirectory(prefix="operator-", dir=cache_dir()) as folder:
        unit = Path(folder) / "operator.c"
        body = f'#include "{HEADER}"\n{before}#include "{node.op.source.name}"\n{after}'
        unit.write_text(body.replace("@SYMBOL@", "aotc_kernel"))
        expanded = _run(tools, unit, Path(folder) / "expanded.i", [*flags, "-E", "-P"], what)
        tasks = tasks_of(node, args, what)
        known = (tools.identity, cpu, COMMON_FLAGS, expanded, dims, numbers, tasks, results, source_digest())
        key = hashlib.sha256(repr(known).encode()).hexdigest()
        if (found := kernel_cache.load(key)) is not None:
            return found
        symbol = f"{function_label(function)}_{key[:16]}"
        unit.write_text(body.replace("@SYMBOL@", symbol))
        code = _run(tools, unit, Path(folder) / "operator.o", flags, what)
    _check(code, symbol, what)
    kernel = CompiledKernel(symbol, code, operands.roles, len(results), dims, tasks, results[0].size)
    compiled = CompiledFunction((kernel,))
    kernel_cache.store(key, compiled)
    return compiled


@dataclass(frozen=True, slots=True)
class Operands:
    """What a kernel gets: inputs, each with the number of its parameter, outputs, and the dims among their extents that a run tells."""

    inputs: list[TensorType]
    numbers: list[int]
    outputs: list[TensorType]
    dims: tuple[DimExpr, ...]

    @property
    def roles(self) -> tuple[Operand, ...]:
        return (*(("input", number) for number in self.numbers), *(("output", number) for number in range(len(self.outputs))))


def _run(tools: ZigToolchain, unit: Path, output: Path, flags: Sequence[str], what: str) -> bytes:
    try:
        tools.compile(unit, output, flags)
    except BuildError as error:
        raise BuildError(f"{what}: {error}") from error
    return output.read_bytes()


def _check(code: bytes, symbol: str, what: str) -> None:
    if foreign := [name for name in outside_symbols(code) if name not in ALLOWED_SYMBOLS]:
        raise BuildError(f"{what} needs {', '.join(foreign)}, which no model may need; it may call libm, memcpy, memmove and memset")
    if others := [name for name in defined_symbols(code) if name != symbol]:
        raise BuildError(f"{what} defines {', '.join(others)}: declare them static, since a model may hold the operator several times")


def operands_of(function: Function) -> Operands:
    """Those of a function that is a user's operator alone."""
    node = function.body
    assert isinstance(node, Call)
    args = [tensor for arg in node.args for tensor in flatten(arg.type)]
    results = list(flatten(node.type))
    dims = tuple(dict.fromkeys(dim for tensor in (*args, *results) for dim in tensor.shape if isinstance(dim, DimExpr)))
    return Operands(args, [function.params.index(arg) for arg in node.args], results, dims)


def tasks_of(node: Call, args: Sequence[TensorType], what: str) -> Dim:
    assert isinstance(node.op, CustomOpDef) and node.op.definition is not None
    if node.op.definition.tasks is None:
        return 1
    attributes: Any = node.attrs
    try:
        count = node.op.definition.tasks(*args, **dict(attributes.values))
    except Exception as error:  # the user's own function may raise anything
        raise BuildError(f"{what}: its tasks failed: {type(error).__name__}: {error}") from error
    if not isinstance(count, (int, DimExpr)):
        raise BuildError(f"{what}: its tasks are {count!r}; expected a number or a dim")
    return count


def _prologue(node: Call, args: Sequence[TensorType], results: Sequence[TensorType], what: str) -> str:
    """What stands before the user's file: counts, element types, attributes."""
    lines = [f"#define AOTC_INPUTS {len(args)}", f"#define AOTC_OUTPUTS {len(results)}"]
    for kind, tensors in (("input", args), ("output", results)):
        lines += [f"typedef {_c_type(tensor.dtype)} aotc_{kind}{number};" for number, tensor in enumerate(tensors)]
    lines += attributes_of(node, what, "static const")
    lines.append("static int32_t aotc_operator(const aotc_tensor *, const aotc_tensor *, int32_t, int32_t);")
    return "\n".join(lines) + "\n"


def attributes_of(node: Call, what: str, array: str) -> list[str]:
    """A node's attributes as lines of C; ``array`` is what stands before the type of one that is a sequence."""
    attributes: Any = node.attrs
    return [line for name, value in attributes.values for line in _attribute(name, value, what, array)]


def _c_type(dtype: str) -> str:
    return C_TYPES[storage_dtype(dtype)]


def _attribute(name: str, value: Any, what: str, array: str) -> list[str]:
    if not name.isidentifier() or not name.isascii():
        raise BuildError(f"{what}: the attribute {name!r} is no name in C")
    if value is None:
        return []
    if not isinstance(value, tuple):
        return [f"#define ATTR_{name} {_literal(name, value, what)}"]
    kinds = {type(each) for each in value}
    kind = "const char *const" if kinds == {str} else "double" if float in kinds else "int64_t"
    elements = ", ".join(_literal(name, each, what) for each in value) or "0"
    return [f"{array} {kind} ATTR_{name}[] = {{{elements}}};", f"#define ATTR_{name}_COUNT {len(value)}"]


def _literal(name: str, value: Any, what: str) -> str:
    if isinstance(value, (bool, int)):
        return f"INT64_C({int(value)})" if value > -(2**63) else "INT64_MIN"
    if isinstance(value, float):
        return (
            f"({value.hex()})"
            if math.isfinite(value)
            else {"inf": "__builtin_inf()", "-inf": "(-__builtin_inf())"}.get(str(value), '__builtin_nan("")')
        )
    if isinstance(value, str):
        return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in value.encode()) + '"'
    raise BuildError(f"{what}: the attribute {name!r} is {value!r}, which C gets as no constant; a size that varies it sees in the shapes")


def _epilogue(args: Sequence[TensorType], results: Sequence[TensorType], dims: Sequence[DimExpr]) -> str:
    """The kernel in the form of all kernels: pointers, dims, task range."""

    def tensors(name: str, types: Sequence[TensorType], first: int) -> str:
        entries = []
        for number, type_ in enumerate(types):
            shape = ", ".join(str(dim) if isinstance(dim, int) else f"d{dims.index(dim)}" for dim in type_.shape)
            entries.append(f"{{b{first + number}, {type_.rank}, {{{shape or '0'}}}}}")
        return f"    const aotc_tensor {name}[] = {{{', '.join(entries)}}};\n"

    count = len(args) + len(results)
    params = ", ".join([*(f"void *b{i}" for i in range(count)), *(f"int32_t d{i}" for i in range(len(dims))), "int32_t begin, int32_t end"])
    return (
        f"int32_t @SYMBOL@({params});\nint32_t @SYMBOL@({params})\n{{\n{tensors('inputs', args, 0)}{tensors('outputs', results, len(args))}"
        "    return aotc_operator(inputs, outputs, begin, end);\n}\n"
    )
