"""What the counts say: the limit that each model is held to, tables for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks import page
from benchmarks.arm.peers import published

OF_BEST_PEER, OF_FLOOR, LANES = 0.90, 1.25, 4
OURS = "aotc"
TITLES = {
    "onnxruntime": "ONNX Runtime",
    "ncnn": "ncnn",
    "executorch": "ExecuTorch (XNNPACK)",
    "openvino": "OpenVINO",
    "iree": "IREE",
    "tvm": "TVM",
}

Results = Mapping[str, Mapping[str, Any]]
"""Facts by ``name(model, cpu, engine)``."""


def name(model: str, cpu: str, engine: str) -> str:
    return f"{model} {cpu} {engine}"


@dataclass(frozen=True)
class Verdict:
    """Million instructions: ``ours``, those of the ``best`` peer, and the ``floor``: multiply-accumulates of the chosen algorithms over the
    lanes of a vector. ``measured`` tells whether the peer was counted here or is published."""

    model: str
    cpu: str
    ours: float
    best: float | None
    engine: str
    measured: bool
    floor: float

    @property
    def limit(self) -> float:
        return max(OF_BEST_PEER * (self.best or 0), OF_FLOOR * self.floor)

    @property
    def passes(self) -> bool:
        return self.ours <= self.limit


def verdicts(results: Results) -> list[Verdict]:
    return [_verdict(results, *key.split()[:2]) for key in results if key.endswith(f" {OURS}") and "error" not in results[key]]


def _verdict(results: Results, model: str, cpu: str) -> Verdict:
    ours, peers = results[name(model, cpu, OURS)], peer_counts(results, model, cpu)
    best = min(peers, key=lambda engine: peers[engine][0], default="")
    count, measured = peers[best] if best else (None, False)
    return Verdict(model, cpu, ours["millions"], count, best, measured, ours["macs"] / LANES / 1e6)


def peer_counts(results: Results, model: str, cpu: str) -> dict[str, tuple[float, bool]]:
    """Million instructions of each peer, and whether they were counted here: what was counted here comes before what is published."""
    found = {engine: (count, False) for engine, count in published().of(cpu, model).items()}
    for engine in TITLES:
        facts = results.get(name(model, cpu, engine), {})
        if "millions" in facts:
            found[engine] = facts["millions"], True
    return found


def show(results: Results) -> Table:
    table = Table(title="Million aarch64 instructions per inference", title_justify="left")
    headings = _HEADINGS[:-1]
    for heading in (*headings, "verdict"):
        table.add_column(heading, justify="left" if heading in ("model", "processor", "best peer") else "right")
    for row in _rows(results):
        table.add_row(*row)
    return table


_HEADINGS = ("model", "processor", "aotc", "best peer", "of it", "chosen multiply-accumulates / 4", "of them", "limit", "within")


def _rows(results: Results) -> Iterable[tuple[str, ...]]:
    for each in verdicts(results):
        origin = "" if each.measured else ", published"
        peer = f"{each.best:.1f} {TITLES[each.engine]}{origin}" if each.best else "none known"
        of_it = f"{each.ours / each.best:.2f}" if each.best else ""
        yield (
            each.model, each.cpu, f"{each.ours:.1f}", peer, of_it, f"{each.floor:.1f}", f"{each.ours / each.floor:.2f}", f"{each.limit:.1f}",
            "yes" if each.passes else "no",
        )  # fmt: skip


def section(results: Results, tools: Sequence[str]) -> list[str]:
    """The page's part. ``tools``: names and versions of what counted."""
    source = published()
    return [
        "## Arm: executed instructions",
        "",
        f"{page.provenance('python -m benchmarks.arm')} {', '.join(tools)}.",
        "Counted under qemu-user: instructions that one warm inference executes, one thread, batch 1, float32, not tuned. The models are those of",
        "`python -m benchmarks.peers`, except that EfficientNet-Lite0 has its ImageNet weights. A model is within its limit at",
        f"{OF_BEST_PEER:.2f} of the best peer's count, or at {OF_FLOOR:.2f} of what the multiply-accumulates of the chosen algorithms (Winograd's tiles need fewer) take with "
        f"{LANES} in an instruction, whichever is greater.",
        f"Published counts are of {source.date} ({source.note}).",
        "",
        *page.table(_HEADINGS, _rows(results)),
        "",
        "All counts, million instructions; (p): published, not counted in this run. Largest difference from PyTorch in brackets.",
        "",
        *_all_counts(results),
        "",
        "What aotc's instructions are, as `aotc bench --instructions` counts them, millions:",
        "",
        *_all_classes(results),
        "",
        "Cycles of the three hottest loops by llvm-mca (Neoverse N1's model, 6 instructions dispatched in a cycle), beside the bound by their multiply-adds, two in a cycle:",
        "",
        *_all_loops(results),
    ]


def _all_counts(results: Results) -> list[str]:
    rows = []
    for each in verdicts(results):
        peers = peer_counts(results, each.model, each.cpu)
        cells = [_count(results, each, engine, peers.get(engine)) for engine in TITLES]
        ours = f"{each.ours:.1f} ({results[name(each.model, each.cpu, OURS)]['difference']:.0e})"
        rows.append((each.model, each.cpu, ours, *cells))
    return page.table(("model", "processor", "aotc", *TITLES.values()), rows)


def _count(results: Results, verdict: Verdict, engine: str, found: tuple[float, bool] | None) -> str:
    facts = results.get(name(verdict.model, verdict.cpu, engine), {})
    if found is None:
        return "failed" if "error" in facts else ""
    return f"{found[0]:.1f} ({facts['difference']:.0e})" if found[1] else f"{found[0]:.1f} (p)"


def _all_classes(results: Results) -> list[str]:
    found = {(each.model, each.cpu): results[name(each.model, each.cpu, OURS)]["classes"] for each in verdicts(results)}
    headings = list(dict.fromkeys(kind for classes in found.values() for kind in classes))
    rows = [(*key, *(f"{classes.get(kind, 0) / 1e6:.1f}" for kind in headings)) for key, classes in found.items()]
    return page.table(("model", "processor", *(heading.replace("_", " ") for heading in headings)), rows)


def _all_loops(results: Results) -> list[str]:
    rows = []
    for each in verdicts(results):
        for loop in results[name(each.model, each.cpu, OURS)].get("loops", ()):
            rows.append((
                each.model, each.cpu, f"{100 * loop['share']:.0f} %", loop["instructions"], loop["fmlas"], f"{loop['cycles']:.1f}",
                f"{100 * loop['of_bound']:.0f} %",
            ))  # fmt: skip
    return page.table(("model", "processor", "of all instructions", "instructions a turn", "multiply-adds", "cycles", "of the bound"), rows)
