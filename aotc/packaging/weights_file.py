"""The file of weights beside a built file (``model.so.weights``), for weights that one file should not hold.

A header of 64 bytes, little-endian, then the weights blob as it would stand in the section .aotc.weights:

    8 bytes  the mark AOTCWGHT
    u32, u32 format version, bytes of the header
    u64, u64 bytes of the whole file, bytes of the weights
    32 bytes SHA-256 of the weights

The built file holds the same 64 bytes (the constant aotc_weights_header, zeros when it holds the weights itself). The runtime maps the
file when it opens the model, and takes it only if its header is those bytes and its size is the one they state; so a file of another
build is refused at once, and ``aotc check`` compares the whole hash.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.errors import BuildError
from aotc.ir.arrays import pieces

MAGIC = b"AOTCWGHT"
VERSION = 1
SUFFIX = ".weights"

_LAYOUT = struct.Struct("<8sIIQQ32s")
HEADER_BYTES = _LAYOUT.size  # 64
EMPTY = bytes(64)
"""What stands in the section for weights where there are none: GNU ld leaves out a section without content, and loaders look
for it."""
NO_HEADER = bytes(HEADER_BYTES)
"""aotc_weights_header of a file that holds its weights itself."""


def weights_header(size: int, sha256: str) -> bytes:
    """The header for ``size`` bytes of weights with this digest in hexadecimal."""
    return _LAYOUT.pack(MAGIC, VERSION, HEADER_BYTES, HEADER_BYTES + size, size, bytes.fromhex(sha256))


def weights_path(model: Path) -> Path:
    """Where the weights of the built file ``model`` lie if they are not in it."""
    return model.with_name(model.name + SUFFIX)


@dataclass(frozen=True)
class WeightsFile:
    """A written file of weights: the bytes of the weights, and their SHA-256 in hexadecimal."""

    path: Path
    size: int
    sha256: str


def write_weights(path: Path, arrays: Iterable[tuple[int, np.ndarray]]) -> WeightsFile:
    """Write ``arrays``, each at its offset among the weights, piece by piece. Raises BuildError where the disk is full."""
    digest, position = hashlib.sha256(), 0
    try:
        with path.open("wb") as file:
            file.write(NO_HEADER)
            for offset, array in arrays:
                gap = memoryview(bytes(offset - position))
                for piece in itertools.chain([gap], pieces(array)):
                    digest.update(piece)
                    file.write(piece)
                position = offset + array.nbytes
            if position == 0:
                position = file.write(EMPTY)
                digest.update(EMPTY)
            file.seek(0)
            file.write(weights_header(position, digest.hexdigest()))
    except OSError as error:
        raise BuildError(f"cannot write the weights beside the output: {error.strerror}; free space or choose another output") from error
    return WeightsFile(path, position, digest.hexdigest())
