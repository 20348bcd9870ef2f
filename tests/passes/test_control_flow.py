"""What passes do to branches and loops."""

from __future__ import annotations

import numpy as np

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.ir.equal import first_difference
from aotc.ir.expr import Constant, Function, If, Loop, Module, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import tensor
from aotc.ir.verify import verify
from aotc.ops.interpret import interpret
from aotc.passes.number_iterations import number_iterations
from aotc.passes.options import options_for
from aotc.passes.sink_constants import sink_constants
from aotc.passes.solve_shapes import solve_shapes

OPTIONS = options_for(targets.get("x86-64-v3"), frozenset(), False)
X, FLAG = Var("x", tensor("float32", 2)), Var("flag", tensor("bool"))
WEIGHT = Parameter("w", np.float32([3, 4]))


def looping() -> Module:
    i, s, w, unused = (Var(name, type_) for name, type_ in (("i", tensor("int64")), ("s", X.type), ("w", X.type), ("unused", X.type)))
    body = Function((i, s, w, unused), Tuple((ops.add(s, ops.multiply(w, ops.cast(i, dtype="float32"))), s)), "body")
    loop = Loop(body, 3, None, (X,), (), (WEIGHT, X), limit=3)
    a, b, c, d = (Var(name, X.type) for name in "abcd")
    chosen = If(FLAG, Function((a, b), ops.add(a, b)), Function((c, d), d), (TupleGetItem(loop, 0), WEIGHT), X.type)
    return Module({"main": Function((X, FLAG), Tuple((chosen, TupleGetItem(loop, 1))), "main")}, {"main": ("y", "z")})


def test_iterations_get_symbols_of_their_own() -> None:
    module = looping()
    after = number_iterations(module, OPTIONS)
    verify(after)
    assert number_iterations(after, OPTIONS) is after
    for flag in (True, False):
        inputs = [np.float32([1, 2]), np.array(flag)]
        for one, other in zip(interpret(module.main, inputs), interpret(after.main, inputs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_move_into_bodies() -> None:
    module = looping()
    after = sink_constants(module, OPTIONS)
    verify(after)
    chosen = after.main.body.fields[0]  # type: ignore[union-attr]
    assert isinstance(chosen, If) and len(chosen.args) == 1 and len(chosen.then.params) == 1
    loop = chosen.args[0].value  # type: ignore[union-attr]
    assert isinstance(loop, Loop) and not loop.captured and len(loop.body.params) == 2
    for flag in (True, False):
        got = interpret(after.main, [np.float32([1, 2]), np.array(flag)])
        end = np.float32([1 + 9, 2 + 12])
        np.testing.assert_array_equal(got[0], end + np.float32([3, 4]) if flag else np.float32([3, 4]))
        np.testing.assert_array_equal(got[1], np.float32([[1, 2], [1, 2], [4, 6]]))
    assert sink_constants(after, OPTIONS) is after


def test_a_size_whose_bounds_say_more_than_is_known_stays_a_check() -> None:
    x, size = Var("x", tensor("float32", symbol("n", 1))), symbol("u0", 3, 9)
    count = ops.define_dims(ops.dims(values=(symbol("n", 1),), scalar=True), dims=(size,))
    function = Function((x,), ops.anchor(ops.relu(ops.reshape(x, shape=(size,))), count), "main")
    module = Module({"main": function}, {"main": ("y",)})
    assert solve_shapes(module, OPTIONS) is module


def test_a_size_that_turns_out_to_be_known_is_known_everywhere() -> None:
    x, size = Var("x", tensor("float32", symbol("n", 1), 4)), symbol("u0", 0)
    count = ops.define_dims(ops.gather(ops.shape_of(x), Constant(np.int64(1)), axis=0), dims=(size,))
    prefix = ops.slice_(x, begins=(0, 0), ends=(symbol("n", 1), size), steps=(1, 1))
    module = Module({"main": Function((x,), ops.anchor(ops.relu(prefix), count), "main")}, {"main": ("y",)})
    after = solve_shapes(module, OPTIONS)
    verify(after)
    assert after.main.body.type == tensor("float32", symbol("n", 1), 4)
    assert first_difference(solve_shapes(after, OPTIONS), after) is None
