"""One ONNX node as its handler sees it: inputs as expressions, attributes by name, and ways to build and to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import onnx
from onnx import AttributeProto

from aotc import ops
from aotc.errors import InvalidModel, UnsupportedModel
from aotc.frontends.onnx.bodies import Body
from aotc.frontends.onnx.dynamic import LARGEST, Dynamic
from aotc.frontends.onnx.values import Known
from aotc.ir.dims import Dim, DimExpr
from aotc.ir.expr import Call, Constant, Expr, Parameter, TupleGetItem
from aotc.ir.types import INTEGERS, TensorType
from aotc.ops.base import OpDef

Results = Expr | Sequence["Expr | None"]
Handler = Callable[["Node"], Results]


class Context(Protocol):
    """What a node needs of its importer: the folder of external data, known values, and how to name a weight."""

    folder: Path | None
    known: Known

    dynamic: Dynamic

    def weight(self, name: str, array: np.ndarray) -> Parameter: ...


class Graphs(Protocol):
    """What a node may do with graphs in its attributes, and with its own operator."""

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[Expr] = (), prefix: str = "") -> list[Expr]:
        """The outputs of a graph that stands in the place of its node. ``prefix`` of its nodes' names tells it from other copies."""

    def body(self, graph: onnx.GraphProto, params: Sequence[Expr]) -> Body:
        """A graph over values for its inputs, as a body of control flow. Those of ``params`` that are variables are its own."""

    def branch(self, graph: onnx.GraphProto) -> Body:
        """As ``body``, for a graph that may not run: what it takes for granted of sizes outside need hold only where it does."""

    def cases(self, index: int, chosen: Sequence[np.ndarray], conditions: Sequence[Expr]) -> Results:
        """The node's results where input ``index`` is one of ``chosen``, by the first of ``conditions`` that holds; the last needs
        none."""


class Node:
    """``opset`` is the version of the node's domain; ``origin`` the user's name for it."""

    def __init__(
        self,
        proto: onnx.NodeProto,
        inputs: Sequence[Expr | None],
        attributes: dict[str, AttributeProto],
        opset: int,
        origin: str,
        importer: Context,
        graphs: Graphs,
    ) -> None:
        self.proto = proto
        self.inputs = list(inputs)
        self.attributes = attributes
        self.opset = opset
        self.origin = origin
        self.folder = importer.folder
        self.known = importer.known
        self.dynamic = importer.dynamic
        self.weight = importer.weight
        self.graphs = graphs

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs; '' for one that is left out."""
        return list(self.proto.output)

    def wants(self, index: int) -> bool:
        """Whether output ``index`` is there and named."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    # Inputs

    def input(self, index: int) -> Expr:
        """An input that must be there. Raises InvalidModel where it is not."""
        found = self.optional(index)
        if found is None:
            self.invalid(f"input {index} is missing")
        return found

    def optional(self, index: int) -> Expr | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def given(self) -> list[Expr]:
        """All inputs of a variadic operator. Raises InvalidModel where there are none."""
        return [self.input(i) for i in range(max(len(self.inputs), 1))]

    # Attributes

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._attribute(name, AttributeProto.INT, "i", default))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """A float attribute: as the nearest short decimal, since ``0.1`` is stored in float32."""
        value = self._attribute(name, AttributeProto.FLOAT, "f", default)
        return float(str(np.float32(value)))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._attribute(name, AttributeProto.STRING, "s", default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        return tuple(int(v) for v in self._attribute(name, AttributeProto.INTS, "ints", default))

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        return tuple(float(v) for v in self._attribute(name, AttributeProto.FLOATS, "floats", default))

    def has(self, name: str) -> bool:
        return name in self.attributes

    def _attribute(self, name: str, kind: int, field: str, default: Any) -> Any:
        attribute = self.attributes.get(name)
        if attribute is None:
            if default is None:
                self.invalid(f"the attribute {name!r} is missing")
            return default
        if attribute.type not in (kind, AttributeProto.UNDEFINED):
            wanted, got = (AttributeProto.AttributeType.Name(t).lower() for t in (kind, attribute.type))
            self.invalid(f"the attribute {name!r} must be {wanted}, not {got}")
        return getattr(attribute, field)

    # Types and values

    def type(self, expr: Expr) -> TensorType:
        if not isinstance(expr.type, TensorType):
            self.invalid(f"takes tensors, not {expr.type}")
        return expr.type

    def shape(self, expr: Expr) -> tuple[Dim, ...]:
        return self.type(expr).shape

    def rank(self, expr: Expr) -> int:
        return self.type(expr).rank

    def dtype(self, expr: Expr) -> str:
        return self.type(expr).dtype

    def axis(self, axis: int, rank: int) -> int:
        """``axis`` counted from the front. Raises InvalidModel where it is out of range."""
        if not -rank <= axis < rank:
            self.invalid(f"axis {axis} is not in a tensor of rank {rank}")
        return axis % rank

    def value(self, index: int, what: str) -> np.ndarray | None:
        """The known value of an input, dims included; None where the input is left out. Raises UnsupportedModel where
        it depends on data."""
        expr = self.optional(index)
        if expr is None:
            return None
        found = self.known.get(expr)
        if found is None and self.type(expr).size == 0 and self.type(expr).is_static:
            return np.zeros(self.type(expr).static_shape(), self.type(expr).dtype)
        if found is None:
            self.unsupported(f"{what} depends on data that is known only at run time (input {index}, {self.proto.input[index]!r})")
        return found

    def dims(self, index: int, what: str) -> tuple[Dim, ...] | None:
        """An input of rank 0 or 1 as dims; what depends on data becomes symbols, which a run finds to be at least 0."""
        expr = self.optional(index)
        if expr is not None and not self.is_known(index):
            return self.measured(expr, what)
        found = self.value(index, what)
        if found is None:
            return None
        if found.ndim > 1 or found.dtype.kind not in "iuO":
            self.invalid(f"{what} must be integers in one axis, not {found.dtype}{list(found.shape)}")
        return tuple(dim if isinstance(dim, DimExpr) else int(dim) for dim in found.reshape(-1))

    def measured(self, values: Expr, what: str, limits: Sequence[tuple[int, int | None]] | None = None) -> tuple[Dim, ...]:
        """Elements of an integer tensor as dims that a run finds. ``limits``: their bounds, by default 0 and none."""
        type_ = self.type(values)
        if type_.rank > 1 or type_.dtype not in INTEGERS or not type_.is_static:
            self.unsupported(
                f"{what} depends on data that is known only at run time, and should be integers of a known number, not {type_}"
            )
        if type_.dtype != "int64":
            values = self.call(ops.cast, values, dtype="int64")
        return self.dynamic.define(values, self.origin, limits or [(0, LARGEST)] * int(type_.size))  # type: ignore[arg-type]

    def is_known(self, index: int) -> bool:
        """Whether an input is left out or its value known, dims included."""
        expr = self.optional(index)
        return expr is None or self.known.get(expr) is not None or self.type(expr).size == 0

    def static_integers(self, index: int, what: str) -> tuple[int, ...] | None:
        """As ``dims``, numbers only. Raises UnsupportedModel where one is symbolic."""
        self.value(index, what)
        found = self.dims(index, what)
        if found is None:
            return None
        for dim in found:
            if not isinstance(dim, int):
                self.unsupported(f"{what} is {dim}, and must be a number when the model is built")
        return cast("tuple[int, ...]", found)

    def static_array(self, index: int, what: str) -> np.ndarray | None:
        """The known value of an input. Raises UnsupportedModel where a dim occurs in it."""
        found = self.value(index, what)
        if found is not None and found.dtype == object:
            self.unsupported(f"{what} is {found.tolist()}, and must be numbers when the model is built")
        return found

    # Building

    def call(self, operator: OpDef, *args: Expr, **attrs: Any) -> Call:
        """A call of ``operator`` in the name of this node."""
        built = operator(*args, origin=self.origin, **attrs)
        self.known.note(built)
        return built

    def item(self, expr: Expr, index: int) -> Expr:
        return TupleGetItem(expr, index, self.origin)

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value).astype(dtype), self.origin)

    # Refusing

    def unsupported(self, reason: str) -> NoReturn:
        raise UnsupportedModel(f"{self.proto.op_type} at {self.origin!r}: {reason}")

    def invalid(self, reason: str) -> NoReturn:
        raise InvalidModel(f"{self.proto.op_type} at {self.origin!r}: {reason}")
