"""From a fused module to steps, values and buffers, with kernels that are only named."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel, UnsupportedModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Tuple, TupleGetItem, Var, call
from aotc.ir.types import TensorType, flatten, tensor
from aotc.ir.visitor import post_order
from aotc.lowering.compiled import CompiledFunction, CompiledKernel
from aotc.lowering.plan import EntryPoint, StepKind, Storage
from aotc.lowering.planner import Planned, make_plan


def fused(*args: Expr, build: ops.OpDef, origin: str = "", **attrs: object) -> Call:
    """A call of a primitive function that holds one operator."""
    params = tuple(Var(f"p{i}", arg.type) for i, arg in enumerate(args))
    return call(Function(params, build(*params, **attrs), build.name, primitive=True), args, origin=origin)


def planned(inputs: list[Var], body: Expr) -> tuple[Planned, EntryPoint]:
    names = tuple(f"y{i}" for i in range(len(flatten(body.type))))
    module = Module({"main": Function(tuple(inputs), body)}, {"main": names})
    compiled = {}
    for node in post_order(body):
        if isinstance(node, Call) and isinstance(node.op, Function):
            results = len(flatten(node.type))
            operands = tuple(("input", i) for i in range(len(node.args))) + tuple(("output", i) for i in range(results))
            compiled[node.op] = CompiledFunction((CompiledKernel(f"k_{node.op.name}", b"", operands, results),))
    plan = make_plan(module, compiled, {})
    return plan, plan.plan.entry_points[0]


def test_chain_reuses_memory_and_ends_in_the_output() -> None:
    x = Var("x", tensor("float32", 64))
    body: Expr = x
    for _ in range(4):
        body = fused(body, build=ops.relu)
    _, entry = planned([x], body)
    assert [s.kind for s in entry.steps] == [StepKind.KERNEL] * 4
    assert entry.values[entry.steps[-1].arguments[-1]].storage is Storage.OUTPUT
    assert entry.arena_size == 2 * 256 == entry.arena_lower_bound


def test_reshape_is_a_view_even_of_the_output() -> None:
    x = Var("x", tensor("float32", 4, 6))
    body = fused(fused(x, build=ops.relu), build=ops.reshape, shape=(24,))
    _, entry = planned([x], body)
    assert len(entry.steps) == 1 and not entry.buffers
    assert entry.outputs[0].shape == (24,)


def test_outputs_that_are_inputs_weights_or_each_other_are_copied() -> None:
    x = Var("x", tensor("float32", 8))
    y = fused(x, build=ops.relu)
    body = Tuple((y, x, y, Parameter("w", np.ones(3, np.float32))))
    _, entry = planned([x], body)
    assert [s.kind for s in entry.steps] == [StepKind.KERNEL] + [StepKind.COPY] * 3
    targets = [entry.values[s.arguments[-1]].index for s in entry.steps]
    assert targets == [0, 1, 2, 3]


def test_alias_keeps_its_memory_alive() -> None:
    """Case 21: a = x + .25; b a view of a; c = x + .125; out = b + c: a's memory is not reused while b lives."""
    x = Var("x", tensor("float32", 2, 8))
    a = fused(x, Constant(np.float32(0.25)), build=ops.add)
    b = fused(a, build=ops.reshape, shape=(16,))
    c = fused(fused(x, Constant(np.float32(0.125)), build=ops.add), build=ops.reshape, shape=(16,))
    _, entry = planned([x], fused(b, c, build=ops.add))
    first, second = entry.buffers
    assert first.last_step == second.last_step == 2
    assert first.offset != second.offset


def test_equal_weights_are_stored_once() -> None:
    x = Var("x", tensor("float32", 5))
    one, two = (Parameter(name, np.arange(5, dtype=np.float32)) for name in "ab")
    plan, _ = planned([x], fused(fused(x, one, build=ops.add), two, build=ops.add))
    assert len(plan.weights) == 1 and plan.weights_size == 20


def test_tuple_results_have_a_value_each() -> None:
    x = Var("x", tensor("float32", 3, 9))
    both = fused(x, build=ops.top_k, k=2, axis=1, largest=True, sorted=True)
    _, entry = planned([x], Tuple((TupleGetItem(both, 1), TupleGetItem(both, 0))))
    (step,) = entry.steps
    assert step.outputs == 2
    assert [entry.values[i].index for i in step.arguments[1:]] == [1, 0]
    assert entry.outputs[0].dtype == "int64"


def test_results_without_elements_need_no_kernel() -> None:
    """What they are computed from does not matter; a sum over nothing is still a kernel's."""
    x, y = Var("x", tensor("float32", 0, 3)), Var("y", tensor("float32", 2, 3))
    none = fused(y, build=ops.top_k, k=0, axis=1, largest=True, sorted=True)
    total = fused(x, build=ops.sum_, axes=(0,), keepdims=False)
    _, entry = planned([x, y], Tuple((fused(x, build=ops.relu), TupleGetItem(none, 1), total)))
    assert [step.label for step in entry.steps] == ["sum", "copy", "copy"]
    assert [spec.shape for spec in entry.outputs] == [(0, 3), (2, 0), (3,)]


def test_symbolic_sizes_are_left_to_the_session() -> None:
    x = Var("x", TensorType((symbol("b", 1, 8), 4), "float32"))
    _, entry = planned([x], fused(fused(x, build=ops.relu), build=ops.relu))
    assert entry.arena_size is None and entry.buffers[0].offset is None
    assert [(s.name, s.lower, s.upper, s.input, s.axis) for s in entry.symbols] == [("b", 1, 8, 0, 0)]


def test_a_symbol_that_no_input_shows_is_refused() -> None:
    x = Var("x", TensorType((symbol("b", 1) * symbol("c", 1), 4), "float32"))
    with pytest.raises(InvalidModel, match="dims b, c appear in input shapes only inside expressions"):
        planned([x], fused(x, build=ops.relu))


def test_tensors_beyond_int32_are_refused() -> None:
    x = Var("x", tensor("float32", 65536, 32768))
    with pytest.raises(UnsupportedModel, match="2\\^31"):
        planned([x], fused(x, build=ops.relu))
