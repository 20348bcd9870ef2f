"""What was measured, as JSON on disk, and the comparisons that pages make of it."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.engines import ENGINES, OURS
from benchmarks.statistics import Ratio, ratio

Facts = dict[str, Any]


@dataclass
class Results:
    """``groups`` by "model threads": date, keys of the builds, and each engine's figures; ``builds`` by "engine model threads";
    ``own`` by "model threads" is what ``own.footprint`` found; ``peaks`` by number of threads: the most float operations a second."""

    processor: str = ""
    peaks: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    models: dict[str, Facts] = field(default_factory=dict)
    builds: dict[str, Facts] = field(default_factory=dict)
    groups: dict[str, Facts] = field(default_factory=dict)
    own: dict[str, Facts] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(vars(self), indent=1))
        os.replace(partial, path)

    def group(self, model: str, threads: int) -> dict[str, Facts]:
        """Figures of the engines that ran to the end."""
        engines: dict[str, Facts] = self.groups.get(f"{model} {threads}", {}).get("engines", {})
        return {name: facts for name, facts in engines.items() if name in ENGINES and "rounds" in facts}

    def failures(self) -> Iterator[tuple[str, str, str]]:
        """(engine, model, reason), each once."""
        seen = {}
        for group in self.groups.values():
            for name, facts in group["engines"].items():
                if "error" in facts and name in ENGINES:
                    seen[name, group["model"]] = facts["error"]
        return ((engine, model, reason) for (engine, model), reason in sorted(seen.items()))

    def measured(self) -> Iterator[tuple[str, int]]:
        """(model, threads) of the groups, in the order of the models."""
        order = list(self.models)
        pairs = [(group["model"], group["threads"]) for group in self.groups.values() if group["model"] in order]
        return iter(sorted(pairs, key=lambda pair: (order.index(pair[0]), pair[1])))


def round_medians(facts: Facts) -> dict[str, float]:
    return {number: each["median"] for number, each in facts["rounds"].items()}


def median(facts: Facts) -> float:
    """Seconds: the median over rounds of each round's median."""
    return statistics.median(round_medians(facts).values())


def minimum(facts: Facts) -> float:
    return float(min(each["minimum"] for each in facts["rounds"].values()))


def fastest_peer(group: dict[str, Facts]) -> str | None:
    peers = [name for name in group if name not in OURS]
    return min(peers, key=lambda name: median(group[name])) if peers else None


def against(group: dict[str, Facts], ours: str, theirs: str) -> Ratio | None:
    """The paired ratio of two engines' times, ``None`` where one was not measured."""
    if ours not in group or theirs not in group:
        return None
    return ratio(round_medians(group[ours]), round_medians(group[theirs]))
