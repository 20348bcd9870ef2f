"""Arrays larger than memory should hold twice: read in pieces, given back page by page, kept in files that have no name."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aotc.errors import BuildError
from aotc.ir.types import bits_of

PIECE = 1 << 25
"""Bytes that are handled at once."""


def pieces(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of ``array`` in C order, some 32 MB at a time. What was read of a mapped file is given back after each."""
    for part in _parts(array):
        yield bits_of(np.ascontiguousarray(part)).reshape(-1).view(np.uint8).data
        release(array)


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    if array.nbytes <= PIECE or not array.ndim:
        yield array
        return
    rows = PIECE // max(array.nbytes // len(array), 1)
    if rows == 0:
        for row in array:
            yield from _parts(row)
        return
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def release(array: np.ndarray) -> None:
    """Gives back the memory of the pages of a file that ``array`` maps, if it maps one; they are read again when needed."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        with contextlib.suppress(OSError, ValueError):
            base.madvise(mmap.MADV_DONTNEED)


def spilled(array: np.ndarray, folder: Path) -> np.ndarray:
    """``array`` in C order, read-only, in a file in ``folder`` that is gone with the last reference. Raises BuildError."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for piece in pieces(array):
                file.write(piece)
            file.flush()
            bits = np.memmap(file, bits_of(array).dtype, "r", 0, array.shape)
    except OSError as error:
        raise BuildError(f"cannot write {array.nbytes} bytes of weights to {folder}: {error.strerror}; free space there") from error
    return np.asarray(bits).view(array.dtype)
