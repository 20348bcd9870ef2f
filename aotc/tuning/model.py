"""What of a model can be tuned: its distinct fused functions whose schedules have a choice, the most expensive first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aotc.compiler import primitive_functions
from aotc.errors import InvalidOption
from aotc.ir.dims import evaluate, symbols_of
from aotc.ir.expr import Call, Constant, Function, Module, Parameter
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.identity import function_label, is_custom
from aotc.lowering.tuned import tuning_key
from aotc.lowering.views import needs_kernel
from aotc.targets import Target
from aotc.tuning.board import MAXIMUM_RANK
from aotc.tuning.candidates import Layer

SWEEP_LIMIT = 64 << 20
"""Bytes: reading more between two runs makes no cache colder."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A model at the sizes it is tuned for: the calls of its fused functions in the order in which they stand, and the bytes that one
    run touches."""

    module: Module
    sizes: Mapping[str, int]
    calls: tuple[Call, ...]
    bytes: int

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
    calls = tuple(cast(Call, node) for node in nodes if needs_kernel(node))
    return Sized(module, sizes, calls, _bytes_of_model(calls, sizes))


def layers(model: Sized, compiled: Mapping[Function, CompiledFunction], target: Target, all_of_them: bool = False) -> list[Layer]:
    """The functions with a choice, or ``all_of_them``, each once, in the order of their arithmetic. Left out are those whose sizes only
    a run tells."""
    groups: dict[str, list[Call]] = {}
    for node in model.calls:
        function = cast(Function, node.op)
        if function in compiled and (all_of_them or compiled[function].choices) and _measurable(function, model.sizes):
            groups.setdefault(tuning_key(function, target), []).append(node)
    return sorted((layer_of(calls, model, target) for calls in groups.values()), key=lambda layer: -layer.flops)


def _measurable(function: Function, sizes: Mapping[str, int]) -> bool:
    tensors = [tensor for value in (*function.params, function.body) for tensor in flatten(value.type)]
    known = all(symbols_of(*tensor.shape).keys() <= sizes.keys() and tensor.rank <= MAXIMUM_RANK for tensor in tensors)
    return known and not is_custom(function) and all(isinstance(param.type, TensorType) for param in function.params)


def layer_of(calls: Sequence[Call], model: Sized, target: Target) -> Layer:
    """The layer that some calls of equal functions are."""
    function, first = cast(Function, calls[0].op), calls[0]
    own = sum(_bytes(tensor, model.sizes) for value in (*function.params, function.body) for tensor in flatten(value.type))
    name = first.origin or function.origin or function_label(function)
    sweep = min(max(0, model.bytes - own), SWEEP_LIMIT)
    return Layer(tuning_key(function, target), name, function_label(function), first, len(calls), model.sizes, sweep)


def _bytes_of_model(calls: Sequence[Call], sizes: Mapping[str, int]) -> int:
    """What one run touches: each weight once, each result of a kernel once."""
    weights = {id(arg): arg for node in calls for arg in node.args if isinstance(arg, (Constant, Parameter))}
    results = [tensor for node in calls for tensor in flatten(node.type)]
    known = [tensor for tensor in results if symbols_of(*tensor.shape).keys() <= sizes.keys()]
    return sum(weight.data.nbytes for weight in weights.values()) + sum(_bytes(tensor, sizes) for tensor in known)


def _bytes(tensor: TensorType, sizes: Mapping[str, int]) -> int:
    return evaluate(tensor.size, sizes) * tensor.itemsize
