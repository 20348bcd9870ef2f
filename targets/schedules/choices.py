"""What a schedule may choose between, for the tuner: tile sizes and the like.

A schedule lists its options in the order of their estimated time and picks by name. Without a selection it gets the first,
so that a build needs no measurement; the tuner reads ``offered`` and builds with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aotc.lowering.compiled import Selection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one kernel. ``offered`` fills up while a schedule picks."""

    selection: Selection = field(default_factory=dict)
    offered: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def pick(self, name: str, options: Sequence[T]) -> T:
        """The selected option, by its text, or the first. A selection that is not offered (it was made for another version
        of the schedule) counts for nothing."""
        texts = tuple(str(option) for option in options)
        self.offered[name] = texts
        selected = self.selection.get(name)
        return options[texts.index(selected)] if selected in texts else options[0]
