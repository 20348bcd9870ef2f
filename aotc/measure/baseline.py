"""Measurements that later builds of the same model are held against: ``aotc bench --save`` and ``--against``.

A time alone says little: the machine may be busy, or another. So a run's *cost* is its time multiplied by the rate at which a loop of
multiply-adds ran (``calibration``): the floating-point operations that the machine could have done meanwhile. Runs and the loop alternate, and one
turn of it is as long as a run, so what disturbs the one disturbs the other as often; of both the lower quartile counts, which other processes
hardly reach. The interval of a change comes from drawing the rounds of both measurements anew. Counted instructions need none of this.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aotc.errors import InvalidOption
from aotc.ir.types import bits_of
from aotc.measure import calibration
from aotc.measure.instructions import Counts
from aotc.packaging.manifest import Manifest
from aotc.runtime.loader import Session

FORMAT, VERSION = "aotc-bench", 1
ROUNDS, LEAST_PAIRS = 60, 20
SAMPLES = 4000
SLOWED = 0.85  # of its highest rate: slower than what clocks and caches do
SAME = {  # what must be equal for two measurements to be compared, and what to say of it
    "measure": "what is measured",
    "model": "the model",
    "entry_point": "the entry point",
    "target": "the target",
    "precision": "the precision",
    "shapes": "the shapes of the inputs",
    "inputs": "the data of the inputs",
    "threads": "the number of threads",
    "counter": "the program that counts",
    "cpu": "the emulated processor",
}


def paired(session: Session, feeds: Mapping[str, np.ndarray], threads: int, seconds: float) -> tuple[list[float], list[list[float]]]:
    """Times of runs in milliseconds; and for each of at most ``ROUNDS`` rounds [seconds of a run, operations a second of the loop]."""
    loop = calibration.Calibration(threads)
    turns = loop.turns(min(_time(session, feeds) for _ in range(3)))
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < LEAST_PAIRS or time.perf_counter() < end:
        pairs.append((_time(session, feeds), loop.trial(turns)))
    rounds = [np.array(chunk) for chunk in np.array_split(np.array(pairs), min(ROUNDS, len(pairs)))]
    return [run * 1e3 for run, _ in pairs], [
        [float(np.quantile(chunk[:, 0], 0.25)), float(np.quantile(chunk[:, 1], 0.75))] for chunk in rounds
    ]


def cost(rounds: np.ndarray) -> np.ndarray:
    """Operations that the loop does in the time of a run, of rounds as ``paired`` gives them: [..., rounds, 2]."""
    return np.quantile(rounds[..., 0], 0.25, axis=-1) * np.quantile(rounds[..., 1], 0.75, axis=-1)


def _time(session: Session, feeds: Mapping[str, np.ndarray]) -> float:
    begin = time.perf_counter()
    session.run(feeds, copy=False)
    return time.perf_counter() - begin


def identity(manifest: Manifest, feeds: Mapping[str, np.ndarray], file: str) -> dict[str, Any]:
    """What a measurement is of; two can be compared where the fields of ``SAME`` are equal."""
    digest = hashlib.sha256()
    for name, array in sorted(feeds.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\0".encode() + bits_of(np.ascontiguousarray(array)).tobytes())
    return {
        "format": FORMAT,
        "version": VERSION,
        "file": file,
        "aotc_version": manifest.aotc_version,
        "machine": calibration.machine(),
        "model": manifest.model_digest,
        "entry_point": manifest.entry_points[0].name,
        "target": manifest.target.name,
        "precision": manifest.precision,
        "shapes": {name: list(array.shape) for name, array in feeds.items()},
        "inputs": digest.hexdigest(),
    }


def of_times(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of a measurement that holds times: ``results`` has one dict for each number of threads."""
    return {"measure": "time", "threads": [result["threads"] for result in results], "results": list(results)}


def of_counts(counts: Counts) -> dict[str, Any]:
    """The part of a measurement that holds instructions of one run by class."""
    return {"measure": "instructions", "counter": counts.counter, "cpu": counts.cpu, "threads": [1], "instructions": dict(counts.classes)}


def save(path: str, measurement: Mapping[str, Any]) -> None:
    """Raises InvalidOption where the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(measurement, indent=1) + "\n")
    except OSError as error:
        raise InvalidOption(f"--save {path!r} cannot be written: {error.strerror}") from error


def read(path: str) -> dict[str, Any]:
    """A measurement that ``save`` wrote. Raises InvalidOption where it is none."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidOption(f"--against {path!r} cannot be read ({error}); write one with `aotc bench FILE --save {path}`") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise InvalidOption(f"--against {path!r} is not a baseline of version {VERSION}; write one with `aotc bench FILE --save {path}`")
    return found


@dataclass(frozen=True)
class Change:
    """``then`` and ``now`` are operations or instructions of a run; ``change`` is 0.1 where it takes a tenth more. For times, the true change
    lies between ``low`` and ``high`` with 95 % confidence as far as the noise within both measurements tells; counts are exact. ``busy``:
    several threads ran while other processes did. They wait for each other at every step, which slows a run more than the loop."""

    what: str
    then: float
    now: float
    change: float
    low: float
    high: float
    busy: bool = False

    def exceeds(self, limit: float) -> bool:
        """Whether it is a change for the worse beyond ``limit`` that noise does not explain."""
        return self.change > limit and self.low > 0


def compare(then: Mapping[str, Any], now: Mapping[str, Any], path: str) -> list[Change]:
    """What changed between two measurements of the same thing. Raises InvalidOption where they are not of the same thing."""
    differing = [
        f"{words} ({_short(then.get(field))} there, {_short(now.get(field))} here)"
        for field, words in SAME.items()
        if then.get(field) != now.get(field)
    ]
    if differing:
        raise InvalidOption(
            f"--against {path!r} cannot be compared, since it differs in {'; '.join(differing)}. Use the same model and options, or save a new baseline"
        )
    if now["measure"] == "instructions":
        before, after = then["instructions"], now["instructions"]
        return [_exact(name, before.get(name, 0), after.get(name, 0)) for name in dict.fromkeys((*before, *after))]
    pairs = zip(then["results"], now["results"], strict=True)
    return [_drawn(new["threads"], np.array(old["rounds"]), np.array(new["rounds"])) for old, new in pairs]


def _exact(name: str, then: int, now: int) -> Change:
    change = now / then - 1 if then else float(now > 0)
    return Change(name, then, now, change, change, change)


def _drawn(threads: int, then: np.ndarray, now: np.ndarray) -> Change:
    """The change of the cost, with an interval by bootstrap (Efron, 1979)."""
    random = np.random.default_rng(0)
    before, after = (cost(rounds[random.integers(0, len(rounds), (SAMPLES, len(rounds)))]) for rounds in (then, now))
    low, high = np.percentile(after / before - 1, [2.5, 97.5])
    old, new = float(cost(then)), float(cost(now))
    busy = threads > 1 and (_is_busy(then) or _is_busy(now))
    return Change(f"{threads} thread{'s' * (threads > 1)}", old, new, new / old - 1, float(low), float(high), busy)


def _is_busy(rounds: np.ndarray) -> bool:
    """Whether the loop was slowed in more than a quarter of the rounds."""
    return float(np.quantile(rounds[:, 1], 0.25)) < SLOWED * float(rounds[:, 1].max())


def _short(value: Any) -> str:
    text = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in value.items()) if isinstance(value, dict) else str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
