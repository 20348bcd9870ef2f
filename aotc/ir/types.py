"""Types of expressions: tensors, tuples and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes  # noqa: F401 (it tells numpy the names of its dtypes)
import numpy as np

from aotc.ir.dims import Dim, product

FLOATS = ("float16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
PLAIN = FLOATS + INTEGERS + ("bool",)
"""What operators compute with."""

SMALL_FLOATS = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn",
    "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip
SMALL_INTEGERS = ("int4", "uint4", "int2", "uint2")
SMALL = SMALL_FLOATS + SMALL_INTEGERS
"""What is stored, moved and cast, and computed with in a wider type. In memory an element takes two bytes (bfloat16) or one: those
of 6, 4 and 2 bits are in its low bits, and the others are zero. The names are those of the package ml_dtypes."""

DTYPES = PLAIN + SMALL


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


def bits_of(array: np.ndarray) -> np.ndarray:
    """The array in the dtype of its storage, where numpy alone cannot write it or give its buffer."""
    return array.view(storage_dtype(str(array.dtype)))


def storage_dtype(dtype: str) -> str:
    """The plain dtype that holds an element's bits in memory: of ``SMALL`` an unsigned integer, else itself."""
    return dtype if dtype in PLAIN else "uint16" if dtype == "bfloat16" else "uint8"


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
