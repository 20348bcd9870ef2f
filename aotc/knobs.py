"""Environment variables that change how aotc behaves: each is declared here once, with its type.

They are read when they are asked for, so that tests and long-lived programs may set them at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aotc.errors import InvalidOption

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One variable: ``parse`` makes its value of the text, and raises ValueError for text that is none."""

    name: str
    parse: Callable[[str], T]
    default: T
    help: str

    def get(self) -> T:
        """The value now. Raises InvalidOption for text that ``parse`` refuses."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise InvalidOption(f"{self.name}={text!r} is not valid ({error}): {self.help}") from error


def _level(text: str) -> int:
    level = int(text)
    if not 0 <= level <= 4:
        raise ValueError("it is a number from 0 to 4")
    return level


DEBUG: Knob[int] = Knob("AOTC_DEBUG", _level, 0, "1 prints pass names and times, 2 also the IR after each pass that changed it")
DUMP: Knob[Path | None] = Knob("AOTC_DUMP", Path, None, "a folder for numbered .aotc files, one a pass, which `aotc opt` reads back")
VERIFY: Knob[bool] = Knob("AOTC_VERIFY", lambda text: bool(int(text)), False, "1 verifies the IR after every pass")

ALL: tuple[Knob[int] | Knob[Path | None] | Knob[bool], ...] = (DEBUG, DUMP, VERIFY)
