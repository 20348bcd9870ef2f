"""Operators of the user's own: the example of the documentation, and what goes wrong when one is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.errors import BuildError, InvalidModel, InvalidOption, UnsupportedModel
from aotc.ops.custom import load_operators
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.emulate import emulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_operator" / "operators.py"
Node = helper.make_node


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def of_example(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], rows: int | str = "n") -> onnx.ModelProto:
    model = small.model(nodes, {"x": ("float32", [rows, 24])}, {"y": ("float32", None)}, weights)
    model.opset_import.append(helper.make_opsetid("example", 1))
    return model


def both(rows: int | str = "n") -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A dense layer, soft shrinkage with a Relu, the energy of the rows."""
    weights = {"w": noise(24, 40), "b": noise(40)}
    nodes = [
        Node("Gemm", ["x", "w", "b"], ["g"], name="dense"),
        Node("soft_shrink", ["g"], ["s"], name="shrink", domain="example", bias=0.5),
        Node("Relu", ["s"], ["r"], name="relu"),
        Node("row_energy", ["r"], ["y"], name="energy", domain="example"),
    ]
    return of_example(nodes, weights, rows), weights


def expected(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    dense = torch.from_numpy(x) @ torch.from_numpy(weights["w"]) + torch.from_numpy(weights["b"])
    return torch.nn.functional.softshrink(dense, 0.5).relu().square().sum(-1).numpy()


def labels(path: Path) -> list[str]:
    return [step.label for entry in read_plan(read_packaged(path).plan).entry_points for step in entry.steps]


@pytest.mark.parametrize("rows", ["n", 7])
def test_the_example_from_onnx_fuses_and_agrees(tmp_path: Path, rows: int | str) -> None:
    model, weights = both(rows)
    aotc.compile(model, output=tmp_path / "model.so", operators=load_operators(EXAMPLE))
    loaded = aotc.load(tmp_path / "model.so", num_threads=2)
    for count in (7,) if rows == 7 else (1, 7, 33):
        x = noise(count, 24)
        assert_agrees(loaded.run({"x": x})["y"], expected(x, weights), 1e-5)
    steps = labels(tmp_path / "model.so")
    assert len(steps) == 2 and any("dense" in step and "soft_shrink" in step and "relu" in step for step in steps), steps


def test_the_example_runs_on_an_emulated_board(tmp_path: Path) -> None:
    model, weights = both()
    aotc.compile(model, "jetson-nano", tmp_path / "board.so", device="cpu", operators=load_operators(EXAMPLE))
    x = noise(5, 24)
    assert_agrees(emulate(tmp_path / "board.so", [x], tmp_path, "cortex-a57")["y"], expected(x, weights), 1e-5)


def test_the_example_on_the_command_line(tmp_path: Path) -> None:
    model, weights = both()
    onnx.save(model, tmp_path / "model.onnx")
    command = ["build", str(tmp_path / "model.onnx"), "--output", str(tmp_path / "cli.so"), "--json"]
    without = CliRunner().invoke(app, command)
    assert without.exit_code == UnsupportedModel.exit_code and "custom_operators.md" in without.stderr
    done = CliRunner().invoke(app, [*command, "--operators", str(EXAMPLE)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 2
    x = noise(3, 24)
    assert_agrees(aotc.load(tmp_path / "cli.so").run({"x": x})["y"], expected(x, weights), 1e-5)


@pytest.fixture
def library() -> Iterator[None]:
    """torch.library operators of the names that the example has."""
    with torch.library._scoped_library("example", "DEF") as made:
        made.define("soft_shrink(Tensor x, float bias=0.5) -> Tensor")
        made.define("row_energy(Tensor x, int power=2) -> Tensor")
        made.impl("soft_shrink", torch.nn.functional.softshrink, "CompositeExplicitAutograd")
        made.impl("row_energy", lambda x, power=2: x.abs().pow(power).sum(-1), "CompositeExplicitAutograd")
        yield


class Shrinking(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shrunk = torch.ops.example.soft_shrink(self.dense(x), 0.25).relu()
        return torch.ops.example.row_energy(shrunk, power=3)


def test_the_example_from_torch(tmp_path: Path, library: None) -> None:
    module, x = Shrinking(), torch.from_numpy(noise(6, 24))
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    options = {"args": (x,), "dynamic_shapes": shapes, "operators": load_operators(EXAMPLE)}
    aotc.compile(module, output=tmp_path / "torch.so", **options)
    for rows in (2, 6, 31):
        x = torch.from_numpy(noise(rows, 24))
        assert_agrees(aotc.load(tmp_path / "torch.so").run({"x": x.numpy()})["output"], module(x).detach().numpy(), 1e-5)
    assert len(labels(tmp_path / "torch.so")) == 2


def negated(fusion: str = "elementwise", factor: float = -1.0) -> aotc.CustomOperator:
    from tvm import te

    return aotc.CustomOperator(
        "example::scaled", lambda x, **_: x, lambda x, **_: te.compute(x.shape, lambda *i: x(*i) * factor), fusion=fusion
    )


def test_the_cache_knows_what_an_expression_computes(tmp_path: Path) -> None:
    """Two operators of one name, attributes and types, which differ in what their lambdas hold."""
    model = of_example([Node("scaled", ["x"], ["y"], domain="example")], {}, 2)
    x = noise(2, 24)
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(small.run(model, {"x": x}, tmp_path, operators=[negated(factor=factor)])["y"], x * np.float32(factor))


def test_the_cache_knows_what_a_source_includes(tmp_path: Path) -> None:
    source = tmp_path / "scaled.c"
    source.write_text(
        '#include "aotc_operator.h"\n#include "factor.h"\n'
        "int32_t aotc_operator(const aotc_tensor *in, const aotc_tensor *out, int32_t begin, int32_t end)\n"
        "{ for (int64_t i = 0; i < aotc_elements(in); i++) ((float *)out->data)[i] = ((aotc_input0 *)in->data)[i] * FACTOR; return 0; }\n"
    )
    operator = aotc.CustomOperator("example::scaled", lambda x: x, source=source)
    model, x = of_example([Node("scaled", ["x"], ["y"], domain="example")], {}, 2), noise(2, 24)
    for factor in (2, 3):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {factor}\n")
        np.testing.assert_array_equal(small.run(model, {"x": x}, tmp_path, operators=[operator])["y"], x * np.float32(factor))


def test_the_cache_knows_the_tasks_of_a_source(tmp_path: Path) -> None:
    """The same C cut into other parts: the first writes one row only."""
    source = tmp_path / "rows.c"
    source.write_text(
        """#include "aotc_operator.h"
        int32_t aotc_operator(const aotc_tensor *in, const aotc_tensor *out, int32_t begin, int32_t end)
        {
            int64_t units = in->shape[1];
            for (int64_t i = begin * units; i < end * units; i++) ((float *)out->data)[i] = ((aotc_input0 *)in->data)[i] * 2;
            return 0;
        }"""
    )
    model, x = of_example([Node("rows", ["x"], ["y"], domain="example")], {}, 2), noise(2, 24)
    for rows in (1, 2):
        operator = aotc.CustomOperator("example::rows", lambda x: x, source=source, tasks=lambda x, rows=rows: rows)
        answer = small.run(model, {"x": x}, tmp_path, operators=[operator])["y"]
        np.testing.assert_array_equal(answer[:rows], 2 * x[:rows])


def test_attributes_are_constants_in_c(tmp_path: Path) -> None:
    source = tmp_path / "attributes.c"
    source.write_text(
        """#include "aotc_operator.h"
        #include <string.h>
        int32_t aotc_operator(const aotc_tensor *in, const aotc_tensor *out, int32_t begin, int32_t end)
        {
            float *y = out[0].data;
            int64_t *count = out[1].data;
            y[0] = ATTR_scale; y[1] = ATTR_axes[0]; y[2] = ATTR_axes_COUNT; y[3] = strlen(ATTR_mode); y[4] = ATTR_weights[1];
            y[5] = ATTR_flag; y[6] = in[0].shape[0]; y[7] = sizeof(aotc_input0); y[8] = AOTC_INPUTS;
            count[0] = in[0].shape[0] * in[0].shape[1];
            return ATTR_mode[0] != 'a';
        }""".replace("#include <string.h>", "#define strlen __builtin_strlen")
    )
    operator = aotc.CustomOperator(
        "example::all", lambda x, **_: [aotc.TensorType((9,), "float32"), aotc.TensorType((1,), "int64")],
        source=source, attributes={"flag": True, "scale": 1.0},
    )  # fmt: skip
    node = Node("all", ["x"], ["y", "count"], domain="example", scale=0.1, axes=[-3, 4], mode='a"\\n', weights=[0.5, 0.25])
    model = of_example([node], {})
    model.graph.output.append(helper.make_tensor_value_info("count", onnx.TensorProto.INT64, [1]))
    answers = small.run(model, {"x": noise(5, 24)}, tmp_path, operators=[operator])
    np.testing.assert_allclose(answers["y"], [0.1, -3, 2, 4, 0.25, 1, 5, 4, 1], rtol=1e-7)
    assert answers["count"] == 120


WRONG_C = {
    "compiler": ("int32_t aotc_operator(", "wrong.c:"),
    "missing": ("static int unused;", "aotc_operator"),
    "symbols": ("#include <stdlib.h>\n{SIGNATURE} { return rand(); }", "needs rand"),
    "globals": ("int counter;\n{SIGNATURE} { return 0; }", "defines counter"),
}
SIGNATURE = "int32_t aotc_operator(const aotc_tensor *in, const aotc_tensor *out, int32_t begin, int32_t end)"


@pytest.mark.parametrize("kind", WRONG_C)
def test_faults_in_c_name_file_and_node(tmp_path: Path, kind: str) -> None:
    text, message = WRONG_C[kind]
    (tmp_path / "wrong.c").write_text('#include "aotc_operator.h"\n' + text.replace("{SIGNATURE}", SIGNATURE) + "\n")
    operator = aotc.CustomOperator("example::wrong", lambda x: x, source=tmp_path / "wrong.c")
    model = of_example([Node("wrong", ["x"], ["y"], name="the_node", domain="example")], {})
    with pytest.raises(BuildError) as caught:
        aotc.compile(model, output=tmp_path / "model.so", operators=[operator])
    assert message in str(caught.value) and "the_node" in str(caught.value) and "wrong.c" in str(caught.value)


def test_a_kernel_that_fails_names_the_node(tmp_path: Path) -> None:
    (tmp_path / "fails.c").write_text(f'#include "aotc_operator.h"\n{SIGNATURE} {{ return 7; }}\n')
    operator = aotc.CustomOperator("example::fails", lambda x: x, source=tmp_path / "fails.c")
    model = of_example([Node("fails", ["x"], ["y"], name="the_node", domain="example")], {})
    with pytest.raises(aotc.RuntimeFailure, match="the_node"):
        small.run(model, {"x": noise(2, 24)}, tmp_path, operators=[operator])


def test_faults_in_python_name_the_node(tmp_path: Path) -> None:
    from tvm import te

    def shifted(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda i, j: x(i, 23 - j))

    cases: list[tuple[type[Exception], str, aotc.CustomOperator]] = [
        (InvalidModel, "shape rule failed", aotc.CustomOperator("example::op", lambda x, beta: x, negated().expression)),
        (InvalidModel, "returned 5", aotc.CustomOperator("example::op", lambda x: 5, negated().expression)),  # type: ignore[arg-type, return-value]
        (BuildError, "ZeroDivisionError", aotc.CustomOperator("example::op", lambda x: x, lambda x: 1 // 0)),
        (
            BuildError,
            "shape rule says",
            aotc.CustomOperator("example::op", lambda x: aotc.TensorType((3,), "float32"), negated().expression),
        ),
        (BuildError, "at other places", aotc.CustomOperator("example::op", lambda x: x, shifted, fusion="elementwise")),
    ]
    for kind, message, operator in cases:
        model = of_example([Node("op", ["x"], ["y"], name="the_node", domain="example")], {})
        with pytest.raises(kind, match=message) as caught:
            aotc.compile(model, output=tmp_path / "model.so", operators=[operator])
        assert "the_node" in str(caught.value)
    model = of_example([Node("op", ["x"], ["y"], domain="example")], {})
    moved = aotc.CustomOperator("example::op", lambda x: x, shifted, fusion="injective")
    x = noise(2, 24)
    np.testing.assert_array_equal(small.run(model, {"x": x}, tmp_path, operators=[moved])["y"], x[:, ::-1])


def test_definitions_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="domain::operator"):
        aotc.CustomOperator("plain", lambda x: x, lambda x: x)
    with pytest.raises(InvalidOption, match="not both"):
        aotc.CustomOperator("a::b", lambda x: x)
    with pytest.raises(InvalidOption, match="no file"):
        aotc.CustomOperator("a::b", lambda x: x, source=tmp_path / "missing.c")
    with pytest.raises(InvalidOption, match="two custom operators"):
        aotc.compile(both()[0], output=tmp_path / "model.so", operators=[*load_operators(EXAMPLE), *load_operators(EXAMPLE)])
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(InvalidOption, match="defines no"):
        load_operators(tmp_path / "none.py")
    (tmp_path / "notes.txt").write_text("no Python\n")
    with pytest.raises(InvalidOption, match="cannot be run: SyntaxError"):
        load_operators(tmp_path / "notes.txt")


def test_an_operator_of_onnx_can_be_replaced(tmp_path: Path) -> None:
    own = aotc.CustomOperator("ai.onnx::Relu", lambda x: x, negated().expression, fusion="elementwise")
    model = small.model([Node("Relu", ["x"], ["y"])], {"x": ("float32", [4])}, {"y": ("float32", [4])})
    x = noise(4)
    np.testing.assert_array_equal(small.run(model, {"x": x}, tmp_path, operators=[own])["y"], -x)
