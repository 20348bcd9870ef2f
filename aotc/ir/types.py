"""Types of expressions: tensors, tuples and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir.dims import Dim, product

FLOATS = ("float16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
DTYPES = FLOATS + INTEGERS + ("bool",)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense row-major tensor. ``device`` is where it lives: ``cpu`` or ``cuda``."""

    shape: tuple[Dim, ...]
    dtype: str
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers. Raises ValueError where a dim is symbolic."""
        if not self.is_static:
            raise ValueError(f"{self} has dims that are known only at run time")
        return tuple(int(dim) for dim in self.shape)  # type: ignore[arg-type]

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f"@{self.device}"
        return f"{self.dtype}[{', '.join(str(dim) for dim in self.shape)}]{device}"


@dataclass(frozen=True, slots=True)
class TupleType:
    fields: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(str(field) for field in self.fields)})"


@dataclass(frozen=True, slots=True)
class FunctionType:
    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn({', '.join(str(param) for param in self.params)}) -> {self.result}"


Type = TensorType | TupleType | FunctionType


def tensor(dtype: str, *shape: Dim) -> TensorType:
    """Short for a tensor type on the CPU."""
    return TensorType(tuple(shape), dtype)


def type_of_array(array: np.ndarray) -> TensorType:
    return TensorType(tuple(int(dim) for dim in array.shape), str(array.dtype))


def flatten(type_: Type) -> Sequence[TensorType]:
    """The tensors of a type, tuples flattened in order."""
    if isinstance(type_, TensorType):
        return [type_]
    if isinstance(type_, TupleType):
        return [tensor for field in type_.fields for tensor in flatten(field)]
    raise TypeError(f"{type_} holds no tensors")
