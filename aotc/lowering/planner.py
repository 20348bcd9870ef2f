"""A fused module -> the execution plan: steps in order, values, buffers with lifetimes, weights at offsets.

Reshapes and ranges of rows cost nothing here: their result is the same memory under another shape. A value that the user
receives is computed straight into the user's memory; only an output that is an input, a weight or another output needs a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, as_symbol, maximum
from aotc.ir.expr import Call, Constant, Expr, Function, If, Loop, Module, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.symbols import is_planned, schedule
from aotc.ir.types import TensorType, flatten
from aotc.lowering import control_flow, plan
from aotc.lowering.compiled import CompiledFunction, CompiledKernel, CudaKernel
from aotc.lowering.delivery import copied, deliver, hand_over
from aotc.lowering.device_tables import CudaTables, device_weights_first
from aotc.lowering.in_place import InPlace
from aotc.lowering.joined import Joined, choose_joined, parts_of
from aotc.lowering.order import in_stretches
from aotc.lowering.plan import StepKind, Storage
from aotc.lowering.plan_symbols import with_symbols
from aotc.lowering.recorder import Place, Recorder, Weights
from aotc.lowering.residence import DEVICE, HOST, Residence, is_aligned
from aotc.lowering.views import is_empty, is_view, needs_kernel, resolve_view, results_of, view_offset

Compile = Callable[[Function], CompiledFunction]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, the weights' arrays by offset in the blob, the blob's size in bytes, and the blob of cubins."""

    plan: plan.ExecutionPlan
    weights: tuple[tuple[int, np.ndarray], ...]
    weights_size: int
    cubins: bytes = b""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A fused module with the code of its functions; those in ``in_place`` write their result over an argument."""

    module: Module
    compiled: Mapping[Function, CompiledFunction]
    in_place: InPlace


@dataclass(frozen=True, slots=True)
class Tables:
    """What all entry points share."""

    compiled: Mapping[Function, CompiledFunction]
    in_place: InPlace
    weights: Weights
    kernels: dict[str, plan.Kernel]
    cuda: CudaTables
    states: Mapping[str, int]
    joined: Joined

    @property
    def uses_device(self) -> bool:
        return any(function.on_device for function in self.compiled.values())

    def kernel(self, kernel: plan.Kernel) -> int:
        """The number of a kernel."""
        self.kernels.setdefault(kernel.symbol, kernel)
        return list(self.kernels).index(kernel.symbol)


def make_plan(module: Module, compiled: Mapping[Function, CompiledFunction], in_place: InPlace, fallback: Lowered | None = None) -> Planned:
    """The plan of a module whose functions are calls of primitive functions, each of them in ``compiled``; those in
    ``in_place`` were compiled to write their result over an argument. ``fallback``: the same model for the CPU alone, which runs
    where there is no device.

    Raises UnsupportedModel for a tensor of 2^31 elements or more: kernels count in int32.
    """
    weights = Weights([], {})
    states = [
        plan.State(name, initial.type.dtype, initial.type.static_shape(), weights.add(initial.data) if initial.data.any() else None)
        for name, initial in module.states.items()
    ]
    numbers = {state.name: number for number, state in enumerate(states)}
    tables = Tables(compiled, in_place, weights, {}, CudaTables(), numbers, choose_joined(module))
    entries = _plan_entries(module, tables)
    if fallback is not None:
        entries = [replace(entry, fallback=len(entries) + number) for number, entry in enumerate(entries)]
        joined = choose_joined(fallback.module)
        entries += _plan_entries(fallback.module, replace(tables, compiled=fallback.compiled, in_place=fallback.in_place, joined=joined))
    cuda = tables.cuda
    made = plan.ExecutionPlan(
        tuple(entries), tuple(tables.kernels.values()), tuple(states), tuple(cuda.kernels.values()), tuple(cuda.records)
    )
    if not cuda.kernels:
        return Planned(made, tuple(weights.arrays), weights.size)
    made, arrays = device_weights_first(made, weights.arrays)
    return Planned(made, arrays, max((offset + array.nbytes for offset, array in arrays), default=0), cuda.blob())


def _plan_entries(module: Module, tables: Tables) -> list[plan.EntryPoint]:
    return [_plan_entry(name, module, tables) for name in module.functions if name not in module.versions]


def _plan_entry(name: str, module: Module, tables: Tables) -> plan.EntryPoint:
    """Specialised versions come first, each behind a comparison of the inputs' shapes, then the general one."""
    function, output_names = module.functions[name], module.output_names[name]
    versions = [module.functions[version] for version, of in module.versions.items() if of == name]
    recorder, inputs, outputs = Recorder(), list[plan.TensorSpec](), list[plan.TensorSpec]()
    residence = Residence(recorder, tables.uses_device)
    params: list[int] = []
    for param in function.params:
        if param.name in tables.states:
            params.append(recorder.value(tensor_of(param), Place(Storage.STATE, tables.states[param.name])))
        else:
            params.append(recorder.value(tensor_of(param), Place(Storage.INPUT, len(inputs))))
            inputs.append(plan.TensorSpec(param.name, tensor_of(param).dtype, tensor_of(param).shape))
    results, places = results_of(function.body), list[Place]()
    for label, result in zip(output_names, results, strict=True):
        if label in tables.states:
            places.append(Place(Storage.STATE, tables.states[label]))
        else:
            places.append(Place(Storage.OUTPUT, len(outputs)))
            outputs.append(plan.TensorSpec(label, tensor_of(result).dtype, tensor_of(result).shape))
            recorder.outputs.append(tensor_of(result).shape)
    done = [_plan_version(residence, tables, function, version, params, places) for version in versions]
    _plan_results(residence, tables, function, params, places)
    recorder.land(*done)
    buffers, arena_size, bound = recorder.placed()
    entry = plan.EntryPoint(
        name, tuple(inputs), tuple(outputs), tuple(recorder.values), buffers, tuple(recorder.steps), arena_size, bound
    )  # fmt: skip
    return with_symbols(entry, recorder.dynamic)


def _plan_results(residence: Residence, tables: Tables, function: Function, params: Sequence[int], places: Sequence[Place]) -> None:
    """The steps of a whole function, with its results in their places."""
    in_outputs = [place if place.storage is Storage.OUTPUT else None for place in places]
    with residence.scope():
        # All at once and first: what follows on the device is not interrupted by them, and becomes one graph.
        residence.require(_read_by_device(tables, function, params), DEVICE, "")
        values = FunctionPlanner(residence, tables, function, params, in_outputs).run()
        origins = [origin_of(result) for result in results_of(function.body)]
        delivered = deliver(residence, list(zip(values, places, strict=True)), origins)
        if residence.uses_device:
            hand_over(residence, delivered)


def _read_by_device(tables: Tables, function: Function, params: Sequence[int]) -> list[int]:
    """The values of parameters that launches read which run in any case."""
    launched = [
        node
        for node in schedule(*results_of(function.body))
        if isinstance(node, Call) and isinstance(node.op, Function) and needs_kernel(node) and node not in tables.joined.wholes
        and tables.compiled[node.op].on_device
    ]  # fmt: skip
    read = {resolve_view(arg)[0] for node in launched for arg in node.args}
    return [value for param, value in zip(function.params, params, strict=True) if param in read]


def _plan_version(
    residence: Residence, tables: Tables, general: Function, version: Function, params: Sequence[int], places: Sequence[Place]
) -> int:
    """A version behind the question whether the inputs have its shapes; the number of the step that jumps behind all versions."""
    recorder = residence.recorder
    away: Dim = 0  # how far the shapes are from the version's
    for one, other in zip(general.params, version.params, strict=True):
        for dim, wanted in zip(tensor_of(one).shape, tensor_of(other).shape, strict=True):
            away = maximum(away, maximum(dim - wanted, wanted - dim))
    elsewhere = recorder.branch_unless(version.name, less=(away, 1))
    inputs = [recorder.value(tensor_of(param), recorder.place(value)) for param, value in zip(version.params, params, strict=True)]
    _plan_results(residence, tables, version, inputs, places)
    finished = recorder.jump(version.name)
    recorder.land(elsewhere)
    return finished


class FunctionPlanner:
    """Plans the nodes of one function: an entry point, or a body of control flow. ``params`` are the values of its parameters;
    ``places`` says of each result where it should be computed if that is possible, ``None``: anywhere."""

    def __init__(
        self, residence: Residence, tables: Tables, function: Function, params: Sequence[int], places: Sequence[Place | None]
    ) -> None:  # fmt: skip
        self.residence, self.recorder, self.tables = residence, residence.recorder, tables
        self.results = results_of(function.body)
        self.value_ids: dict[Expr, tuple[int, ...]] = {param: (value,) for param, value in zip(function.params, params, strict=True)}
        self.wanted: dict[tuple[Expr, int], Place] = {}  # (node, result) that is computed straight into its place
        self.wholes: dict[Expr, int] = {}  # concatenations whose memory exists
        for result, place in zip(self.results, places, strict=True):
            source = resolve_view(result, parts=False)
            if place is not None and isinstance(source[0], (Call, If, Loop)) and self._may_be_in(result, source):
                self.wanted.setdefault(source, place)

    def _may_be_in(self, result: Expr, source: tuple[Expr, int]) -> bool:
        """Whether the memory of a result, whose size a run tells, is as large as what the device would compute there."""
        return not self.residence.uses_device or tensor_of(result).size == flatten(source[0].type)[source[1]].size

    def run(self) -> list[int]:
        """Plans everything; the values of the results."""
        for node in self._order():
            if node not in self.value_ids:
                self.value_ids[node] = self._plan_node(node)
        return [self.value_ids[result][0] for result in self.results]

    def _order(self) -> list[Expr]:
        order = schedule(*self.results)
        return in_stretches(order, self._side, self.tables.in_place) if self.residence.uses_device else order

    def _side(self, node: Expr) -> bool | None:
        """The processor whose step a node is, if it is one."""
        if isinstance(node, (If, Loop)) or is_planned(node):
            return HOST
        if isinstance(node, Call) and isinstance(node.op, Function) and node.op in self.tables.compiled:
            return self.tables.compiled[node.op].on_device
        return None

    def ids(self, exprs: Sequence[Expr]) -> list[int]:
        """The values of tensors that are planned already."""
        return [self.value_ids[expr][0] for expr in exprs]

    def result(self, node: Expr, index: int, type_: TensorType) -> int:
        """A value for a result of ``node``: in its wanted place, in its slot of a concatenation, else in a new buffer."""
        slot = self.tables.joined.slots.get(node)
        if slot is not None:
            return self.recorder.view(self._whole(slot.whole), type_, slot.offset * type_.itemsize)
        place = self.wanted.get((node, index))
        return self.recorder.buffer(type_) if place is None else self.recorder.value(type_, place)

    def _whole(self, node: Call) -> int:
        """The value of a concatenation that no kernel computes: its memory is there as soon as a part needs it."""
        if node not in self.wholes:
            self.wholes[node] = self.result(node, 0, tensor_of(node))
        return self.wholes[node]

    def body(self, function: Function, params: Sequence[int], places: Sequence[Place | None]) -> list[int]:
        """Plans a body of control flow where the plan stands now; the values of its results."""
        return FunctionPlanner(self.residence, self.tables, function, params, places).run()

    def deliver(self, values: Sequence[int], places: Sequence[Place], origin: str) -> None:
        """Values of a body to their places, as the host sees them: so it is what the body leaves, whatever ran in it."""
        self.residence.require(values, HOST, origin)
        deliver(self.residence, list(zip(values, places, strict=True)), [origin] * len(places))

    def zero(self) -> int:
        """The offset of an int64 zero in the weights."""
        return self.tables.weights.add(np.int64(0))

    def _plan_node(self, node: Expr) -> tuple[int, ...]:
        match node:
            case Constant() | Parameter():
                return (self._weight(tensor_of(node), node.data),)
            case Tuple():
                return tuple(i for field in node.fields for i in self.value_ids[field])
            case TupleGetItem():
                return (self.value_ids[node.value][node.index],)
            case If():
                return control_flow.plan_if(self, node)
            case Loop():
                return control_flow.plan_loop(self, node)
            case Call() if is_planned(node):
                return self._plan_dims(node)
            case Call() if is_empty(node):
                return tuple(self._weight(type_, np.zeros(0, type_.dtype)) for type_ in flatten(node.type))
            case Call() if is_view(node):
                value, offset = self.value_ids[node.args[0]][0], cast(Any, view_offset(node)) * tensor_of(node).itemsize
                return (self.residence.same(self.recorder.view(value, tensor_of(node), offset), value),)
            case Call() if node in self.tables.joined.wholes:
                return self._plan_join(node)
            case Call() if isinstance(node.op, Function):
                return self._plan_call(node, node.op)
        raise InvalidModel(f"{getattr(node, 'origin', '')}: {type(node).__name__} cannot be planned; fuse_operators must run before")

    def _plan_call(self, node: Call, function: Function) -> tuple[int, ...]:
        compiled, recorder = self.tables.compiled[function], self.recorder
        arguments = self.ids(node.args)
        if compiled.on_device:
            return self._plan_launches(node, function, compiled, arguments)
        self.residence.require(arguments, HOST, node.origin)
        scratch = [recorder.buffer(type_) for type_ in compiled.scratch]
        if function in self.tables.in_place:
            results = [recorder.view(arguments[self.tables.in_place[function]], tensor_of(node))]
        else:
            results = [self.result(node, i, type_) for i, type_ in enumerate(flatten(node.type))]
        roles = {"input": arguments, "scratch": scratch, "output": results}
        for kernel in cast("tuple[CompiledKernel, ...]", compiled.kernels):
            operands = tuple(roles[role][index] for role, index in kernel.operands)
            number = self.tables.kernel(plan.Kernel(kernel.symbol, len(operands), len(kernel.dims)))
            recorder.step(
                plan.Step(
                    StepKind.KERNEL, operands, kernel.outputs, number, kernel.dims, kernel.tasks, node.origin, function.name, kernel.flops,
                    kernel.round,
                )
            )  # fmt: skip
        recorder.use(*arguments, *scratch, *results)
        for value in results:
            self.residence.made(value, HOST)
        return tuple(results)

    def _plan_launches(self, node: Call, function: Function, compiled: CompiledFunction, arguments: Sequence[int]) -> tuple[int, ...]:
        recorder = self.recorder
        arguments = [self._settled(value, node.origin) for value in arguments]
        self.residence.require(arguments, DEVICE, node.origin)
        inputs = [self._aligned(value, node.origin) for value in arguments]
        scratch = [recorder.buffer(type_) for type_ in compiled.scratch]
        results = [self.result(node, i, type_) for i, type_ in enumerate(flatten(node.type))]
        fits = [self._is_aligned(value) and not recorder.is_growing(value) for value in results]
        written = [value if fit else self._like(value) for value, fit in zip(results, fits, strict=True)]
        roles = {"input": inputs, "scratch": scratch, "output": written}
        for kernel in cast("tuple[CudaKernel, ...]", compiled.kernels):
            operands = tuple(roles[role][index] for role, index in kernel.operands)
            number, dims = self.tables.cuda.kernel(kernel), (*kernel.dims, *kernel.grid)
            recorder.step(
                plan.Step(StepKind.LAUNCH, operands, kernel.outputs, number, dims, 1, node.origin, function.name, kernel.flops)
            )  # fmt: skip
        for made, value in zip(written, results, strict=True):
            self.residence.made(made, DEVICE)
            if made != value:
                copied(self.residence, made, value, node.origin)
        recorder.use(*arguments, *scratch, *written, *results)
        return tuple(results)

    def _settled(self, value: int, origin: str) -> int:
        """A value, or a copy of it where the device cannot see it: memory whose size only a run tells is the host's."""
        if not self.recorder.is_growing(value):
            return value
        copied = self._like(value)
        self.recorder.copy(value, copied, origin)
        return copied

    def _is_aligned(self, value: int) -> bool:
        return is_aligned(self.recorder.values[value].offset)

    def _like(self, value: int) -> int:
        held = self.recorder.values[value]
        return self.recorder.buffer(TensorType(held.shape, held.dtype))

    def _aligned(self, value: int, origin: str) -> int:
        """A value, or a copy of it where a CUDA kernel cannot read it."""
        if self._is_aligned(value):
            return value
        copied = self._like(value)
        self.recorder.copy(value, copied, origin, DEVICE)
        return copied

    def _plan_join(self, node: Call) -> tuple[int, ...]:
        """A concatenation: the parts that were not computed in their place are copied there."""
        whole, offset = self._whole(node), cast(Dim, 0)
        parts = self.ids(parts_of(node))
        where = any(self.residence.only_on_device(part) for part in parts)
        self.residence.require(parts, where, node.origin)
        for arg in parts_of(node):
            part, type_ = self.value_ids[arg][0], tensor_of(arg)
            place = self.recorder.view(whole, type_, offset * type_.itemsize)
            if self.recorder.place(part) != self.recorder.place(place) and type_.size != 0:
                self.recorder.copy(part, place, node.origin, where)
            offset = offset + type_.size
        self.recorder.use(whole)
        self.residence.made(whole, where)
        return (whole,)

    def _plan_dims(self, node: Call) -> tuple[int, ...]:
        """``define_dims``, ``check_dims``, ``anchor``: the first argument, after what the operator does to symbols."""
        value, attrs, recorder = self.value_ids[node.args[0]][0], cast(Any, node.attrs), self.recorder
        if cast(Any, node.op).name == "define_dims":
            self.residence.require([value], HOST, node.origin)
            for element, dim in enumerate(attrs.dims):
                symbol = as_symbol(dim)
                if symbol is not None and symbol.name not in recorder.dynamic:
                    recorder.set_symbol(symbol, element, node.origin, value)
                else:
                    held = recorder.fresh_symbol()
                    recorder.set_symbol(cast(Any, as_symbol(held)), element, node.origin, value)
                    recorder.check(dim, held, node.origin)
        elif cast(Any, node.op).name == "check_dims":
            for left, right in attrs.pairs:
                recorder.check(left, right, node.origin)
        return (value,)

    def _weight(self, type_: TensorType, data: np.ndarray) -> int:
        return self.recorder.value(type_, Place(Storage.WEIGHT, 0, self.tables.weights.add(data)))


def tensor_of(expr: Expr | Var) -> TensorType:
    """The type of ``expr``. Raises InvalidModel where it is no tensor."""
    if not isinstance(expr.type, TensorType):
        raise InvalidModel(f"{getattr(expr, 'origin', '')}: a tensor was expected here, not {expr.type}")
    return expr.type


def origin_of(expr: Expr) -> str:
    return getattr(expr, "origin", "")
