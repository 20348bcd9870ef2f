"""Inputs, computed shapes, weights, names and order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.errors import InvalidOption, UnsupportedModel
from aotc.frontends.onnx import import_onnx
from aotc.ir.dims import symbol
from aotc.ir.expr import Call, Parameter
from aotc.ir.types import TensorType, tensor
from aotc.ir.visitor import calls_of, post_order
from tests.frontends.onnx.helpers import check, parse, random, run


def test_case_34_a_computed_shape_with_any_batch() -> None:
    body = """(float[N, 4, 6] x) => (float y) {
        shape = Shape (x)
        zero = Constant <value=int64[1] {0}> ()
        batch = Gather (shape, zero)
        four = Constant <value=int64[1] {4}> ()
        rows = Mul (batch, four)
        small = Cast <to=6> (rows)
        wide = Cast <to=7> (small)
        rest = Constant <value=int64[1] {-1}> ()
        target = Concat <axis=0> (wide, rest)
        y = Reshape (x, target)
    }"""
    module = check(body, *({"x": random(n, 4, 6)} for n in (1, 2, 7)))
    n = symbol("N")
    assert module.main.params[0].type == tensor("float32", n, 4, 6)
    assert module.main.body.type == tensor("float32", n * 4, 6)
    assert [call.op.name for call in calls_of(module.main)] == ["reshape"]  # type: ignore[union-attr]


def test_sizes_computed_in_floats() -> None:
    """What PyTorch writes for interpolate(scale_factor=0.5) of a dynamic size."""
    body = """(float[1, 2, H, W] x) => (float y) {
        shape = Shape (x)
        two = Constant <value=int64[1] {2}> () four = Constant <value=int64[1] {4}> ()
        size = Slice (shape, two, four)
        wide = Cast <to=1> (size)
        half = Constant <value_float=0.5> ()
        scaled = Mul (wide, half)
        whole = Floor (scaled)
        back = Cast <to=7> (whole)
        kept = Constant <value=int64[2] {1, 2}> ()
        sizes = Concat <axis=0> (kept, back)
        y = Resize <mode="linear"> (x, , , sizes)
    }"""
    module = check(body, *({"x": random(1, 2, *size)} for size in ((4, 6), (5, 9))))
    assert module.main.body.type == tensor("float32", 1, 2, symbol("H") // 2, symbol("W") // 2)


def test_expand_as_pytorch_writes_it() -> None:
    """-1 keeps a dim: Where (Equal (shape, -1), ones, shape)."""
    body = """(float[N, 1, 3] x) => (float y) {
        shape = Shape (x)
        zero = Constant <value=int64[1] {0}> ()
        n = Gather (shape, zero)
        rest = Constant <value=int64[2] {5, -1}> ()
        wanted = Concat <axis=0> (n, rest)
        minus = Constant <value=int64[1] {-1}> ()
        ones = Constant <value=int64[3] {1, 1, 1}> ()
        free = Equal (wanted, minus)
        final = Where (free, ones, wanted)
        y = Expand (x, final)
    }"""
    module = check(body, *({"x": random(n, 1, 3)} for n in (1, 4)))
    assert module.main.body.type == tensor("float32", symbol("N"), 5, 3)


def test_a_shape_whose_rank_depends_on_data_is_refused_by_name() -> None:
    body = "(float[4] x, int64[N] target) => (float y) { [bend] y = Reshape (x, target) }"
    with pytest.raises(UnsupportedModel, match="Reshape at 'bend': the shape depends on data that is known only at run time"):
        import_onnx(parse(body))


@pytest.mark.parametrize("allowzero", [0, 1])
def test_case_35_reshape_of_zero_sized_dims(allowzero: int) -> None:
    target = "{0, 2, 5}" if allowzero else "{0, 0, 4, 1}"
    count = 3 if allowzero else 4
    body = f"(float[2,0,4] x) => (float y) {{ s = Constant <value=int64[{count}] {target}> () y = Reshape <allowzero={allowzero}> (x, s) }}"
    check(body, {"x": np.zeros((2, 0, 4), np.float32)})


@pytest.mark.parametrize(
    "body",
    [
        "y = Flatten (x)",
        "y = Concat <axis=1> (x, x)",
        "a = Constant <value=int64[1] {1}> () y = ReduceSum (x, a)",
        "w = Constant <value=float[4, 1] {1.0, 2.0, 3.0, 4.0}> () y = MatMul (x, w)",
        "t = Transpose <perm=[0, 2, 1]> (x) y = MatMul (t, x)",
        "y = Softmax <axis=-1> (x)",
    ],
)
def test_case_35_zero_sized_dims(body: str) -> None:
    check(f"(float[2,0,4] x) => (float y) {{ {body} }}", {"x": np.zeros((2, 0, 4), np.float32)})


def test_case_35_convolution_of_no_batch() -> None:
    body = "(float[0,2,5,5] x, float[3,2,3,3] w) => (float y) { y = Conv (x, w) }"
    check(body, {"x": np.zeros((0, 2, 5, 5), np.float32), "w": random(3, 2, 3, 3)})


def test_case_36_pads_that_are_computed() -> None:
    """Padding up to a multiple of 4, as detectors do."""
    body = """(float[1, 2, H, 6] x) => (float y) {
        shape = Shape (x) two = Constant <value=int64[1] {2}> ()
        h = Gather (shape, two)
        four = Constant <value=int64[1] {4}> ()
        minus = Neg (h)
        lack = Mod (minus, four)
        before = Constant <value=int64[6] {0, 0, 0, 1, 0, 0}> ()
        none = Constant <value=int64[1] {0}> ()
        pads = Concat <axis=0> (before, lack, none)
        y = Pad (x, pads)
    }"""
    module = check(body, *({"x": random(1, 2, h, 6)} for h in (4, 5, 7)))
    assert module.main.body.type.shape[2] == symbol("H") + (-symbol("H")) % 4  # type: ignore[union-attr]


def test_case_36_a_pad_value_that_is_data() -> None:
    body = "(float[2,3] x, float v) => (float y) { p = Constant <value=int64[4] {0, 1, 2, 0}> () y = Pad (x, p, v) }"
    check(body, {"x": random(2, 3), "v": np.array(7, np.float32)})


def test_case_38_constant_nodes_colons_unnamed_and_negative_dims() -> None:
    x = helper.make_tensor_value_info("in:0", TensorProto.FLOAT, [None, -1, 3])
    y = helper.make_tensor_value_info("out:0", TensorProto.FLOAT, ["whatever"])  # a declared output rank that is wrong
    weight = numpy_helper.from_array(random(3, 40), "value")
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["w:0"], value=weight), helper.make_node("MatMul", ["in:0", "w:0"], ["out:0"], name="scope/mm:1")],
        "g", [x], [y],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    module = import_onnx(model)
    first, second = symbol("in_0_0"), symbol("in_0_1")
    assert module.main.params[0].name == "in:0" and module.main.params[0].type == tensor("float32", first, second, 3)
    assert module.output_names["main"] == ("out:0",) and module.main.body.type == tensor("float32", first, second, 40)
    assert isinstance(module.main.body, Call) and module.main.body.origin == "scope/mm:1"
    assert [node.name for node in post_order(module.main.body) if isinstance(node, Parameter)] == ["w:0"]
    data = random(2, 5, 3)
    np.testing.assert_allclose(run(module, {"in:0": data})[0], data @ numpy_helper.to_array(weight), rtol=1e-5, atol=1e-6)


def test_case_25_integer_and_boolean_outputs() -> None:
    x = np.random.default_rng(0).integers(0, 255, (2, 3, 4)).astype(np.uint8)
    body = """(uint8[2,3,4] x) => (uint8 a, int64 b, bool c, int64 d, uint8 e) {
        axes = Constant <value=int64[1] {1}> ()
        a = ReduceMax (x, axes)
        b = ArgMax <axis=2, keepdims=0, select_last_index=1> (x)
        limit = Constant <value=uint8 {128}> ()
        c = Less (x, limit)
        d = Cast <to=7> (x)
        e = ReduceMin <keepdims=0> (x)
    }"""
    check(body, {"x": x}, opset=18)


def test_optional_weights_are_parameters_and_shapes_are_constants() -> None:
    body = "(float[4] x) => (float y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}, int64[2] s = {2, 2}> { r = Reshape (x, s) y = MatMul (r, w) }"
    module = check(body, {"x": random(4)})
    parameters = [node for node in post_order(module.main.body) if isinstance(node, Parameter)]
    assert [(p.name, p.origin, p.data.tolist()) for p in parameters] == [("w", "w", [[1.0, 2.0], [3.0, 4.0]])]
    assert not parameters[0].data.flags.writeable


def test_inputs_that_are_initialisers_are_no_inputs() -> None:
    """Files before IR version 4 list weights among the inputs."""
    model = parse("(float[2] x, float[2] w) => (float y) { y = Add (x, w) }", 9)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    assert [param.name for param in import_onnx(model).main.params] == ["x"]


def test_nodes_in_any_order_and_without_use() -> None:
    model = parse("(float[2] x) => (float y) { a = Relu (x) b = Neg (a) unused = LSTM (b) y = Exp (b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [call.op.name for call in calls_of(import_onnx(model).main)] == ["relu", "negative", "exp"]  # type: ignore[union-attr]


def test_an_if_whose_condition_is_known() -> None:
    """PyTorch writes one to squeeze a dim of 1; the branch that is not taken may hold anything."""
    body = """(float[N, 1, 3] x) => (float y) {
        shape = Shape <start=1, end=2> (x)
        one = Constant <value=int64[1] {1}> ()
        flag = Equal (shape, one)
        scalar = Squeeze (flag)
        y = If (scalar) <
            then_branch = t () => (float a) { a = Squeeze (x, one) },
            else_branch = e () => (float b) { b = LSTM (x) }
        >
    }"""
    model = parse(body)
    module = import_onnx(model)
    data = random(2, 1, 3)
    np.testing.assert_array_equal(run(module, {"x": data})[0], data[:, 0])


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_whose_condition_is_data(flag: bool) -> None:
    body = """(bool c, float[2] x) => (float y) { y = If (c) <then_branch = t () => (float a) { a = Relu (x) },
        else_branch = e () => (float b) { b = Neg (x) }> }"""
    check(parse(body), {"c": np.array(flag), "x": random(2)})


def test_local_functions_and_their_attributes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "mine" : 1]>
    g (float[2, 3] x) => (float y) { a = mine.scaled <slope = 0.25> (x) y = mine.scaled (a) }
    <domain: "mine", opset_import: ["" : 18]> scaled <slope: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }"""
    module = check(onnx.parser.parse_model(text), {"x": random(2, 3)})
    slopes = [(call.attrs.alpha, call.origin) for call in calls_of(module.main)]  # type: ignore[attr-defined]
    assert slopes == [(0.25, "a/y"), (0.5, "y/y")]


def test_functions_of_onnx_itself() -> None:
    """AffineGrid has no handler here: its body is expanded."""
    body = "(float[2,2,3] x) => (float y) { s = Constant <value=int64[4] {2, 1, 4, 5}> () y = AffineGrid (x, s) }"
    check(body, {"x": random(2, 2, 3)}, opset=20)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ijk,jk", [(2, 3, 4), (3, 4)]),
        ("bc,bc->b", [(2, 3), (2, 3)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for shape, name in zip(shapes, names, strict=True))
    feeds = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(zip(names, shapes, strict=True))}
    check(f'({inputs}) => (float y) {{ y = Einsum <equation="{equation}"> ({", ".join(names)}) }}', feeds, opset=13)


# The inputs' shapes ------------------------------------------------------------------------------------------------

TWO = "(float[batch, 4] a, float[batch, 4] b) => (float y) { y = Add (a, b) }"


def types(module) -> list[TensorType]:  # type: ignore[no-untyped-def]
    return [param.type for param in module.main.params]


def test_an_override_reaches_the_other_inputs_of_the_same_dim() -> None:
    assert types(import_onnx(parse(TWO), {"a": (3, 4)})) == [tensor("float32", 3, 4)] * 2
    bounded = symbol("n", 1, 8)
    module = import_onnx(parse(TWO), {"a": (bounded, None)})
    assert types(module) == [tensor("float32", bounded, 4)] * 2 and module.symbols["n"].upper == 8
    assert types(import_onnx(parse(TWO), {"b": ("rows", 4)})) == [tensor("float32", symbol("rows"), 4)] * 2


def test_dims_are_at_least_one() -> None:
    assert import_onnx(parse(TWO)).symbols["batch"].lower == 1


@pytest.mark.parametrize(
    "override, message",
    [
        ({"c": (3, 4)}, "no input 'c'; its inputs are 'a', 'b'"),
        ({"a": (3,)}, "input 'a' has 2 axes, not 1"),
        ({"a": (3, -4)}, "axis 1 of input 'a' must be a number of at least 0"),
        ({"a": "3x4"}, "must be a sequence"),
    ],
)
def test_overrides_that_do_not_fit(override: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        import_onnx(parse(TWO), override)  # type: ignore[arg-type]


def test_an_input_without_a_shape_needs_one() -> None:
    model = parse("(float x) => (float y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InvalidOption, match="input 'x' has no declared shape; give one"):
        import_onnx(model)
    assert types(import_onnx(model, {"x": (2, "n")})) == [tensor("float32", 2, symbol("n"))]


def test_names_of_dims_become_words() -> None:
    model = parse("(float[N, M] a) => (float y) { y = Relu (a) }")
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, ("p2o.Dim.0", "max"), strict=True):
        dim.dim_param = name
    assert types(import_onnx(model)) == [tensor("float32", symbol("p2o_Dim_0"), symbol("max_"))]


def test_inputs_that_are_not_tensors_of_numbers() -> None:
    with pytest.raises(UnsupportedModel, match="input 'x' is of string; aotc has bfloat16, bool, float16"):
        import_onnx(parse("(string[2] x) => (string y) { y = Identity (x) }"))
    with pytest.raises(UnsupportedModel, match="input 'x' is of sequence; aotc takes dense tensors"):
        import_onnx(parse("(seq(float[2]) x) => (seq(float[2]) y) { y = Identity (x) }"))
