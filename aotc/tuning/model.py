"""What of a model can be tuned: its distinct fused functions whose schedules have a choice, the most expensive first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aotc.compiler import primitive_functions
from aotc.errors import InvalidOption
from aotc.ir.dims import evaluate, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.identity import function_label, is_custom
from aotc.lowering.tuned import tuning_key
from aotc.lowering.views import needs_kernel, resolve_view
from aotc.targets import Target
from aotc.tuning.board import MAXIMUM_RANK
from aotc.tuning.candidates import Layer

SWEEP_LIMIT = 64 << 20
"""Bytes: reading more between two runs makes no cache colder."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A model at the sizes it is tuned for: the calls of its fused functions in the order in which they stand."""

    module: Module
    sizes: Mapping[str, int]
    calls: tuple[Call, ...]

    @property
    def functions(self) -> list[Function]:
        return primitive_functions(self.module)


def sized(module: Module, sizes: Mapping[str, int]) -> Sized:
    """``module``, with a size for each dim that only its inputs tell. Raises InvalidOption where one is missing, unknown, or out of bounds."""
    known = module.symbols
    unknown = sorted(set(sizes) - set(known))
    if unknown:
        raise InvalidOption(
            f"--size {unknown[0]}: no input has such a dim; the dims that a run tells are {', '.join(sorted(known)) or 'none'}"
        )
    missing = sorted(set(known) - set(sizes))
    if missing:
        wanted = " ".join(f"--size {name}=N" for name in missing)
        raise InvalidOption(
            f"the inputs' dims {', '.join(missing)} are known only when the model runs: say for which sizes to tune ({wanted})"
        )
    for name, size in sizes.items():
        upper = known[name].upper
        if size < known[name].lower or (upper is not None and size > upper):
            raise InvalidOption(f"--size {name}={size} is out of bounds: it is from {known[name].lower} to {upper or 'any number'}")
    nodes = [node for function in all_functions(module) for node in post_order(function.body)]
    return Sized(module, sizes, tuple(cast(Call, node) for node in nodes if needs_kernel(node)))


def layers(model: Sized, compiled: Mapping[Function, CompiledFunction], target: Target) -> list[Layer]:
    """The functions with a choice, each once, in the order of their arithmetic. Left out are those whose sizes only a run tells."""
    groups: dict[str, list[Call]] = {}
    for node in model.calls:
        function = cast(Function, node.op)
        if function in compiled and compiled[function].choices and _measurable(function, model.sizes):
            groups.setdefault(tuning_key(function, target), []).append(node)
    total = _bytes_of_model(model)
    found = [_layer(key, calls, model, total) for key, calls in groups.items()]
    return sorted(found, key=lambda layer: -layer.flops)


def _measurable(function: Function, sizes: Mapping[str, int]) -> bool:
    tensors = [tensor for value in (*function.params, function.body) for tensor in flatten(value.type)]
    known = all(symbols_of(*tensor.shape).keys() <= sizes.keys() and tensor.rank <= MAXIMUM_RANK for tensor in tensors)
    return known and not is_custom(function) and all(isinstance(param.type, TensorType) for param in function.params)


def _layer(key: str, calls: Sequence[Call], model: Sized, total: int) -> Layer:
    function, first = cast(Function, calls[0].op), calls[0]
    own = sum(_bytes(tensor, model.sizes) for value in (*function.params, function.body) for tensor in flatten(value.type))
    name = first.origin or function.origin or function_label(function)
    fresh = tuple(not is_weight(arg) for arg in first.args)
    return Layer(key, name, function_label(function), function, len(calls), fresh, model.sizes, min(max(0, total - own), SWEEP_LIMIT))


def is_weight(argument: Expr) -> bool:
    """Whether an argument of a call lies in the file, or is a part of what does."""
    return isinstance(resolve_view(argument)[0], (Constant, Parameter))


def _bytes_of_model(model: Sized) -> int:
    """What one run touches: each weight once, each result of a kernel once."""
    weights = {id(arg): arg for node in model.calls for arg in node.args if isinstance(arg, (Constant, Parameter))}
    results = [tensor for node in model.calls for tensor in flatten(node.type)]
    known = [tensor for tensor in results if symbols_of(*tensor.shape).keys() <= model.sizes.keys()]
    return sum(weight.data.nbytes for weight in weights.values()) + sum(_bytes(tensor, model.sizes) for tensor in known)


def _bytes(tensor: TensorType, sizes: Mapping[str, int]) -> int:
    return evaluate(tensor.size, sizes) * tensor.itemsize
