"""Built files with what is to be measured: a call of a model in several ways, each an entry point, with the model's own weights."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from aotc.compiler import package
from aotc.errors import BuildError
from aotc.ir.dims import evaluate
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Var
from aotc.ir.types import TensorType, flatten
from aotc.lowering.build import Workers, compile_functions
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.identity import function_flops, function_label, is_custom
from aotc.lowering.planner import make_plan
from aotc.lowering.views import resolve_view
from aotc.packaging.operator_source import is_source
from aotc.targets import Target
from aotc.tuning.board import Input

AGREEMENT = 1e-3
"""What floats may differ by, relative to the largest: sums in another order, or in Winograd's domain."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A distinct fused function of a model. ``calls`` is how often the model runs it, ``call`` the first of these and ``name`` the user's
    name of it, ``sweep`` the bytes that the rest of the model reads in between."""

    key: str
    name: str
    label: str
    call: Call
    calls: int
    sizes: Mapping[str, int]
    sweep: int

    @property
    def function(self) -> Function:
        return cast(Function, self.call.op)

    @property
    def flops(self) -> int:
        return self.calls * evaluate(function_flops(self.function), self.sizes)

    @property
    def tolerance(self) -> float:
        """How far a candidate's results may be from the untuned ones, relative to the largest: integers are exact."""
        return AGREEMENT if any("float" in tensor.dtype for tensor in flatten(self.function.body.type)) else 0.0

    def inputs(self) -> list[Input]:
        """Of the file that holds the candidates: what the steps before have computed. Weights are in the file."""
        tensors = [cast(TensorType, arg.type) for arg in self.call.args if not is_weight(arg)]
        return [Input(tuple(evaluate(dim, self.sizes) for dim in tensor.shape), True) for tensor in tensors]


def is_weight(argument: Expr) -> bool:
    """Whether an argument of a call lies in the file, or is a part of what does."""
    return isinstance(resolve_view(argument)[0], (Constant, Parameter))


@dataclass(slots=True)
class Compiler:
    """Compiles candidates in processes that stay. May be used from several threads, one after another."""

    target: Target
    jobs: int | None = None
    workers: Workers = field(default_factory=Workers)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def untuned(self, functions: Iterable[Function]) -> dict[Function, CompiledFunction]:
        """The kernels that a build without measurements has, mostly from the cache. Operators of the user's are left out."""
        return self._compile([function for function in functions if not (is_source(function) or is_custom(function))], {})

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


def candidate_file(ways: Sequence[tuple[Call, CompiledFunction]], target: Target, path: Path) -> None:
    """Writes a file whose entry point number i is a call by its kernels, ``ways[i]``. Its inputs are the arguments that are no weights.
    Raises BuildError."""
    copies = [replace(call, op=replace(cast(Function, call.op))) for call, _ in ways]
    functions = {f"candidate {i}": _entry(copy) for i, copy in enumerate(copies)}
    names = tuple(f"result {i}" for i in range(len(flatten(copies[0].type))))
    kernels = {cast(Function, copy.op): compiled for copy, (_, compiled) in zip(copies, ways, strict=True)}
    planned = make_plan(Module(functions, dict.fromkeys(functions, names)), kernels, {})
    package(planned, kernels.values(), target, path, {}, "fp32", None)


def _entry(node: Call) -> Function:
    """The call alone: its weights as they are, its other arguments as parameters."""
    args: list[Expr] = [arg if is_weight(arg) else Var(f"argument {i}", _tensor(arg)) for i, arg in enumerate(node.args)]
    return Function(
        tuple(arg for arg in args if isinstance(arg, Var)), replace(node, args=tuple(args)), function_label(cast(Function, node.op))
    )


def _tensor(arg: Expr) -> TensorType:
    if not isinstance(arg.type, TensorType):
        raise BuildError(f"{getattr(arg, 'origin', '')}: an argument is a tuple; only functions of tensors can be measured alone")
    return arg.type
