"""Faults put into a kernel's source, each to be switched on when it runs: barriers left out, indices shifted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BARRIER = re.compile(r"\b(?:__syncthreads\(\)|__syncwarp\([^()]*\)|aotc_wait<\d+>\(\));")
_SUBSCRIPT = re.compile(r"(\w+|\))\[")
_OFFSET = re.compile(r"\(\s*(\w+_ptr|\(\([\w ]+\*\)\s*\w+\))\s*\+\s*(?=[(\w])")
_DECLARATION = re.compile(r"\b(?:alignas\(\d+\)|__shared__|__align__\(\d+\))[^;=]*;")
_SIZES = {
    "char": 1,
    "uchar": 1,
    "bool": 1,
    "int8_t": 1,
    "uint8_t": 1,
    "half": 2,
    "short": 2,
    "ushort": 2,
    "double": 8,
    "int64_t": 8,
    "uint64_t": 8,
}


@dataclass(frozen=True)
class Mutation:
    """``kind`` is barrier or index; ``text`` is what was there, at ``place`` in the source."""

    kind: str
    place: int
    text: str


def mutate(source: str) -> tuple[str, list[Mutation]]:
    """The source with all faults in it, and what they are: AOTC_SOFTWARE_CUDA_MUTATION=n switches on the n-th.

    An index becomes one more; where several elements are moved at once, as many more.
    """
    start = source.rindex('extern "C" __global__')
    start = source.index("{", start)
    kept_out = [found.span() for found in _DECLARATION.finditer(source, start)]
    edits: list[tuple[int, str]] = []
    mutations: list[Mutation] = []

    def outside(place: int) -> bool:
        return not any(first <= place < end for first, end in kept_out)

    for found in _BARRIER.finditer(source, start):
        edits.append((found.start(), f"if (!SOFTWARE_CUDA_MUTATED({len(mutations)})) "))
        mutations.append(Mutation("barrier", found.start(), found[0]))
    for first, end, name in _indices(source, start):
        if outside(first):
            width = _lanes(source, first, name)
            edits += [(first, "("), (end, f") + SOFTWARE_CUDA_MUTATED({len(mutations)}) * {width}")]
            mutations.append(Mutation("index", first, f"{name} at {source[first:end]}"))
    text = source
    for place, insertion in sorted(edits, key=lambda edit: edit[0], reverse=True):
        text = text[:place] + insertion + text[place:]
    return text, mutations


def _indices(source: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Where each index begins and ends, and the name of the array before it."""
    for found in _SUBSCRIPT.finditer(source, start):
        name = found[1] if found[1] != ")" else source[source.rfind("((", 0, found.start()) : found.start() + 1]
        yield found.end(), _closing(source, found.end(), "[", "]"), name
    for found in _OFFSET.finditer(source, start):
        yield found.end(), _closing(source, found.end(), "(", ")"), found[1]


def _closing(source: str, place: int, opening: str, closing: str) -> int:
    depth = 1
    while depth:
        depth += {opening: 1, closing: -1}.get(source[place], 0)
        place += 1
    return place - 1


def _lanes(source: str, place: int, name: str) -> int:
    """How many elements are moved at the place: by a vector's cast before it, or by one of device.h's functions of bytes."""
    line = source[source.rfind("\n", 0, place) + 1 : place]
    vector = re.search(r"\*\(\w+?([248])\s*\*\)\([^;]{0,40}$", line)
    if vector and "(" in line[vector.start() :]:
        return int(vector[1])
    moved = re.search(r"aotc_(?:move|copy|fetch)<(\d+)>\([^;]*$", line)
    return max(1, int(moved[1]) // _element_bytes(source, name)) if moved else 1


def _element_bytes(source: str, name: str) -> int:
    declared = re.search(r"\(\((\w+)\s*\*\)", name) or re.search(rf"\b(\w+)\s*\*?\s*(?:__restrict__\s+)?{re.escape(name)}\b", source)
    return _SIZES.get(declared[1], 4) if declared else 4
