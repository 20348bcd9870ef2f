"""Jetson modules as one buys them: what a built file must fit into. (NVIDIA's data sheets.)"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.errors import InvalidOption

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Board:
    """One module: ``target`` is what files are built for, ``memory_bytes`` the DRAM that CPU and GPU share, ``sm`` the compute
    capability of its GPU."""

    name: str
    title: str
    target: str
    sm: int
    cores: int
    memory_bytes: int


BOARDS = (
    Board("nano", "Jetson Nano, TX1 (4 GB)", "jetson-nano", 53, 4, 4 * GIB),
    Board("tx2", "Jetson TX2 (8 GB)", "jetson-tx2", 62, 6, 8 * GIB),
    Board("xavier-nx", "Jetson Xavier NX (8 GB)", "jetson-xavier", 72, 6, 8 * GIB),
    Board("xavier-nx-16gb", "Jetson Xavier NX (16 GB)", "jetson-xavier", 72, 6, 16 * GIB),
    Board("agx-xavier", "Jetson AGX Xavier (32 GB)", "jetson-xavier", 72, 8, 32 * GIB),
    Board("agx-xavier-64gb", "Jetson AGX Xavier (64 GB)", "jetson-xavier", 72, 8, 64 * GIB),
    Board("orin-nano-4gb", "Jetson Orin Nano (4 GB)", "jetson-orin", 87, 6, 4 * GIB),
    Board("orin-nano", "Jetson Orin Nano (8 GB)", "jetson-orin", 87, 6, 8 * GIB),
    Board("orin-nx-8gb", "Jetson Orin NX (8 GB)", "jetson-orin", 87, 6, 8 * GIB),
    Board("orin-nx", "Jetson Orin NX (16 GB)", "jetson-orin", 87, 8, 16 * GIB),
    Board("agx-orin-32gb", "Jetson AGX Orin (32 GB)", "jetson-orin", 87, 8, 32 * GIB),
    Board("agx-orin", "Jetson AGX Orin (64 GB)", "jetson-orin", 87, 12, 64 * GIB),
    Board("thor-t4000", "Jetson T4000 (64 GB)", "jetson-thor", 110, 12, 64 * GIB),
    Board("thor-t5000", "Jetson AGX Thor, T5000 (128 GB)", "jetson-thor", 110, 14, 128 * GIB),
)


def board(name: str) -> Board:
    """The module of this name. Raises InvalidOption for an unknown one."""
    for each in BOARDS:
        if each.name == name:
            return each
    raise InvalidOption(f"there is no board {name!r}; the boards are {', '.join(each.name for each in BOARDS)}")
