"""Builds a random ONNX graph node by node; ONNX Runtime says at once what each node computes, and whether it may stand there.

So a graph is valid by construction, and whoever adds a node sees shapes, dtypes and values of what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

IR_VERSION = 10
LARGEST = {"float16": 2e3, "float32": 1e6, "float64": 1e6}
SIZES = (3, 1, 2, 4, 5, 7, 8, 16, 17, 0)
FLOATS = ("float32", "float16", "float64")
SIGNED = ("int64", "int32", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")

Draw = Callable[[Sequence[Any]], Any]
"""Chooses one of several; the first is the simplest."""


class Skip(Exception):
    """What was tried does not fit the graph."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph and what it holds for the graph's inputs. ``is_weight``: of a shape that the operator asks for."""

    name: str
    array: np.ndarray
    is_input: bool = False
    is_weight: bool = False

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass(frozen=True)
class Graph:
    """A model with inputs for it, by name, and the dtype of each value in it."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    dtypes: dict[str, str]

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]


@dataclass
class Builder:
    """A graph that grows."""

    choose: Draw
    rng: np.random.Generator
    opset: int
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    # ---- choices ----

    def flag(self) -> bool:
        return bool(self.choose((False, True)))

    def integer(self, low: int, high: int) -> int:
        """Of [low, high]; those nearest to ``low`` are simplest."""
        return int(self.choose(range(low, high + 1)))

    def shape(self, rank: int, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
        return tuple(int(self.choose(sizes)) for _ in range(rank))

    # ---- values ----

    def value(
        self, dtypes: Sequence[str] = FLOATS, ranks: Sequence[int] = (2, 1, 3, 0, 4), fits: Callable[[Value], bool] | None = None,
        sizes: Sequence[int] = SIZES, kind: str = "normal",
    ) -> Value:  # fmt: skip
        """One that is there, or a new input."""
        there = [value for value in self.values if value.dtype in dtypes and value.rank in ranks and (fits is None or fits(value))]
        if there and self.choose((True, True, True, False)):
            return self.choose(there[::-1][:6])
        made = self.array(self.choose(dtypes), self.shape(self.choose(ranks), sizes), kind)
        if fits is not None and not fits(Value("", made)):
            raise Skip
        return self.input(made)

    def like(self, other: Value, shape: Sequence[int] | None = None, kind: str = "normal") -> Value:
        """A value of the same dtype and of ``shape`` (by default the same): one that is there, an input or a constant."""
        shape = other.shape if shape is None else tuple(shape)
        there = [value for value in self.values if value.dtype == other.dtype and value.shape == shape and value is not other]
        if there and self.flag():
            return self.choose(there[::-1][:6])
        made = self.array(other.dtype, shape, kind)
        return self.constant(made) if self.flag() else self.input(made, is_weight=shape != other.shape)

    def broadcast(self, other: Value, kind: str = "normal") -> Value:
        """A value that broadcasts with ``other``: its shape, or one with axes of size 1 or left out."""
        there = [value for value in self.values if value.dtype == other.dtype and _broadcasts(value.shape, other.shape)]
        if there and self.flag():
            return self.choose(there[::-1][:6])
        shape = [1 if self.choose((False, False, True)) else size for size in other.shape]
        return self.like(other, shape[self.integer(0, len(shape)) if self.flag() else 0 :], kind)

    def array(self, dtype: str, shape: Sequence[int], kind: str = "normal") -> np.ndarray:
        rng, made = self.rng, np.dtype(dtype)
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if made.kind in "iu":
            low = 1 if kind == "positive" else 0 if made.kind == "u" else -7
            return rng.integers(low, 12, shape).astype(made)
        if kind == "positive":
            return np.asarray(rng.uniform(0.25, 2, shape)).astype(made)
        if kind == "unit":
            return np.asarray(rng.uniform(-0.99, 0.99, shape)).astype(made)
        if kind == "halves":
            return np.asarray(rng.integers(-8, 9, shape) / 2).astype(made)
        return np.asarray(rng.standard_normal(shape)).astype(made)

    def input(self, array: np.ndarray, is_weight: bool = False) -> Value:
        value = Value(f"x{len(self.values)}", np.asarray(array), is_input=True, is_weight=is_weight)
        self.values.append(value)
        return value

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return Value(name, self.constants[name])

    def ints(self, *values: int) -> Value:
        """A constant of int64 numbers, as shapes and axes are."""
        return self.constant(np.array(values, np.int64))

    # ---- nodes ----

    def node(self, operator: str, inputs: Sequence[Value | None], outputs: int = 1, domain: str = "", **attributes: Any) -> list[Value]:
        """Adds a node. Raises Skip where ONNX Runtime does not take it, or where most of what it computes is out of bounds."""
        names = [value.name if value is not None else "" for value in inputs]
        results = [f"y{len(self.values) + i}" for i in range(outputs)]
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(operator, names, results, domain=domain, **kept)
        arrays = {value.name: value.array for value in inputs if value is not None}
        found = evaluate(self._model([node], arrays, results), {name: arrays[name] for name in arrays if name not in self.constants})
        if not all(_within_bounds(array) for array in found):
            raise Skip
        made = [Value(name, array) for name, array in zip(results, found, strict=True)]
        self.values += made
        self.nodes.append(node)
        self.used |= set(names)
        return made

    def _model(self, nodes: Sequence[onnx.NodeProto], arrays: dict[str, np.ndarray], results: Sequence[str]) -> onnx.ModelProto:
        constants = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in self.constants]
        inputs = [_info(name, array, array.shape) for name, array in arrays.items() if name not in self.constants]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        return self._whole(nodes, inputs, outputs, constants)

    def _whole(self, nodes: Any, inputs: Any, outputs: Any, constants: Any) -> onnx.ModelProto:
        domains = {"": self.opset, **{node.domain: 1 for node in nodes if node.domain}}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        graph = helper.make_graph(list(nodes), "fuzz", list(inputs), list(outputs), list(constants))
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def free_sizes(self) -> list[int]:
        """The sizes of first axes that no weight has, and no constant: those that can stay open."""
        inputs = [value for value in self.values if value.is_input and value.name in self.used]
        first = {value.shape[0] for value in inputs if value.rank and not value.is_weight}
        fixed = {size for value in inputs if value.is_weight for size in value.shape}
        for array in (self.constants[name] for name in self.constants if name in self.used):
            fixed.update(array.shape)
            if array.dtype == np.int64:
                fixed.update(int(number) for number in array.reshape(-1)[:64])
        return sorted(first - fixed - {0, 1})

    def finish(self, dynamic: Sequence[int] = ()) -> Graph:
        """The graph; its outputs are what no node reads, and some of the rest. Dims of a size in ``dynamic`` get a name."""
        inputs = [value for value in self.values if value.is_input and value.name in self.used]
        computed = [value for value in self.values if not value.is_input]
        outputs = [value for value in computed if value.name not in self.used or self.choose((False, False, True))]
        declared = [_info(value.name, value.array, [f"d{n}" if n in dynamic else n for n in value.shape]) for value in inputs]
        results = [_info(value.name, value.array, [None] * value.rank) for value in outputs]
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in self.used]
        dtypes = {value.name: value.dtype for value in self.values}
        return Graph(self._whole(self.nodes, declared, results, constants), {value.name: value.array for value in inputs}, dtypes)


def _info(name: str, array: np.ndarray, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _within_bounds(array: np.ndarray) -> bool:
    if array.size > 20_000:
        return False
    limit = LARGEST.get(str(array.dtype))
    if limit is None or array.size == 0:
        return True
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return bool(np.mean(np.abs(wide) <= limit) > 0.7 and not np.any(np.abs(wide[np.isfinite(wide)]) > limit))


_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_OPTIONS.intra_op_num_threads = _OPTIONS.inter_op_num_threads = 1
_OPTIONS.log_severity_level = 4
_OPTIONS.add_session_config_entry("session.x64quantprecision", "1")  # else sums of products of bytes saturate


def evaluate(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by ONNX Runtime as the model is written, without its optimisations. Raises Skip where it takes none of it."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), _OPTIONS, providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(None, inputs)]
    except Exception as error:  # its errors have no common base but this
        raise Skip(str(error)) from error
