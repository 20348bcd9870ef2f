"""What an operator is: one ``OpDef``, which says everything about it but how it is computed fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes, Call, Expr, call
from aotc.ir.types import TensorType, Type


class Fusion(IntEnum):
    """Relay's pattern kinds: what a call may be fused with (Roesch et al., Relay, 2019; Chen et al., TVM, OSDI 2018)."""

    ELEMENTWISE = 0  # output element i needs input elements i only
    BROADCAST = 1  # as elementwise, after broadcasting
    INJECTIVE = 2  # each output element comes from one element of each input
    REDUCTION = 3  # output elements sum up many input elements
    OUT_FUSABLE = 4  # heavy (conv, matmul): elementwise work may follow in the same kernel
    OPAQUE = 8  # never fused


@dataclass(frozen=True, slots=True)
class NoAttributes(Attributes):
    """For operators without attributes."""


TypeRelation = Callable[[Sequence[TensorType], Any], Type]
Reference = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OpDef:
    """One operator.

    ``relation(types, attrs)`` computes the result's type, or raises InvalidModel with what was expected and what came.
    ``reference(attrs, *arrays)`` computes it with numpy: the specification that kernels are tested against, and what
    constant folding runs. ``arity`` is the number of arguments, or ``None`` where any number above zero will do.
    ``shape_value`` says that the reference also works on object arrays of dims, so that shapes computed by the
    operator can be solved at compile time.
    """

    name: str
    relation: TypeRelation
    reference: Reference
    fusion: Fusion
    attributes: type[Attributes] = NoAttributes
    arity: int | tuple[int, ...] | None = 1
    shape_value: bool = False

    def infer_type(self, args: Sequence[Type], attrs: Attributes) -> Type:
        allowed = (self.arity,) if isinstance(self.arity, int) else self.arity
        if (allowed is not None and len(args) not in allowed) or (not args and allowed is None):
            expected = "at least 1" if allowed is None else " or ".join(map(str, allowed))
            raise InvalidModel(f"takes {expected} arguments, not {len(args)}")
        for arg in args:
            if not isinstance(arg, TensorType):
                raise InvalidModel(f"takes tensors, not {arg}")
        return self.relation(cast("Sequence[TensorType]", args), attrs)

    def __call__(self, *args: Expr, origin: str = "", **attrs: Any) -> Call:
        """A call of this operator; attributes by name, the rest at their defaults."""
        return call(self, args, self.attributes(**attrs), origin)

    def is_call(self, expr: Expr) -> bool:
        """Whether ``expr`` is a call of this operator."""
        return isinstance(expr, Call) and expr.op is self


def attribute_values(attrs: Attributes) -> dict[str, Any]:
    """The fields of an attribute class by name, in order of declaration."""
    return {field.name: getattr(attrs, field.name) for field in fields(cast(Any, attrs))}


def same_dtype(types: Sequence[TensorType]) -> str:
    """The one dtype of all ``types``. Raises InvalidModel where they differ."""
    found = {t.dtype for t in types}
    if len(found) != 1:
        raise InvalidModel(f"takes arguments of one dtype, not {', '.join(t.dtype for t in types)}")
    return types[0].dtype


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The numpy broadcast of shapes. A symbolic dim beside an equal one or 1 fits; beside anything else it is refused."""
    result: list[Dim] = []
    for axis in range(-max((len(shape) for shape in shapes), default=0), 0):
        dims = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(dims) > 1:
            raise InvalidModel(f"shapes {' and '.join(format_shape(s) for s in shapes)} do not broadcast at axis {axis}")
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def normalise_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front. Raises InvalidModel where it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise InvalidModel(f"axis {axis} is not in a tensor of rank {rank}")
    return axis % rank if rank else 0


def format_shape(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(str(dim) for dim in shape)}]"


def as_array(value: Any, dtype: str) -> np.ndarray:
    return np.asarray(value).astype(dtype)
