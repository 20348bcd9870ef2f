"""The model's inputs as variables: declared shapes, the user's overrides, and names of dynamic dims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx

from aotc.errors import InvalidModel, InvalidOption, UnsupportedModel
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.dims import RESERVED, Dim, DimExpr, substitute, symbol
from aotc.ir.expr import Var
from aotc.ir.types import TensorType

Override = Sequence["Dim | str | None"]
"""One entry per axis: a number, a dim, the name of a dynamic dim, or None for what the model says."""

MAX_RANK = 64


def input_variables(graph: onnx.GraphProto, overrides: Mapping[str, Override] | None) -> list[Var]:
    """One variable for each input that is no initialiser. Dynamic dims are at least 1 unless an override says otherwise.

    What an override puts in the place of a named dim stands there in the inputs without an override too.
    Raises InvalidOption for overrides that do not fit, UnsupportedModel for inputs that are not tensors.
    """
    weights = {tensor.name for tensor in graph.initializer} | {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    overrides = dict(overrides or {})
    unknown = sorted(set(overrides) - {value.name for value in inputs})
    if unknown:
        raise InvalidOption(f"the model has no input {unknown[0]!r}; its inputs are {', '.join(repr(v.name) for v in inputs) or 'none'}")
    names = _Names()
    declared = {value.name: _declared(value, names, value.name in overrides) for value in inputs}
    bound: dict[str, Dim] = {}
    shapes: dict[str, tuple[Dim, ...]] = {}
    for name, override in overrides.items():
        shapes[name] = _overridden(name, override, declared[name])
        for dim, old in zip(shapes[name], declared[name] or (), strict=False):
            if isinstance(old, DimExpr) and dim != old:
                bound.setdefault(str(old), dim)
    return [Var(v.name, TensorType(_shape(v.name, shapes, declared, bound), _dtype(v)), v.name) for v in inputs]


def _shape(
    name: str, given: Mapping[str, tuple[Dim, ...]], declared: Mapping[str, tuple[Dim, ...] | None], bound: Mapping[str, Dim]
) -> tuple[Dim, ...]:
    if name in given:
        return given[name]
    return tuple(substitute(dim, bound) for dim in declared[name] or ())


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "no type").replace("_type", "").replace("_", " ")
        raise UnsupportedModel(f"input {value.name!r} is of {what}; aotc takes dense tensors")
    return dtype_of(value.type.tensor_type.elem_type, f"input {value.name!r}")


def _declared(value: onnx.ValueInfoProto, names: _Names, is_overridden: bool) -> tuple[Dim, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        if value.type.WhichOneof("value") == "tensor_type" and not is_overridden:
            raise InvalidOption(f"input {value.name!r} has no declared shape; give one, as in --input {value.name}:1x3x224x224")
        return None
    if len(tensor.shape.dim) > MAX_RANK:
        raise InvalidModel(f"input {value.name!r} has {len(tensor.shape.dim)} axes; at most {MAX_RANK} make sense")
    return tuple(_declared_dim(dim, names, f"{value.name}_{axis}") for axis, dim in enumerate(tensor.shape.dim))


def _declared_dim(dim: onnx.TensorShapeProto.Dimension, names: _Names, otherwise: str) -> Dim:
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.dim_param.isdecimal() and len(dim.dim_param) < 10:
        return int(dim.dim_param)
    if not re.search(r"\w", dim.dim_param):  # "?" and the like are no names: two of them are two dims
        return symbol(names(f"?{otherwise}"), 1)
    return symbol(names(dim.dim_param), 1)


def _overridden(name: str, override: Override, declared: tuple[Dim, ...] | None) -> tuple[Dim, ...]:
    if isinstance(override, str):
        raise InvalidOption(f"the shape of input {name!r} must be a sequence with one entry per axis, not the text {override!r}")
    dims = tuple(override)
    if declared is not None and len(dims) != len(declared):
        raise InvalidOption(f"input {name!r} has {len(declared)} axes, not {len(dims)} as in {_text(dims)}")
    result: list[Dim] = []
    for axis, dim in enumerate(dims):
        if dim is None and declared is not None:
            result.append(declared[axis])
        elif isinstance(dim, str):
            result.append(symbol(dim, 1))
        elif isinstance(dim, DimExpr) or (isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0):
            result.append(dim)
        else:
            raise InvalidOption(f"axis {axis} of input {name!r} must be a number of at least 0, a dim or a name, not {dim!r}")
    return tuple(result)


def _text(dims: Sequence[object]) -> str:
    return "x".join(map(str, dims))


class _Names:
    """Turns the names of dynamic dims into words, the same for the same name and different for different ones."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._given:
            word = re.sub(r"\W+", "_", name.lstrip("?"), flags=re.ASCII).strip("_") or "dim"
            word = f"d{word}" if word[0].isdigit() else word
            word = f"{word}_" if word in RESERVED else word
            base, count = word, 2
            while word in self._given.values():
                word, count = f"{base}_{count}", count + 1
            self._given[name] = word
        return self._given[name]
