"""Built files with what is to be measured: one function as several candidates, each an entry point, on any inputs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotc.compiler import package
from aotc.errors import BuildError
from aotc.ir.dims import evaluate
from aotc.ir.expr import Function, Module, Var, call
from aotc.ir.types import TensorType, flatten
from aotc.lowering.build import Workers, compile_functions
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.identity import function_flops, function_label
from aotc.lowering.planner import make_plan
from aotc.targets import Target
from aotc.tuning.board import Input

AGREEMENT = 1e-3
"""What floats may differ by, relative to the largest: sums in another order, or in Winograd's domain."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A distinct fused function of a model. ``calls`` is how often the model runs it, ``name`` the user's name of the first of
    these, ``fresh`` which of its arguments are activations, ``sweep`` the bytes that the rest of the model reads in between."""

    key: str
    name: str
    label: str
    function: Function
    calls: int
    fresh: tuple[bool, ...]
    sizes: Mapping[str, int]
    sweep: int

    @property
    def flops(self) -> int:
        return self.calls * evaluate(function_flops(self.function), self.sizes)

    @property
    def tolerance(self) -> float:
        """How far a candidate's results may be from the untuned ones, relative to the largest: integers are exact."""
        return AGREEMENT if any("float" in tensor.dtype for tensor in flatten(self.function.body.type)) else 0.0

    def inputs(self) -> list[Input]:
        """Of the file that holds the candidates."""
        tensors = [(tensor, fresh) for param, fresh in zip(self.function.params, self.fresh, strict=True) for tensor in flatten(param.type)]
        return [Input(tuple(evaluate(dim, self.sizes) for dim in tensor.shape), fresh) for tensor, fresh in tensors]


@dataclass(slots=True)
class Compiler:
    """Compiles candidates in processes that stay. May be used from several threads, one after another."""

    target: Target
    jobs: int | None = None
    workers: Workers = field(default_factory=Workers)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compile(self, function: Function, selections: Sequence[Selection]) -> list[CompiledFunction | None]:
        """The function by each selection; ``None`` where it does not compile."""
        copies = [replace(function) for _ in selections]
        chosen = dict(zip(copies, selections, strict=True))
        with self.lock:
            try:
                made = self._compile(copies, chosen)
                return [made[copy] for copy in copies]
            except BuildError:
                return [self._one(copy, chosen) for copy in copies]

    def _one(self, function: Function, chosen: Mapping[Function, Selection]) -> CompiledFunction | None:
        try:
            return self._compile([function], chosen)[function]
        except BuildError:
            return None

    def _compile(self, functions: Sequence[Function], chosen: Mapping[Function, Selection]) -> dict[Function, CompiledFunction]:
        return compile_functions(functions, self.target, self.jobs, selections=chosen, workers=self.workers)


def candidate_file(layer: Layer, compiled: Sequence[CompiledFunction], target: Target, path: Path) -> None:
    """Writes a file whose entry point number i runs ``compiled[i]``, and whose inputs are the function's parameters. Raises BuildError."""
    copies = [replace(layer.function) for _ in compiled]
    functions = {f"candidate {i}": _entry(copy) for i, copy in enumerate(copies)}
    names = tuple(f"result {i}" for i in range(len(flatten(layer.function.body.type))))
    kernels = dict(zip(copies, compiled, strict=True))
    planned = make_plan(Module(functions, dict.fromkeys(functions, names)), kernels, {})
    package(planned, kernels.values(), target, path, {}, "fp32", None)


def _entry(function: Function) -> Function:
    params = tuple(Var(f"argument {i}", tensor) for i, tensor in enumerate(_tensors(function)))
    return Function(params, call(function, params, None, function.origin), function_label(function))


def _tensors(function: Function) -> list[TensorType]:
    if any(not isinstance(param.type, TensorType) for param in function.params):
        raise BuildError(f"{function.origin}: a parameter is a tuple; only functions of tensors can be measured alone")
    return [param.type for param in function.params if isinstance(param.type, TensorType)]
