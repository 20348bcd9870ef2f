"""Writes an execution plan as the bytes that the C runtime maps, and reads them back.

The format is csrc/plan.h's: a header, then tables of fixed little-endian records, each starting at a multiple of 8. The bytes
depend on the plan alone. Dims become postfix expressions, each distinct one of an entry point once; strings are stored once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aotc.errors import BuildError, RuntimeFailure
from aotc.ir import dims as ir_dims
from aotc.ir.dims import Dim
from aotc.ir.types import DTYPES
from aotc.lowering.plan import (
    DYNAMIC,
    Buffer,
    Cubin,
    CudaKernel,
    EntryPoint,
    ExecutionPlan,
    Kernel,
    Memory,
    State,
    Step,
    StepKind,
    Storage,
    Symbol,
    TensorSpec,
    Value,
)  # fmt: skip
from aotc.packaging.dims_code import Code, depth, from_postfix, postfix

MAGIC = b"AOTCPLAN"
VERSION = 3
MAX_RANK, MAX_SYMBOLS, MAX_DEPTH = 16, 512, 64

_HEADER = struct.Struct("<8sIIQQ")
_TABLE = struct.Struct("<II")
_RECORDS = {  # in the order of the header's tables; the first holds bytes
    "strings": struct.Struct("<c"),
    "indices": struct.Struct("<I"),
    "dims": struct.Struct("<IIqq"),
    "code": struct.Struct("<IIq"),
    "exprs": struct.Struct("<II"),
    "symbols": struct.Struct("<IIIIqq"),
    "kernels": struct.Struct("<IIII"),
    "tensors": struct.Struct("<IIII"),
    "values": struct.Struct("<IIIIII"),
    "buffers": struct.Struct("<IIIHHq"),
    "steps": struct.Struct("<12I"),
    "states": struct.Struct("<6Iq"),
    "entries": struct.Struct("<16Iqq"),
    "cuda_kernels": struct.Struct("<10I"),
    "cubins": struct.Struct("<IIqq"),
    "devices": struct.Struct("<q"),
}
_HEADER_BYTES = _HEADER.size + _TABLE.size * len(_RECORDS)
_HASH_OFFSET = 24
_MAX_EXTENT = 2**31 - 1  # of a dim; bounds beyond it mean nothing
_NO_INPUT = 2**32 - 1  # of a symbol that a step sets
_NO_FALLBACK = 2**32 - 1

Range = tuple[int, int]


def plan_hash(data: bytes) -> int:
    """The hash in the header, over all bytes with the hash's own field zero; ``len(data)`` is a multiple of 8."""
    value = 0xCBF29CE484222325
    for index, (word,) in enumerate(struct.iter_unpack("<Q", data)):
        value = ((value ^ (0 if index * 8 == _HASH_OFFSET else word)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 32
    return value


def with_hash(data: bytes) -> bytes:
    """``data`` with its header's hash set right."""
    return data[:_HASH_OFFSET] + struct.pack("<Q", plan_hash(data)) + data[_HASH_OFFSET + 8 :]


def write_plan(plan: ExecutionPlan) -> bytes:
    """The plan's bytes. Raises BuildError for what the format cannot hold, naming it."""
    tables = _Tables()
    for kernel in plan.kernels:
        tables.add("kernels", tables.string(kernel.symbol), kernel.buffers, kernel.dims, 0)
    for launched in plan.cuda_kernels:
        tables.add("cuda_kernels", *_cuda_kernel(tables, launched))
    tables.add_range("cubins", [(cubin.sm, cubin.ptx, cubin.offset, cubin.size) for cubin in plan.cubins])
    tables.add_range("devices", [(plan.device_weights,)] if plan.cuda_kernels else [])
    tables.add_range("states", [_state(tables, state) for state in plan.states])
    entries = [_EntryWriter(tables, entry).write() for entry in plan.entry_points]
    for entry in entries:
        tables.add("entries", *entry)
    return tables.pack()


@dataclass
class _Tables:
    """Records as they come, and strings and codes by content."""

    records: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in _RECORDS})
    strings: bytearray = field(default_factory=lambda: bytearray(1))
    string_offsets: dict[str, int] = field(default_factory=lambda: {"": 0})
    code_ranges: dict[Code, Range] = field(default_factory=dict)

    def add(self, table: str, *fields: int) -> None:
        try:
            self.records[table].append(_RECORDS[table].pack(*fields))
        except struct.error as error:
            raise BuildError(f"the plan's {table} hold the fields {fields}, which do not fit the format: {error}") from error

    def add_range(self, table: str, rows: Iterable[Sequence[int]]) -> Range:
        first = len(self.records[table])
        for row in rows:
            self.add(table, *row)
        return first, len(self.records[table]) - first

    def string(self, text: str) -> int:
        if text not in self.string_offsets:
            encoded = text.encode()
            if b"\0" in encoded:
                raise BuildError(f"the name {text!r} holds a zero byte; rename it in the model")
            self.string_offsets[text] = len(self.strings)
            self.strings += encoded + b"\0"
        return self.string_offsets[text]

    def code(self, code: Code) -> Range:
        if code not in self.code_ranges:
            if depth(code) > MAX_DEPTH:
                raise BuildError(
                    f"a dim's expression needs {depth(code)} places, at most {MAX_DEPTH} are there; fix some of the model's dims"
                )
            self.code_ranges[code] = self.add_range("code", ((operation, 0, value) for operation, value in code))
        return self.code_ranges[code]

    def pack(self) -> bytes:
        body, headers = bytearray(), bytearray()
        for name, record in _RECORDS.items():
            content = bytes(self.strings) if name == "strings" else b"".join(self.records[name])
            headers += _TABLE.pack(_HEADER_BYTES + len(body), len(content) // record.size)
            body += content + bytes(-len(content) % 8)
        total = _HEADER_BYTES + len(body)
        if total >= 2**32:
            raise BuildError(f"the plan takes {total} bytes, at most 4 GiB can be; split the model")
        return with_hash(_HEADER.pack(MAGIC, VERSION, _HEADER_BYTES, total, 0) + bytes(headers) + bytes(body))


def _state(tables: _Tables, state: State) -> tuple[int, ...]:
    _check_rank(f"the state {state.name!r}", state.shape)
    dims = tables.add_range("dims", [(0, 0, extent, extent) for extent in state.shape])
    initial = state.initial
    return tables.string(state.name), _dtype(state.dtype), *dims, int(initial is not None), 0, initial or 0


def _cuda_kernel(tables: _Tables, kernel: CudaKernel) -> tuple[int, ...]:
    cubins = tables.add_range("indices", [(number,) for number in kernel.cubins])
    return tables.string(kernel.symbol), kernel.buffers, kernel.dims, *kernel.block, kernel.shared_bytes, *cubins, 0


def _check_rank(what: str, shape: Sequence[Dim]) -> None:
    if len(shape) > MAX_RANK:
        raise BuildError(f"{what} has {len(shape)} dims, at most {MAX_RANK} are possible; reshape it in the model")


class _EntryWriter:
    """Writes one entry point into the tables."""

    def __init__(self, tables: _Tables, entry: EntryPoint) -> None:
        self.tables, self.entry = tables, entry
        self.symbols = {symbol.name: number for number, symbol in enumerate(entry.symbols)}
        self.exprs: dict[Dim, int] = {}
        if len(self.symbols) != len(entry.symbols) or len(entry.symbols) > MAX_SYMBOLS:
            raise BuildError(
                f"the entry point {entry.name!r} has {len(entry.symbols)} dims to fill in; names differ and at most {MAX_SYMBOLS} are possible"
            )

    def write(self) -> tuple[int, ...]:
        entry, tables = self.entry, self.tables
        inputs = self._tensors(entry.inputs)
        outputs = self._tensors(entry.outputs)
        symbols = tables.add_range("symbols", (self._symbol(symbol) for symbol in entry.symbols))
        values = tables.add_range("values", [self._value(value) for value in entry.values])
        buffers = tables.add_range("buffers", [self._buffer(buffer) for buffer in entry.buffers])
        steps = tables.add_range("steps", [self._step(step) for step in entry.steps])
        codes = [tables.code(postfix(dim, self.symbols)) for dim in self.exprs]
        exprs = tables.add_range("exprs", codes)
        name = tables.string(entry.name)
        fallback = _NO_FALLBACK if entry.fallback is None else entry.fallback
        return (name, fallback, *inputs, *outputs, *symbols, *exprs, *values, *buffers, *steps,
                -1 if entry.arena_size is None else entry.arena_size, -1 if entry.arena_lower_bound is None else entry.arena_lower_bound)  # fmt: skip

    def _expr(self, dim: Dim) -> int:
        return self.exprs.setdefault(dim, len(self.exprs))

    def _indices(self, numbers: Iterable[int]) -> Range:
        return self.tables.add_range("indices", ((number,) for number in numbers))

    def _tensors(self, specs: Sequence[TensorSpec]) -> Range:
        rows = []
        for spec in specs:
            _check_rank(repr(spec.name), spec.shape)
            dims = self.tables.add_range("dims", [self._dim(dim) for dim in spec.shape])
            rows.append((self.tables.string(spec.name), _dtype(spec.dtype), *dims))
        return self.tables.add_range("tensors", rows)

    def _dim(self, dim: Dim) -> tuple[int, int, int, int]:
        if isinstance(dim, int):
            return self._expr(dim), 0, dim, dim
        low, high = ir_dims.bounds(dim)
        low = min(max(low or 0, 0), _MAX_EXTENT)
        return self._expr(dim), self.tables.string(str(dim)), low, -1 if high is None or high > _MAX_EXTENT else max(high, low)

    def _symbol(self, symbol: Symbol) -> tuple[int, ...]:
        bounded = symbol.upper is not None
        return (
            self.tables.string(symbol.name),
            _NO_INPUT if symbol.input == DYNAMIC else symbol.input,
            symbol.axis,
            int(bounded),
            symbol.lower,
            symbol.upper if symbol.upper is not None else 0,
        )

    def _value(self, value: Value) -> tuple[int, ...]:
        _check_rank("a tensor", value.shape)
        shape = self._indices(self._expr(dim) for dim in value.shape)
        return _dtype(value.dtype), value.storage.value, value.index, self._expr(value.offset), *shape

    def _buffer(self, buffer: Buffer) -> tuple[int, ...]:
        fixed = buffer.offset is not None
        offset = buffer.offset if buffer.offset is not None else 0
        return self._expr(buffer.size), buffer.first_step, buffer.last_step, int(fixed), buffer.memory.value, offset

    def _step(self, step: Step) -> tuple[int, ...]:
        arguments = self._indices(step.arguments)
        dims = self._indices(self._expr(dim) for dim in step.dims)
        return (step.kind.value, step.kernel, *arguments, *dims, self._expr(step.tasks), step.outputs,
                self.tables.string(step.source), self.tables.string(step.label), self._expr(step.flops), step.target)  # fmt: skip


def _dtype(name: str) -> int:
    if name not in DTYPES:
        raise BuildError(f"the dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES.index(name)  # the numbers of plan.c's table


def read_plan(data: bytes) -> ExecutionPlan:
    """The plan that ``write_plan`` wrote. Raises RuntimeFailure if the bytes are not one, or of another version."""
    if len(data) < _HEADER_BYTES or len(data) % 8 or data[:8] != MAGIC:
        raise RuntimeFailure(f"expected an execution plan, got {len(data)} other bytes; build or copy the file again")
    _, version, header_bytes, total, digest = _HEADER.unpack_from(data)
    if version != VERSION:
        raise RuntimeFailure(f"the plan has format {version}, this aotc reads {VERSION}; build the file again or use its aotc")
    if header_bytes != _HEADER_BYTES or total != len(data) or digest != plan_hash(data):
        raise RuntimeFailure(f"the plan of {len(data)} bytes is damaged: its size or hash does not fit; build or copy the file again")
    return _Reader(data).plan()


class _Reader:
    """Follows the tables of bytes whose hash was right."""

    def __init__(self, data: bytes) -> None:
        self.tables: dict[str, list[tuple[int, ...]]] = {}
        for number, (name, record) in enumerate(_RECORDS.items()):
            offset, count = _TABLE.unpack_from(data, _HEADER.size + number * _TABLE.size)
            content = data[offset : offset + count * record.size]
            if name == "strings":
                self.strings = content
            else:
                self.tables[name] = list(record.iter_unpack(content))

    def plan(self) -> ExecutionPlan:
        kernels = tuple(Kernel(self._string(symbol), buffers, dims) for symbol, buffers, dims, _ in self.tables["kernels"])
        states = tuple(self._state(record) for record in self.tables["states"])
        launched = tuple(
            CudaKernel(self._string(symbol), buffers, dims, (x, y, z), shared, tuple(self._indices(first, count)))
            for symbol, buffers, dims, x, y, z, shared, first, count, _ in self.tables["cuda_kernels"]
        )
        cubins = tuple(Cubin(sm, offset, size, bool(ptx)) for sm, ptx, offset, size in self.tables["cubins"])
        weights = sum(size for (size,) in self.tables["devices"])
        entries = tuple(self._entry(record) for record in self.tables["entries"])
        return ExecutionPlan(entries, kernels, states, launched, cubins, weights)

    def _state(self, record: tuple[int, ...]) -> State:
        name, dtype, first, count, has_initial, _, initial = record
        shape = tuple(dim[2] for dim in self._rows("dims", first, count))
        return State(self._string(name), DTYPES[dtype], shape, initial if has_initial else None)

    def _rows(self, table: str, first: int, count: int) -> list[tuple[int, ...]]:
        return self.tables[table][first : first + count]

    def _string(self, offset: int) -> str:
        return self.strings[offset : self.strings.index(b"\0", offset)].decode()

    def _entry(self, record: tuple[int, ...]) -> EntryPoint:
        ranges = [(record[2 + 2 * k], record[3 + 2 * k]) for k in range(7)]
        inputs, outputs, symbols, exprs, values, buffers, steps = ranges
        read_symbols = tuple(
            Symbol(self._string(name), lower, upper if bounded else None, DYNAMIC if number == _NO_INPUT else number, axis)
            for name, number, axis, bounded, lower, upper in self._rows("symbols", *symbols)
        )
        self.symbols = [ir_dims.symbol(s.name, s.lower, s.upper) for s in read_symbols]
        self.exprs = [self._dim(*row) for row in self._rows("exprs", *exprs)]
        arena_size, lower_bound = record[16], record[17]
        return EntryPoint(
            name=self._string(record[0]),
            inputs=tuple(self._tensor(row) for row in self._rows("tensors", *inputs)),
            outputs=tuple(self._tensor(row) for row in self._rows("tensors", *outputs)),
            values=tuple(self._value(row) for row in self._rows("values", *values)),
            buffers=tuple(self._buffer(row) for row in self._rows("buffers", *buffers)),
            steps=tuple(self._step(row) for row in self._rows("steps", *steps)),
            arena_size=None if arena_size < 0 else arena_size,
            arena_lower_bound=None if lower_bound < 0 else lower_bound,
            symbols=read_symbols,
            fallback=None if record[1] == _NO_FALLBACK else record[1],
        )

    def _dim(self, first: int, count: int) -> Dim:
        return from_postfix([(operation, value) for operation, _, value in self._rows("code", first, count)], self.symbols)

    def _indices(self, first: int, count: int) -> list[int]:
        return [number for (number,) in self._rows("indices", first, count)]

    def _dims(self, first: int, count: int) -> tuple[Dim, ...]:
        return tuple(self.exprs[number] for number in self._indices(first, count))

    def _tensor(self, row: tuple[int, ...]) -> TensorSpec:
        name, dtype, first, count = row
        return TensorSpec(self._string(name), DTYPES[dtype], tuple(self.exprs[dim[0]] for dim in self._rows("dims", first, count)))

    def _value(self, row: tuple[int, ...]) -> Value:
        dtype, storage, index, offset, first, count = row
        return Value(DTYPES[dtype], self._dims(first, count), Storage(storage), index, self.exprs[offset])

    def _buffer(self, row: tuple[int, ...]) -> Buffer:
        size, first_step, last_step, fixed, memory, offset = row
        return Buffer(self.exprs[size], first_step, last_step, offset if fixed else None, Memory(memory))

    def _step(self, row: tuple[int, ...]) -> Step:
        kind, kernel, first, count, first_dim, dim_count, tasks, outputs, source, label, flops, target = row
        return Step(
            kind=StepKind(kind), arguments=tuple(self._indices(first, count)), outputs=outputs, kernel=kernel,
            dims=self._dims(first_dim, dim_count), tasks=self.exprs[tasks], source=self._string(source), label=self._string(label),
            flops=self.exprs[flops], target=target,
        )  # fmt: skip
