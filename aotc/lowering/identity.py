"""What a fused function is, in text: the key of its machine code in the cache, its label, its work. Needs no TVM."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import aotc.lowering
import aotc.targets
from aotc.ir.dims import Dim, Symbol, ceildiv, product, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import post_order
from aotc.lowering.compiled import Selection
from aotc.lowering.cuda.nvrtc import nvrtc_version
from aotc.ops.custom import CustomOpDef
from aotc.targets import Target


def function_key(function: Function, target: Target, in_place: int | None = None, selection: Selection | None = None) -> str:
    """A digest of all that the object code depends on: the function but for its names, the parameter that its result
    overwrites, what its schedule shall choose, the target, these sources, TVM, and for a GPU's code NVRTC."""
    chosen = [f"choose {sorted(selection.items())}"] if selection else []
    nvrtc = [nvrtc_version(target.gpu)] if target.gpu is not None else []
    known = repr(replace(target, glibc=(0, 0)))  # code does not depend on it
    text = "\n".join([function_text(function), f"in place {in_place}", *chosen, known, *nvrtc, source_digest()])
    return hashlib.sha256(text.encode()).hexdigest()


def function_text(function: Function) -> str:
    """A canonical text: numbers instead of names of values, attributes in full, symbols with their bounds."""
    numbers: dict[int, int] = {}
    lines: list[str] = []
    symbols: dict[str, Symbol] = {}
    for expr in (*function.params, *post_order(function.body)):
        if id(expr) in numbers:
            continue
        numbers[id(expr)] = len(numbers)
        for tensor in flatten(expr.type):
            symbols = {**symbols_of(*tensor.shape), **symbols}
        lines.append(f"{expr.type} {_line(expr, numbers)}")
    ranges = [f"{name} in [{symbol.lower}, {symbol.upper}]" for name, symbol in sorted(symbols.items())]
    return "\n".join([f"{len(function.params)} parameters", *lines, *ranges])


def _line(expr: Expr, numbers: dict[int, int]) -> str:
    if isinstance(expr, Var):
        return "parameter"
    if isinstance(expr, (Constant, Parameter)):
        return f"constant {expr.data.tobytes().hex()}"
    if isinstance(expr, Tuple):
        return f"tuple {[numbers[id(field)] for field in expr.fields]}"
    if isinstance(expr, TupleGetItem):
        return f"item {numbers[id(expr.value)]} {expr.index}"
    if isinstance(expr, Call) and not isinstance(expr.op, Function):
        attrs: Any = expr.attrs
        values = [(field.name, getattr(attrs, field.name)) for field in fields(attrs)]
        own = f" {_own_digest(expr.op, expr)}" if isinstance(expr.op, CustomOpDef) else ""
        return f"{expr.op.name} {[numbers[id(arg)] for arg in expr.args]} {values!r}{own}"
    raise TypeError(f"a fused function holds no {type(expr).__name__}")


def _own_digest(op: CustomOpDef, node: Call) -> str:
    from aotc.lowering.worker import without_torch

    with without_torch():  # an expression of the user's is known only by what it makes, and that needs TVM
        from aotc.lowering.custom import expression_digest

        return expression_digest(op, node)


def is_custom(function: Function) -> bool:
    """Whether a fused function holds an operator of the user's."""
    return any(isinstance(expr, Call) and isinstance(expr.op, CustomOpDef) for expr in post_order(function.body))


def function_label(function: Function) -> str:
    """The operators fused, as part of a C name: ``conv_add_relu``."""
    names = [expr.op.name for expr in post_order(function.body) if isinstance(expr, Call) and not isinstance(expr.op, Function)]
    label = "_".join(names[:6]) + (f"_and_{len(names) - 6}" if len(names) > 6 else "")
    return "".join(c if c.isalnum() else "_" for c in label) or "copy"


def function_flops(function: Function) -> Dim:
    """Arithmetic operations of one run: two for each multiply and add of a convolution or matrix product, one per element
    for other operators."""
    total: Dim = 0
    for expr in post_order(function.body):
        if isinstance(expr, Call) and not isinstance(expr.op, Function):
            total = total + _flops(expr)
    return total


def _flops(call: Call) -> Dim:
    args = [tensor for arg in call.args for tensor in flatten(arg.type)]
    result = flatten(call.type)[0]
    name = call.op.name
    attrs: Any = call.attrs
    if name in ("conv", "integer_conv"):
        return _blocked_conv_flops(attrs, args[1], result) if attrs.channel_block else 2 * result.size * product(args[1].shape[1:])
    if name in BYTE_PRODUCTS:
        return _byte_flops(name, attrs, args, result)
    if name == "winograd_conv":
        tiles = product(ceildiv(extent, attrs.tile) for extent in result.shape[2:4])
        return 2 * result.shape[0] * tiles * args[1].size
    if name == "conv_transpose":
        return 2 * args[0].size * product(args[1].shape[1:])
    if name in ("matmul", "dense", "packed_dense", "integer_matmul"):
        return 2 * result.size * args[0].shape[-1]
    return max(args, key=_static_size).size if name in _REDUCTIONS and args else result.size


def _blocked_conv_flops(attrs: Any, weight: TensorType, result: TensorType) -> Dim:
    """The filling of channels does not count."""
    taps = weight.shape[1:-1]
    if attrs.in_channels:
        taps = (attrs.in_channels, *taps[1:-1])
    return 2 * product((result.shape[0], attrs.out_channels, *result.shape[2:-1], *taps))


BYTE_PRODUCTS = ("byte_conv", "byte_depthwise_conv", "byte_matmul")


def _byte_flops(name: str, attrs: Any, args: Sequence[TensorType], result: TensorType) -> Dim:
    """The filling of channels and of units does not count."""
    if name == "byte_matmul":
        return 2 * result.size * args[0].shape[-1]
    pixels = product((result.shape[0], attrs.out_channels, *result.shape[2:-1]))
    return 2 * pixels * (product(attrs.kernel) if name == "byte_depthwise_conv" else attrs.in_channels * product(args[1].shape[2:-3]))


_REDUCTIONS = ("sum", "integer_sum", "mean", "prod", "max", "min", "all", "any", "argmax", "argmin", "softmax", "log_softmax")


def _static_size(tensor: TensorType) -> int:
    return product(dim for dim in tensor.shape if isinstance(dim, int))  # type: ignore[return-value]


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of the sources that object code depends on, and of TVM's version."""
    digest = hashlib.sha256(_tvm_version().encode())
    for package in (aotc.lowering, aotc.targets):
        for path in _sources(package.__path__):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _tvm_version() -> str:
    """TVM's, and where it is not installed that which aotc asks for: code that a cache holds serves there, too."""
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        needed = importlib.metadata.requires("aotc") or []
        return next(each.partition("==")[2] for each in needed if each.startswith("apache-tvm=="))


def _sources(folders: Sequence[str]) -> list[Path]:
    return sorted(path for folder in folders for path in Path(folder).rglob("*") if path.suffix in (".py", ".h"))
