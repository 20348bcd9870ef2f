"""A built file beside ONNX Runtime on one graph: equal, different, or different for a reason."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.errors import InvalidModel, RuntimeFailure, UnsupportedModel
from tests.agreement import assert_agrees
from tests.fuzz.builder import FLOATS, Graph, Skip, evaluate

FIGURES = {"float16": 4e-3, "float32": 1e-4, "float64": 1e-9}
# Of every intermediate result: a few units in the last place of its elements, or of their mean where that is larger (an element
# that is small because others cancelled in it has the error of those).
NOISE = {"float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-51}
AMPLIFIED = 10  # how many times that noise's effect a difference may be
SEEDS = (1, 2, 3, 4)
SHAPE = "build the model for such shapes"
"""Ends what a session says of inputs with which the model contradicts itself, or that were taken for something else."""


@dataclass(frozen=True)
class Outcome:
    """``kind``: equal, refused (aotc says that it lacks something), explained or different. ``outputs`` of the graph have two
    elements or more, ``varied`` of them are not constant."""

    kind: str
    reason: str = ""
    outputs: int = 0
    varied: int = 0


def run_built(graph: Graph) -> list[np.ndarray]:
    """The outputs from a file that is built, loaded and removed."""
    with tempfile.TemporaryDirectory(prefix="aotc-fuzz-") as folder:
        aotc.compile(graph.model, output=Path(folder) / "model.so", jobs=0)
        return list(aotc.load(Path(folder) / "model.so", num_threads=1).run(graph.inputs).values())


def check(graph: Graph, run: Callable[[Graph], Sequence[np.ndarray]] = run_built) -> Outcome:
    """Compares what ``run`` computes with ONNX Runtime. Raises what the build or the run raises, but for refusals."""
    expected = evaluate(graph.model, graph.inputs)
    try:
        found = run(graph)
    except (UnsupportedModel, InvalidModel) as error:
        return Outcome("refused", str(error))
    except RuntimeFailure as error:
        if SHAPE not in str(error):
            raise
        return Outcome("refused", str(error))
    wide = [array for array in expected if array.size > 1]
    counts = (len(wide), sum(_varied(array) for array in wide))
    differences = [text for have, want in zip(found, expected, strict=True) if (text := difference(have, want))]
    if not differences:
        return Outcome("equal", "", *counts)
    if reason := explanation(graph, found, expected):
        return Outcome("explained", reason, *counts)
    return Outcome("different", "; ".join(differences), *counts)


def difference(have: np.ndarray, want: np.ndarray) -> str:
    """What is wrong with an output, or nothing."""
    try:
        assert_agrees(have, want, FIGURES.get(str(want.dtype), 0))
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def explanation(graph: Graph, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """Why a difference is none of aotc's, or nothing: ONNX Runtime's own result changes as much when each intermediate result of
    the graph is off by a few units in its last place, or ONNX's reference says what aotc says."""
    wrong = [number for number, pair in enumerate(zip(found, expected, strict=True)) if difference(*pair)]
    try:
        shaken = [evaluate(shaken_model(graph, seed), graph.inputs) for seed in SEEDS]
        if all(_within(found[number], expected[number], [run[number] for run in shaken]) for number in wrong):
            return "the result depends on the last digits of intermediate results"
    except Skip:
        pass
    names = [graph.model.graph.output[number].name for number in wrong]
    try:
        reference = ReferenceEvaluator(only(graph.model, names)).run(None, graph.inputs)
    except Exception:  # it lacks operators, and fails in many ways
        return ""
    if any(difference(found[number], np.asarray(array)) for number, array in zip(wrong, reference, strict=True)):
        return ""
    makers = sorted({node.op_type for node in graph.model.graph.node if set(node.output) & set(names)})
    return f"ONNX's reference agrees with aotc, ONNX Runtime differs: {', '.join(makers)}"


def only(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """The part of a model that computes ``outputs``."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    needed, nodes = set(outputs), list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.insert(0, node)
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(nodes)
    part.graph.output.extend(value for value in model.graph.output if value.name in outputs)
    return part


def _within(have: np.ndarray, want: np.ndarray, shaken: Sequence[np.ndarray]) -> bool:
    if have.dtype != want.dtype:
        return False
    if any(other.shape != want.shape for other in shaken):
        return True
    if have.shape != want.shape:
        return False
    if str(want.dtype) not in FLOATS:
        return any(np.any(other != want) for other in shaken)
    a, b = have.astype("float64"), want.astype("float64")
    others = [other.astype("float64") for other in shaken]
    if any(not np.array_equal(np.isfinite(other), np.isfinite(b)) for other in others):
        return True
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return False
    moved = max(float(np.abs(other - b)[finite].max(initial=0)) for other in others)
    return float(np.abs(a - b)[finite].max(initial=0)) <= AMPLIFIED * moved


def shaken_model(graph: Graph, seed: int) -> onnx.ModelProto:
    """The model with some noise on every intermediate float."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.node[:]
    outputs = {value.name for value in graph.model.graph.output}
    renamed: dict[str, str] = {}
    for number, node in enumerate(graph.model.graph.node):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        noisy = [(place, name) for place, name in enumerate(node.output) if graph.dtypes.get(name) in FLOATS]
        for place, name in noisy:
            renamed[name] = name if name in outputs else f"{name}_shaken"
            copy.output[place] = f"{name}_exact"
        model.graph.node.append(copy)
        for place, name in noisy:
            _append_noise(model.graph, f"{name}_exact", renamed[name], graph.dtypes[name], seed + 7 * number + place)
    return model


def _append_noise(graph: onnx.GraphProto, source: str, result: str, dtype: str, seed: int) -> None:
    """result = source + noise * max(|source|, mean of |source|), in the wider type."""
    wide, made = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT, helper.make_node

    def name(part: str) -> str:
        return f"{source}_{part}"

    graph.node.extend(
        [
            made("Cast", [source], [name("wide")], to=wide),
            made("RandomUniformLike", [name("wide")], [name("noise")], low=-NOISE[dtype], high=NOISE[dtype], seed=float(seed)),
            made("Abs", [name("wide")], [name("size")]),
            made("ReduceMean", [name("size")], [name("mean")], keepdims=0),
            made("Max", [name("size"), name("mean")], [name("most")]),
            made("Mul", [name("noise"), name("most")], [name("change")]),
            made("Add", [name("wide"), name("change")], [name("sum")]),
            made("Cast", [name("sum")], [result], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
        ]
    )


def _varied(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    return not bool(np.all((flat == flat[0]) | ((flat != flat) & (flat[0] != flat[0]))))
