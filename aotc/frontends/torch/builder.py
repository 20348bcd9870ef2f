"""What the recipes of ATen operators build with: the node at hand, its result as torch computed it, and small helpers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from aotc import ops
from aotc.errors import UnsupportedModel
from aotc.frontends.torch.symbols import SymbolTable
from aotc.ir.dims import Dim, DimExpr, bounds, symbol
from aotc.ir.expr import Constant, Expr, TupleGetItem
from aotc.ir.types import FLOATS, TensorType
from aotc.ops import OpDef

Scalar = bool | int | float | DimExpr
Operand = Expr | Scalar
Recipe = Callable[..., Any]
"""``recipe(builder, *args, **kwargs)`` with the node's own arguments: tensors as expressions, sizes as dims."""

DTYPES: dict[torch.dtype, str] = {
    torch.float16: "float16", torch.float32: "float32", torch.float64: "float64", torch.bool: "bool",
    torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64", torch.bfloat16: "bfloat16",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """aotc's name of a dtype. Raises UnsupportedModel for those that it lacks."""
    if dtype not in DTYPES:
        raise UnsupportedModel(f"tensors of {dtype}: convert the model first, as with module.float()")
    return DTYPES[dtype]


def array_of_tensor(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values; numpy shares them where it can."""
    plain = tensor.cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view("bfloat16")
    return plain.numpy()


@dataclass
class Builder:
    """``meta`` is the result of the node at hand as torch knows it: a fake tensor, a tuple of them, or a size.
    ``used_outputs`` are the indices of those of its results that are used, for nodes with several. ``unbacked`` are torch's
    symbols for sizes that it cannot know and that this node finds; ``definers`` collects what a function must keep alive.
    ``is_wide``: what torch has in bfloat16 is computed in float32 here, and rounded when it is done."""

    symbols: SymbolTable
    origin: str = ""
    meta: Any = None
    used_outputs: frozenset[int] = field(default_factory=frozenset)
    unbacked: list[Any] = field(default_factory=list)
    definers: list[Expr] = field(default_factory=list)
    is_wide: bool = False

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the result; of the first where there are several."""
        return self.symbols.shape(self._first.shape)

    @property
    def dtype(self) -> str:
        """The dtype of the result; of the first where there are several."""
        name = dtype_name(self._first.dtype)
        return "float32" if self.is_wide and name == "bfloat16" else name

    @property
    def _first(self) -> torch.Tensor:
        return self.meta[0] if isinstance(self.meta, (tuple, list)) else self.meta

    def emit(self, op: OpDef, *args: Expr, **attrs: Any) -> Expr:
        """A call that carries the node's origin."""
        return op(*args, origin=self.origin, **attrs)

    def new_symbol(self, most: Dim | None = None) -> Dim:
        """The next of ``unbacked`` as a dim, with its bounds; ``most`` bounds it too. A fresh symbol where torch has none,
        since it takes the size for known."""
        if self.unbacked:
            return self.symbols.found(self.unbacked.pop(0), most)
        return symbol(self.symbols.fresh_name("u"), 0, None if most is None else bounds(most)[1])

    def keep(self, definer: Expr) -> None:
        """Keeps a definition or check of dims alive, though no result needs its value."""
        self.definers.append(definer)

    def item(self, value: Expr, index: int) -> Expr:
        return TupleGetItem(value, index, self.origin)

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value).astype(dtype), self.origin)

    def tensor(self, value: Operand, dtype: str) -> Expr:
        """``value`` as a tensor of ``dtype``: a scalar where it is a number or a dim."""
        if isinstance(value, DimExpr):
            return self.cast(self.emit(ops.dims, values=(value,), scalar=True), dtype)
        if isinstance(value, (bool, int, float)):
            return self.constant(value, dtype)
        return self.cast(value, dtype)

    def cast(self, x: Expr, dtype: str) -> Expr:
        if dtype_of(x) == dtype:
            return x
        if isinstance(x, Constant):
            return self.constant(x.data, dtype)
        return self.emit(ops.cast, x, dtype=dtype)

    def reshape(self, x: Expr, shape: Sequence[Dim]) -> Expr:
        return x if shape_of(x) == tuple(shape) else self.emit(ops.reshape, x, shape=tuple(shape))

    def broadcast(self, x: Expr, shape: Sequence[Dim]) -> Expr:
        return x if shape_of(x) == tuple(shape) else self.emit(ops.broadcast_to, x, shape=tuple(shape))

    def transpose(self, x: Expr, axes: Sequence[int]) -> Expr:
        return x if list(axes) == list(range(len(axes))) else self.emit(ops.transpose, x, axes=tuple(axes))

    def slice(self, x: Expr, axis: int, begin: Dim, end: Dim, step: int = 1) -> Expr:
        """``x`` cut along one axis; ``begin`` and ``end`` are normalised."""
        shape = shape_of(x)
        if (begin, end, step) == (0, shape[axis], 1):
            return x
        begins: list[Dim] = [0] * len(shape)
        ends, steps = list(shape), [1] * len(shape)
        begins[axis], ends[axis], steps[axis] = begin, end, step
        return self.emit(ops.slice_, x, begins=tuple(begins), ends=tuple(ends), steps=tuple(steps))

    def concat(self, parts: Sequence[Expr], axis: int) -> Expr:
        return parts[0] if len(parts) == 1 else self.emit(ops.concat, *parts, axis=axis)

    def binary(self, op: OpDef, x: Operand, y: Operand, dtype: str) -> Expr:
        """``op`` of two operands, both cast to ``dtype``."""
        return self.emit(op, self.tensor(x, dtype), self.tensor(y, dtype))

    def unsupported(self, reason: str) -> UnsupportedModel:
        """For a recipe to raise: the operator is known, but not in this use."""
        return UnsupportedModel(reason)


def shape_of(x: Expr) -> tuple[Dim, ...]:
    return type_of(x).shape


def rank_of(x: Expr) -> int:
    return len(type_of(x).shape)


def dtype_of(x: Expr) -> str:
    return type_of(x).dtype


def type_of(x: Expr) -> TensorType:
    assert isinstance(x.type, TensorType), f"{x.type} is no tensor"
    return x.type


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def axis_of(axis: int, rank: int) -> int:
    """``axis`` counted from the front; 0 for a scalar's."""
    return axis % rank if rank else 0


def axes_of(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in order; all of them for ``None`` and for none at all, as torch's reductions mean."""
    if isinstance(axes, int):
        axes = [axes]
    if not rank:
        return ()
    return tuple(sorted({axis_of(axis, rank) for axis in axes})) if axes else tuple(range(rank))


def promoted(*operands: Operand) -> str:
    """The dtype in which torch compares operands: that of the tensors among them, raised by scalars of a higher kind."""
    samples = [_sample(operand) for operand in operands]
    result = samples[0]
    dtype = torch.result_type(result, samples[1])
    return dtype_name(dtype)


def _sample(operand: Operand) -> Any:
    if isinstance(operand, (bool, int, float)):
        return operand
    if isinstance(operand, DimExpr):
        return 1
    dtype = next(key for key, name in DTYPES.items() if name == dtype_of(operand))
    return torch.empty((1,) * rank_of(operand), dtype=dtype)


def is_narrow(value: Any) -> bool:
    """Whether a value, or torch's knowledge of one, is in bfloat16."""
    if isinstance(value, (list, tuple)):
        return any(is_narrow(each) for each in value)
    if isinstance(value, torch.Tensor):
        return value.dtype is torch.bfloat16
    return isinstance(getattr(value, "type", None), TensorType) and bool(value.type.dtype == "bfloat16")


def wide(b: Builder, value: Any) -> Any:
    """``value`` with tensors of bfloat16 in float32."""
    if isinstance(value, (list, tuple)):
        return [wide(b, each) for each in value]
    return b.cast(value, "float32") if is_narrow(value) else value


def widened(b: Builder) -> Builder:
    return replace(b, is_wide=True)
