"""The tuning database: for each fused function on each kind of machine, what its schedule shall choose, as it was measured.

A file of JSON lines, one a function, in the order of their keys: small, readable, and merged by putting files together. A key is
a digest of the function's text and of what kernels depend on in the machine, so that an entry serves every model which holds the
function. A convolution that has several algorithms has an entry of its own: which one it is. A build reads a database only where
it is told to: it is an input of the build like the model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from aotc.errors import BuildError, InvalidOption
from aotc.ir.expr import Call, Function, Var
from aotc.ir.types import flatten
from aotc.lowering.compiled import Selection
from aotc.lowering.identity import function_text
from aotc.targets import Target

_NO_MATTER = {"name": "", "description": "", "glibc": (0, 0), "jetpacks": (), "jetpack": None, "gpu": None}
"""Fields of a target that kernels do not depend on."""


TEMPLATES, TRACES = "templates", "metaschedule"
"""Searches: among what schedules offer, and by MetaSchedule."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found for one function. An empty ``selection`` says that the untuned choice is the fastest.

    ``label``, ``shapes`` and ``machine`` are for readers. ``offered`` is a digest of the choices that there were: of an entry made
    when there were others, only what is still offered counts, and the function may be tuned again. Times are the medians of
    one run in microseconds, with ``threads`` threads, of ``trials`` candidates that ``search`` proposed.
    """

    key: str
    label: str
    shapes: str
    machine: str
    selection: Selection
    offered: str
    trials: int
    threads: int
    untuned_us: float
    tuned_us: float
    search: str = TEMPLATES


def tuning_key(function: Function, target: Target) -> str:
    """What an entry is kept under."""
    machine = dataclasses.replace(target, **_NO_MATTER)  # type: ignore[arg-type]
    return hashlib.sha256(f"{function_text(function)}\n{machine!r}".encode()).hexdigest()[:32]


def algorithm_key(node: Call, target: Target) -> str:
    """What an entry is kept under that tells the algorithm of a call."""
    params = tuple(Var(f"p{number}", arg.type) for number, arg in enumerate(node.args))
    alone = Function(params, dataclasses.replace(node, args=params), primitive=True)
    return hashlib.sha256(f"algorithm {tuning_key(alone, target)}".encode()).hexdigest()[:32]


def offered_digest(choices: Sequence[tuple[str, Sequence[str]]]) -> str:
    """``choices`` as in a ``CompiledFunction``."""
    return hashlib.sha256(json.dumps(choices).encode()).hexdigest()[:12]


def shapes_text(function: Function) -> str:
    """The types of parameters and result, for readers."""
    types = [str(tensor) for param in function.params for tensor in flatten(param.type)]
    return f"{', '.join(types)} -> {', '.join(map(str, flatten(function.body.type)))}"


def selections(database: Mapping[str, Tuned], functions: Iterable[Function], target: Target) -> dict[Function, Selection]:
    """What the schedules of ``functions`` shall choose, for those where tuning found better than the untuned choice."""
    if not database:
        return {}
    found = {function: database.get(tuning_key(function, target)) for function in functions}
    return {function: entry.selection for function, entry in found.items() if entry is not None and entry.selection}


def is_known(entry: Tuned | None, choices: Sequence[tuple[str, Sequence[str]]], search: str = TEMPLATES) -> TypeGuard[Tuned]:
    """Whether an entry says all that a search finds about a function with ``choices``."""
    return entry is not None and entry.offered == offered_digest(choices) and search in (TEMPLATES, entry.search)


ALGORITHM = "algorithm"
"""The name of the choice of an entry under ``algorithm_key``."""


@dataclass(slots=True)
class Algorithms:
    """Chooses algorithms for the passes, as a database says. ``asked`` fills up with what was asked about, by key: the first call and
    what was offered for it; ``other`` with the keys of calls for which the database has another than the first, by their names."""

    database: Mapping[str, Tuned]
    target: Target
    asked: dict[str, tuple[Call, tuple[str, ...]]] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)

    def __call__(self, node: Call, algorithms: Sequence[str]) -> str:
        key = algorithm_key(node, self.target)
        self.asked.setdefault(key, (node, tuple(algorithms)))
        entry = self.database.get(key)
        chosen = entry.selection.get(ALGORITHM) if entry is not None else None
        if chosen is None or chosen not in algorithms or chosen == algorithms[0]:
            return algorithms[0]
        self.other[node.origin] = key
        return chosen


def read_tuning(path: str | os.PathLike[str]) -> dict[str, Tuned]:
    """The entries of a file by key; where a key stands twice, as after files were put together, the one with more trials counts,
    of equals the later. Raises InvalidOption for a file that is missing or none of ours."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidOption(f"the tuning file {path} cannot be read: {error.strerror}; `aotc tune` makes one") from error
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{path} is no tuning file: it is not text; expected one that `aotc tune` wrote") from error
    return merge([_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()])


def merge(entries: Sequence[Tuned]) -> dict[str, Tuned]:
    """Entries by key, as ``read_tuning`` says."""
    found: dict[str, Tuned] = {}
    for entry in entries:
        other = found.get(entry.key)
        if other is None or entry.trials >= other.trials:
            found[entry.key] = entry
    return found


def write_tuning(path: str | os.PathLike[str], entries: Mapping[str, Tuned]) -> None:
    """Replaces the file whole or not at all. Raises BuildError where it cannot be written."""
    text = "".join(json.dumps(dataclasses.asdict(entries[key]), ensure_ascii=False) + "\n" for key in sorted(entries))
    beside = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BuildError(f"the tuning file {path} cannot be written: {error.strerror}; choose another --output") from error


def _entry(line: str, place: str) -> Tuned:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InvalidOption(f"{place}: this is no JSON ({error}); expected a line that `aotc tune` wrote: take it out") from error
    names = {field.name for field in dataclasses.fields(Tuned)}
    values = {"search": TEMPLATES, **values} if isinstance(values, dict) else values
    if not isinstance(values, dict) or not names <= set(values):
        missing = sorted(names - set(values)) if isinstance(values, dict) else ["an object"]
        raise InvalidOption(f"{place}: {', '.join(missing)} is missing; expected a line that `aotc tune` wrote: take it out")
    if not _is_selection(values["selection"]) or not isinstance(values["key"], str) or not isinstance(values["trials"], int):
        raise InvalidOption(f"{place}: the selection is not an object of texts, or the key or trials are wrong: take the line out")
    return Tuned(**{name: values[name] for name in names})


def _is_selection(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
