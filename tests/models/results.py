"""The committed results, one entry a network and way, and the page made of them."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "results.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
Results = dict[str, dict[str, Any]]

HEADER = """# Networks

Made by `python -m tests.models --page` from `tests/models/results.json`; do not edit. Each row was built for the machine at hand, run, and
compared with PyTorch on random weights and inputs: the largest difference relative to the largest value must be at most 1e-4, the L2 distance
at most a third of that. *Batches*: one file, built with a dynamic batch, was run with each. A dash: the network has no batch of its own.

GPT-2 and Llama also write 64 tokens each with their cache of keys and values kept in the session, and passed from run to run: the same
tokens as PyTorch, which reads everything anew for each (`tests/models/generation.py`, tested by CI).
"""


def load() -> Results:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def key(name: str, via: str) -> str:
    return f"{name} via {via}"


def update(change: Callable[[Results], None]) -> None:
    """Changes the file while no other process does."""
    with (FILE.parent / ".results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = load()
        change(results)
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
        FILE.write_text(f"{{\n{rows}\n}}\n")


def page(results: Results, wanted: Iterable[tuple[str, str]]) -> str:
    """The page, with a row for each (network, way) that the catalogue wants."""
    lines = [HEADER]
    rows = list(wanted)
    good = sum("largest" in results.get(key(*each), {}) for each in rows)
    lines += [
        f"{good} of {len(rows)} agree.",
        "",
        "| network | through | parameters | batches | largest | L2 |",
        "|---|---|---|---|---|---|",
    ]
    for name, via in rows:
        entry = results.get(key(name, via))
        if entry is None:
            lines.append(f"| {name} | {via} | | | not run | |")
        elif "largest" in entry:
            batches = " and ".join(map(str, entry["batches"])) or "–"
            lines.append(f"| {name} | {via} | {entry['parameters'] / 1e6:.2f} M | {batches} | {entry['largest']:.0e} | {entry['l2']:.0e} |")
        else:
            lines.append(f"| {name} | {via} | | | {entry['error'].splitlines()[0][:120].replace('|', '/')} | |")
    return "\n".join(lines) + "\n"
