"""How a build talks to its worker processes: pickles behind their length, functions and results in them."""

from __future__ import annotations

import io
import pickle
from typing import IO, Any

from aotc import ops
from aotc.errors import AotcError
from aotc.ir.expr import Function
from aotc.ir.visitor import post_order
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.ops.base import OpDef
from aotc.targets import Target

_LENGTH = 8


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Raises EOFError where the stream ends."""
    length = _read(stream, _LENGTH)
    return _read(stream, int.from_bytes(length, "little"))


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """An operator travels by name: its relation and reference may be lambdas."""
        return (_operator, (value.name,)) if isinstance(value, OpDef) else NotImplemented


def _operator(name: str) -> OpDef:
    return ops.ALL[name]


def pack_function(function: Function, target: Target, in_place: int | None = None, selection: Selection | None = None) -> bytes:
    buffer = io.BytesIO()
    # The nodes first, children before parents, so that pickling never goes deep.
    _Pickler(buffer).dump((post_order(*function.params, function.body), function, target, in_place, dict(selection or {})))
    return buffer.getvalue()


def unpack_function(data: bytes) -> tuple[Function, Target, int | None, Selection]:
    _, function, target, in_place, selection = pickle.loads(data)
    return function, target, in_place, selection


def pack_result(result: CompiledFunction | Exception) -> bytes:
    return pickle.dumps(result)


def unpack_result(data: bytes) -> CompiledFunction:
    """Raises what the worker raised."""
    result = pickle.loads(data)
    if isinstance(result, AotcError):
        raise result
    assert isinstance(result, CompiledFunction)
    return result
