"""A fused module -> the execution plan: steps in order, values, buffers with lifetimes, weights at offsets.

Reshapes cost nothing here: their result is the same memory under another shape. A value that the user receives is
computed straight into the user's memory; only an output that is an input, a weight or another output needs a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aotc.errors import InvalidModel, UnsupportedModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import post_order
from aotc.lowering import memory, plan
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.in_place import InPlace
from aotc.lowering.plan import Storage
from aotc.lowering.plan_symbols import with_symbols
from aotc.lowering.views import is_empty, is_view, resolve_view, results_of

MAX_ELEMENTS = 2**31 - 1

Compile = Callable[[Function], CompiledFunction]


@dataclass(slots=True)
class Weights:
    """Arrays by offset in the weights blob; equal arrays are kept once."""

    arrays: list[tuple[int, np.ndarray]]
    offsets: dict[bytes, int]
    size: int = 0

    def add(self, array: np.ndarray) -> int:
        """The byte offset of ``array``, a multiple of the alignment."""
        array = np.ascontiguousarray(array)
        digest = hashlib.sha256(array.tobytes() if array.ndim == 0 else array.data).digest() + array.nbytes.to_bytes(8, "little")
        if digest not in self.offsets:
            offset = memory.align(self.size)
            self.offsets[digest] = offset
            self.arrays.append((offset, array))
            self.size = offset + array.nbytes
        return self.offsets[digest]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, the weights' arrays by offset in the blob, and the blob's size in bytes."""

    plan: plan.ExecutionPlan
    weights: tuple[tuple[int, np.ndarray], ...]
    weights_size: int


def make_plan(module: Module, compiled: Mapping[Function, CompiledFunction], in_place: InPlace) -> Planned:
    """The plan of a module whose functions are calls of primitive functions, each of them in ``compiled``; those in
    ``in_place`` were compiled to write their result over an argument.

    Raises UnsupportedModel for a tensor of 2^31 elements or more: kernels count in int32.
    """
    weights = Weights([], {})
    kernels: dict[str, plan.Kernel] = {}
    entries = [
        _EntryPlanner(name, function, module.output_names[name], compiled, in_place, weights, kernels).run()
        for name, function in module.functions.items()
    ]
    return Planned(plan.ExecutionPlan(tuple(entries), tuple(kernels.values())), tuple(weights.arrays), weights.size)


@dataclass(slots=True)
class _PendingBuffer:
    size: Dim
    first: int
    last: int


class _EntryPlanner:
    def __init__(
        self, name: str, function: Function, output_names: Sequence[str], compiled: Mapping[Function, CompiledFunction],
        in_place: InPlace, weights: Weights, kernels: dict[str, plan.Kernel],
    ) -> None:  # fmt: skip
        self.name, self.function, self.output_names = name, function, output_names
        self.compiled, self.in_place, self.weights, self.kernels = compiled, in_place, weights, kernels
        self.values: list[plan.Value] = []
        self.steps: list[plan.Step] = []
        self.buffers: list[_PendingBuffer] = []
        self.value_ids: dict[Expr, tuple[int, ...]] = {}  # the tensors of an expression, tuples flattened
        self.output_of: dict[tuple[Expr, int], int] = {}  # (call, result) that is computed into the user's output

    def run(self) -> plan.EntryPoint:
        inputs = [plan.TensorSpec(p.name, t.dtype, t.shape) for p in self.function.params for t in flatten(p.type)]
        results = results_of(self.function.body)
        self._claim_outputs(results)
        for number, param in enumerate(self.function.params):
            self.value_ids[param] = (self._value(_tensor(param), Storage.INPUT, number),)
        for node in post_order(*results):
            if node not in self.value_ids:
                self.value_ids[node] = self._plan_node(node)
        for number, result in enumerate(results):
            self._deliver(result, number)
        outputs = [
            plan.TensorSpec(name, _tensor(r).dtype, _tensor(r).shape) for name, r in zip(self.output_names, results, strict=True)
        ]  # fmt: skip
        buffers, arena_size, bound = _place(self.buffers)
        return with_symbols(
            plan.EntryPoint(self.name, tuple(inputs), tuple(outputs), tuple(self.values), buffers, tuple(self.steps), arena_size, bound)
        )

    def _claim_outputs(self, results: Sequence[Expr]) -> None:
        """Which kernel result is computed straight into which output: the first output that it, or a view of it, is."""
        for number, result in enumerate(results):
            source = resolve_view(result)
            if isinstance(source[0], Call):
                self.output_of.setdefault(source, number)

    def _plan_node(self, node: Expr) -> tuple[int, ...]:
        match node:
            case Constant() | Parameter():
                return (self._value(_tensor(node), Storage.WEIGHT, 0, self.weights.add(node.data)),)
            case Tuple():
                return tuple(i for field in node.fields for i in self.value_ids[field])
            case TupleGetItem():
                return (self.value_ids[node.value][node.index],)
            case Call() if is_empty(node):
                return tuple(self._empty(type_) for type_ in flatten(node.type))
            case Call() if is_view(node):
                return (self._view(self.value_ids[node.args[0]][0], _tensor(node)),)
            case Call() if isinstance(node.op, Function):
                return self._plan_call(node, node.op)
        raise InvalidModel(f"{getattr(node, 'origin', '')}: {type(node).__name__} cannot be planned; fuse_operators must run before")

    def _plan_call(self, node: Call, function: Function) -> tuple[int, ...]:
        compiled = self.compiled[function]
        first = len(self.steps)
        arguments = [self.value_ids[arg][0] for arg in node.args]
        scratch = [self._arena_value(t, first) for t in compiled.scratch]
        if function in self.in_place:
            results = [self._view(arguments[self.in_place[function]], _tensor(node))]
        else:
            results = [self._result(node, i, t, first) for i, t in enumerate(flatten(node.type))]
        roles = {"input": arguments, "scratch": scratch, "output": results}
        for kernel in compiled.kernels:
            operands = tuple(roles[role][index] for role, index in kernel.operands)
            number = self._kernel(plan.Kernel(kernel.symbol, len(operands), len(kernel.dims)))
            self.steps.append(
                plan.Step(
                    plan.StepKind.KERNEL, operands, kernel.outputs, number, kernel.dims, kernel.tasks, node.origin, function.name, kernel.flops
                )
            )  # fmt: skip
        for value in (*arguments, *scratch, *results):
            self._extend(value, len(self.steps) - 1)
        return tuple(results)

    def _kernel(self, kernel: plan.Kernel) -> int:
        self.kernels.setdefault(kernel.symbol, kernel)
        return list(self.kernels).index(kernel.symbol)

    def _result(self, node: Call, index: int, type_: TensorType, first: int) -> int:
        number = self.output_of.get((node, index))
        if number is not None:
            return self._value(type_, Storage.OUTPUT, number)
        return self._arena_value(type_, first)

    def _arena_value(self, type_: TensorType, first: int) -> int:
        self.buffers.append(_PendingBuffer(type_.size * type_.itemsize, first, first))
        return self._value(type_, Storage.ARENA, len(self.buffers) - 1)

    def _value(self, type_: TensorType, storage: Storage, index: int, offset: int = 0) -> int:
        if isinstance(type_.size, int) and type_.size > MAX_ELEMENTS:
            raise UnsupportedModel(f"a tensor of {type_} has 2^31 elements or more; kernels count in int32: split it")
        self.values.append(plan.Value(type_.dtype, type_.shape, storage, index, offset))
        return len(self.values) - 1

    def _empty(self, type_: TensorType) -> int:
        return self._value(type_, Storage.WEIGHT, 0, self.weights.add(np.zeros(type_.static_shape(), type_.dtype)))

    def _view(self, value: int, type_: TensorType) -> int:
        self.values.append(replace(self.values[value], shape=type_.shape))
        return len(self.values) - 1

    def _extend(self, value: int, step: int) -> None:
        if self.values[value].storage is Storage.ARENA:
            self.buffers[self.values[value].index].last = step

    def _deliver(self, result: Expr, number: int) -> None:
        """Copies a result into its output where it was not computed there."""
        value = self.value_ids[result][0]
        held = self.values[value]
        if held.storage is Storage.OUTPUT and held.index == number:
            return
        target = self._value(_tensor(result), Storage.OUTPUT, number)
        self.steps.append(plan.Step(plan.StepKind.COPY, (value, target), 1, source=getattr(result, "origin", ""), label="copy"))
        self._extend(value, len(self.steps) - 1)


def _tensor(expr: Expr | Var) -> TensorType:
    if not isinstance(expr.type, TensorType):
        raise InvalidModel(f"{getattr(expr, 'origin', '')}: a tensor was expected here, not {expr.type}")
    return expr.type


def _place(pending: Sequence[_PendingBuffer]) -> tuple[tuple[plan.Buffer, ...], int | None, int | None]:
    """Buffers with offsets, the arena's size and its lower bound; without them where sizes are symbolic."""
    sizes = [b.size for b in pending]
    lifetimes = [memory.Lifetime(size, b.first, b.last) for size, b in zip(sizes, pending, strict=True) if isinstance(size, int)]
    if len(lifetimes) != len(pending):
        return tuple(plan.Buffer(b.size, b.first, b.last) for b in pending), None, None
    arena = memory.place(lifetimes)
    buffers = tuple(plan.Buffer(b.size, b.first, b.last, o) for b, o in zip(pending, arena.offsets, strict=True))
    return buffers, arena.size, memory.lower_bound(lifetimes)
