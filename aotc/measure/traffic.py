"""What a plan's steps read and write, and from whom: bytes of each step, and the graph of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.types import storage_dtype
from aotc.lowering.plan import DYNAMIC, EntryPoint, Step, Storage, Value

UNKNOWN = None  # a size that only a run tells


def symbol_values(entry: EntryPoint, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The symbols that the shapes of ``feeds`` (arrays by input name) tell."""
    return {
        symbol.name: int(feeds[entry.inputs[symbol.input].name].shape[symbol.axis]) for symbol in entry.symbols if symbol.input != DYNAMIC
    }


def value_bytes(value: Value, symbols: Mapping[str, int]) -> int | None:
    """The size of a tensor; None where a symbol of its shape is not among ``symbols``."""
    sizes = [known(dim, symbols) for dim in value.shape]
    if any(size is None for size in sizes):
        return UNKNOWN
    return math.prod(size for size in sizes if size is not None) * np.dtype(storage_dtype(value.dtype)).itemsize


def known(dim: Dim, symbols: Mapping[str, int]) -> int | None:
    """The value of a dim, or None where a symbol of it is not among ``symbols``."""
    try:
        return dims.evaluate(dim, symbols)
    except KeyError:
        return UNKNOWN


@dataclass(frozen=True)
class Traffic:
    """Bytes that one execution of a step touches at least: every tensor that it reads or writes, once. Scratch memory is left out, a
    tensor that is changed in place counts twice, and one that is gathered from counts with what is taken from it."""

    activations_read: int
    weights_read: int
    written: int

    @property
    def total(self) -> int:
        return self.activations_read + self.weights_read + self.written


def traffic(entry: EntryPoint, symbols: Mapping[str, int]) -> list[Traffic | None]:
    """Of each step in the plan's order; None where a size is known only while running."""
    written: set[tuple[int, Dim]] = set()  # (buffer, offset)
    found: list[Traffic | None] = []
    for step in entry.steps:
        reads, writes = read_values(entry, step), written_values(entry, step)
        places = [(value.index, value.offset) for value in writes if value.storage is Storage.ARENA]
        in_place = [value for value in writes if value.storage is Storage.ARENA and (value.index, value.offset) in written]
        sizes = [value_bytes(value, symbols) for value in (*reads, *in_place, *writes)]
        written |= set(places)
        found.append(_sum(step, reads, len(in_place), [size for size in sizes if size is not None]) if UNKNOWN not in sizes else None)
    return found


def _sum(step: Step, reads: Sequence[Value], in_place: int, sizes: Sequence[int]) -> Traffic:
    first_write = len(reads) + in_place
    outputs = sum(sizes[first_write:])
    limit = outputs if "gather" in step.label.split("_") else None
    taken = [size if limit is None else min(size, limit) for size in sizes[: len(reads)]]
    weights = sum(size for size, value in zip(taken, reads) if value.storage is Storage.WEIGHT)
    return Traffic(sum(taken) - weights + sum(sizes[len(reads) : first_write]), weights, outputs)


def read_values(entry: EntryPoint, step: Step) -> list[Value]:
    """What a step reads, each tensor once, without scratch memory."""
    numbers = dict.fromkeys(step.arguments[: len(step.arguments) - step.outputs])
    return [entry.values[number] for number in numbers if not _is_scratch(entry, entry.values[number])]


def written_values(entry: EntryPoint, step: Step) -> list[Value]:
    """What a step writes, without scratch memory."""
    values = [entry.values[number] for number in step.arguments[len(step.arguments) - step.outputs :]]
    return [value for value in values if not _is_scratch(entry, value)]


def _is_scratch(entry: EntryPoint, value: Value) -> bool:
    """Whether one step alone uses the memory."""
    return value.storage is Storage.ARENA and entry.buffers[value.index].first_step == entry.buffers[value.index].last_step


@dataclass(frozen=True)
class Edge:
    """``value`` goes from one step to another; ``source`` is negative for an input: -1 - its number."""

    source: int
    target: int
    value: Value


def edges(entry: EntryPoint) -> list[Edge]:
    """Which step reads what which other step or input gave, by the places of tensors in memory. What a loop hands to its next turn is left out."""
    writes: dict[tuple[Storage, int], list[tuple[Value, int]]] = {
        (Storage.INPUT, number): [(Value(spec.dtype, spec.shape, Storage.INPUT, number), -1 - number)]
        for number, spec in enumerate(entry.inputs)
    }
    found: dict[tuple[int, int], Edge] = {}
    for number, step in enumerate(entry.steps):
        outputs = written_values(entry, step)
        for value in read_values(entry, step):
            for other, source in writes.get((value.storage, value.index), ()):
                if source != number and _overlap(value, other):
                    found.setdefault((source, number), Edge(source, number, value))
        for value in outputs:
            place = writes.setdefault((value.storage, value.index), [])
            for other, source in place:
                if source != number and source >= 0 and other == value:  # changed in place
                    found.setdefault((source, number), Edge(source, number, value))
            place[:] = [(other, source) for other, source in place if not _covers(value, other)]
            place.append((value, number))
    return list(found.values())


def _range(value: Value) -> tuple[int, int] | None:
    size = value_bytes(value, {})
    return (value.offset, value.offset + size) if isinstance(value.offset, int) and size is not None else None


def _overlap(a: Value, b: Value) -> bool:
    first, second = _range(a), _range(b)
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])


def _covers(a: Value, b: Value) -> bool:
    first, second = _range(a), _range(b)
    if first is None or second is None:
        return a == b
    return first[0] <= second[0] and second[1] <= first[1]
