"""ONNX tensors as numpy arrays: dtypes, inline data, external data. Nothing is allocated on the word of a dim alone."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from aotc.errors import InvalidModel, UnsupportedModel
from aotc.ir.types import PLAIN, storage_dtype
from aotc.ops.small import BITS as _PACKED

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.BOOL: "bool",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    TensorProto.FLOAT8E8M0: "float8_e8m0fnu",
    TensorProto.FLOAT6E2M3: "float6_e2m3fn",
    TensorProto.FLOAT6E3M2: "float6_e3m2fn",
    TensorProto.FLOAT4E2M1: "float4_e2m1fn",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    TensorProto.INT2: "int2",
    TensorProto.UINT2: "uint2",
}
MAX_ELEMENTS = 1 << 56  # with dims of 0 left out: what numpy can have a view of
MAX_SPARSE = 1 << 27  # elements; a sparse tensor is made dense

# The field that holds the elements where they are not raw bytes, and how many bytes one entry is at least.
_FIELDS = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data"}


def dtype_of(elem_type: int, what: str) -> str:
    """The dtype of an ONNX element type. Raises UnsupportedModel, naming ``what`` has it, for types that aotc lacks."""
    if elem_type not in DTYPES:
        known = elem_type in TensorProto.DataType.values() and elem_type != TensorProto.UNDEFINED
        name = TensorProto.DataType.Name(elem_type).lower() if known else f"unknown element type {elem_type}"
        raise UnsupportedModel(f"{what} is of {name}; aotc has {', '.join(sorted(DTYPES.values()))}")
    return DTYPES[elem_type]


def to_array(tensor: TensorProto, what: str, folder: Path | None = None) -> np.ndarray:
    """The elements of ``tensor``, read-only. ``folder`` is where external data may lie.

    Raises InvalidModel where dims and data do not fit or external data is missing, cut short or outside ``folder``.
    """
    dtype = np.dtype(dtype_of(tensor.data_type, what))
    shape = tuple(int(dim) for dim in tensor.dims)
    if any(dim < 0 for dim in shape):
        raise InvalidModel(f"{what} has the negative dims {list(shape)}")
    if math.prod(dim or 1 for dim in shape) >= MAX_ELEMENTS:
        raise InvalidModel(f"{what} has the dims {list(shape)}, more than any memory holds")
    size = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        array = _external(tensor, dtype, shape, size, what, folder)
    else:
        array = _inline(tensor, dtype, shape, size, what)
    array.setflags(write=False)
    return array


def _inline(tensor: TensorProto, dtype: np.dtype, shape: tuple[int, ...], size: int, what: str) -> np.ndarray:
    if tensor.HasField("raw_data"):
        data = tensor.raw_data  # each access makes a copy
        if len(data) != _byte_count(size, dtype):
            raise InvalidModel(f"{what}: {list(shape)} of {dtype} takes {_byte_count(size, dtype)} bytes, and {len(data)} came")
        return _elements(np.frombuffer(data, np.uint8), dtype, shape)
    count = len(getattr(tensor, _FIELDS.get(str(dtype), "int32_data")))
    wanted = _byte_count(size, dtype) if _PACKED.get(str(dtype)) in (2, 4) else size  # those of 6 bits come one by one
    if count != wanted:
        raise InvalidModel(f"{what}: {list(shape)} takes {wanted} elements, and {count} came")
    return np.asarray(numpy_helper.to_array(tensor), order="C")  # ascontiguousarray would give a scalar an axis


def _byte_count(size: int, dtype: np.dtype) -> int:
    """The bytes that raw data of ``size`` elements takes."""
    return -(-size * _PACKED.get(str(dtype), int(dtype.itemsize) * 8) // 8)


def _elements(data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Raw bytes as elements; those narrower than a byte lie side by side, the first in the lowest bits."""
    width = _PACKED.get(str(dtype))
    if width is None:
        plain = np.dtype(storage_dtype(str(dtype)))
        return data.view(plain.newbyteorder("<")).astype(plain, copy=False).view(dtype).reshape(shape)
    if 8 % width == 0:
        parts = [(data >> shift) & (2**width - 1) for shift in range(0, 8, width)]
        return np.stack(parts, axis=-1).reshape(-1)[: math.prod(shape)].view(dtype).reshape(shape)
    bits = np.unpackbits(data, bitorder="little")[: math.prod(shape) * width].reshape(-1, width)
    return np.packbits(bits, axis=-1, bitorder="little").view(dtype).reshape(shape)


def _external(tensor: TensorProto, dtype: np.dtype, shape: tuple[int, ...], size: int, what: str, folder: Path | None) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(entries.get("location", ""), what, folder)
    offset, length = (_count(entries, key, what) for key in ("offset", "length"))
    needed = _byte_count(size, dtype)
    if length is not None and length != needed:
        raise InvalidModel(f"{what}: {list(shape)} of {dtype} takes {needed} bytes, and its entry says {length}")
    available = path.stat().st_size - (offset or 0)
    if available < needed:
        raise InvalidModel(
            f"{what}: {needed} bytes at offset {offset or 0} of {path.name} are needed and {max(available, 0)} are there;"
            " the file is cut short: copy it again"
        )
    if not size:
        return np.zeros(shape, dtype)
    if str(dtype) not in PLAIN:
        return _elements(np.memmap(path, np.uint8, "r", offset or 0, needed), dtype, shape)
    return np.asarray(np.memmap(path, dtype.newbyteorder("<"), "r", offset or 0, shape))


def _external_path(location: str, what: str, folder: Path | None) -> Path:
    if folder is None:
        raise InvalidModel(f"{what} lies in the file {location!r}, and a model without a path has no folder; pass the model's path")
    if not location or os.path.isabs(location) or "\\" in location or ".." in Path(location).parts:
        raise InvalidModel(f"{what} lies in {location!r}; external data must be inside the model's folder")
    path = folder / location
    if not path.is_file():
        raise InvalidModel(f"{what} lies in {location!r}, which is not in {str(folder)!r}; put that file beside the model")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidModel(f"{what} lies in {location!r}, a link that leads out of the model's folder")
    return path


def _count(entries: dict[str, str], key: str, what: str) -> int | None:
    if key not in entries:
        return None
    text = entries[key]
    if not text.isdecimal() or len(text) > 18:
        raise InvalidModel(f"{what}: the {key} of its external data must be a count of bytes, not {text!r}")
    return int(text)


def sparse_to_array(sparse: onnx.SparseTensorProto, what: str, folder: Path | None = None) -> np.ndarray:
    """A sparse tensor made dense. Raises InvalidModel where it is malformed or has more than 2**27 elements."""
    values, indices = to_array(sparse.values, what, folder), to_array(sparse.indices, what, folder)
    shape = tuple(int(dim) for dim in sparse.dims)
    if any(dim < 0 for dim in shape) or math.prod(shape) > MAX_SPARSE:
        raise InvalidModel(f"{what}: a sparse tensor of {list(shape)} cannot be made dense")
    flat = indices if indices.ndim == 1 else _flattened(indices, shape, what)
    if flat.shape != values.shape or ((flat < 0) | (flat >= math.prod(shape))).any():
        raise InvalidModel(f"{what}: the indices of the sparse tensor do not fit its values or its dims {list(shape)}")
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[flat] = values
    dense.setflags(write=False)
    return dense.reshape(shape)


def _flattened(indices: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        raise InvalidModel(f"{what}: the indices of the sparse tensor have shape {indices.shape}, not [count, {len(shape)}]")
    if ((indices < 0) | (indices >= np.asarray(shape))).any():
        raise InvalidModel(f"{what}: the indices of the sparse tensor leave its dims {list(shape)}")
    return np.ravel_multi_index(tuple(indices.T), shape)
