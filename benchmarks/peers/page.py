"""The results as a page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from benchmarks.peers.engines import ENGINES, OURS
from benchmarks.peers.results import Facts, Results, against, fastest_peer, median, minimum
from benchmarks.statistics import Ratio, geometric_mean

MB = 1e6


def page(results: Results, chart: str | None) -> str:
    """``chart`` is the address of the picture, relative to the page."""
    parts = [_head(results), _summary(results)]
    if chart:
        parts.append([f"![Time of each engine over that of the fastest peer, one thread]({chart})"])
    parts += [_times(results, threads) for threads in sorted({threads for _, threads in results.measured()})]
    parts += [_errors(results), _deployment(results), _own(results), _failures(results)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def interval(found: Ratio | None) -> str:
    return "" if found is None else f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _head(results: Results) -> list[str]:
    dates = sorted({group["date"] for group in results.groups.values()})
    rounds = sorted({f"{group['rounds']} rounds of {group['seconds']} s" for group in results.groups.values()})
    return [
        "# aotc beside other engines",
        "",
        f"Made by `python -m benchmarks.peers` on {' and '.join(dates)}: {results.processor}. Batch 1, float32, "
        f"{' or '.join(rounds)} for each engine. All engines of a model and a number of threads run interleaved, each in a process of its own "
        "that is stopped while another one is measured. A time is the median over rounds of a round's median; a ratio is the median over rounds of the "
        "ratio within the round, in brackets its 95 % bootstrap interval; a ratio of minima compares the least times seen. Times vary with the machine: read the ratios.",
        "",
        f"Versions: {'; '.join(dict.fromkeys(results.versions.values()))}.",
        "",
        *table(
            ["model", "input and weights", "multiply-accumulates, millions"],
            ([name, facts["note"], f"{facts['multiply_accumulates'] / 1e6:.0f}"] for name, facts in results.models.items()),
        ),
    ]


def _summary(results: Results) -> list[str]:
    tuned = any(OURS[1] in results.group(*pair) for pair in results.measured())
    rows, ratios, tuned_ratios = [], [], []
    for model, threads in results.measured():
        group = results.group(model, threads)
        peer = fastest_peer(group)
        if peer is None or OURS[0] not in group:
            continue
        found, best = against(group, OURS[0], peer), against(group, OURS[1], peer)
        assert found is not None
        ratios.append(found.median)
        tuned_ratios += [best.median] if best else []
        row = [model, str(threads), milliseconds(median(group[OURS[0]])), f"{ENGINES[peer].title} {milliseconds(median(group[peer]))}"]
        row += [interval(found), _minima(group, OURS[0])]
        row += [interval(best), interval(against(group, OURS[0], OURS[1]))] if tuned else []
        rows.append([*row, _share(results, model, threads, group[OURS[0]]), _share(results, model, threads, group[peer])])
    if not rows:
        return []
    headings = ["model", "threads", "aotc ms", "fastest peer ms", "aotc / fastest peer", "of minima"]
    headings += ["tuned / fastest peer", "untuned / tuned"] if tuned else []
    text = f"Geometric mean of aotc's time over the fastest peer's: **{geometric_mean(ratios):.2f}**"
    if tuned_ratios:
        text += f", tuned **{geometric_mean(tuned_ratios):.2f}**"
    text += f". aotc is slower than the fastest peer in {sum(each > 1 for each in ratios)} of {len(ratios)} rows"
    text += f", tuned in {sum(each > 1 for each in tuned_ratios)} of {len(tuned_ratios)}." if tuned_ratios else "."
    peaks = "; ".join(f"{limit / 1e9:.0f} GFLOP/s with {threads}" for threads, limit in sorted(results.peaks.items()))
    share = "The share of the peak is the model's multiply-accumulates as its definition has them, over the time, over what the machine was measured "
    share += f"to reach with fused multiply-adds in registers ({peaks} threads); Winograd's way to convolve takes fewer, so a share can exceed one."
    return ["## Against the fastest peer", "", text, "", *table([*headings, "share of peak", "the peer's"], rows), "", share]


def _minima(group: dict[str, Facts], ours: str) -> str:
    """The least time of ours over the least of any peer, which other work on the machine disturbs less than a median."""
    return f"{minimum(group[ours]) / min(minimum(facts) for name, facts in group.items() if name not in OURS):.2f}"


def _share(results: Results, model: str, threads: int, facts: Facts) -> str:
    limit = results.peaks.get(str(threads))
    return f"{2 * results.models[model]['multiply_accumulates'] / median(facts) / limit:.0%}" if limit else ""


def _by_engine(results: Results, threads: int | None, cell: Callable[[str, str, int, Facts], str]) -> list[str]:
    """A table of engines and models; ``threads`` is None for the least number that was measured."""
    models = list(dict.fromkeys(model for model, _ in results.measured()))
    counts = {model: threads if threads is not None else min(n for m, n in results.measured() if m == model) for model in models}
    groups = {model: results.group(model, counts[model]) for model in models}
    rows = []
    for name, engine in ENGINES.items():
        cells = [cell(name, model, counts[model], groups[model][name]) if name in groups[model] else "" for model in models]
        if any(cells):
            rows.append([engine.title, *cells])
    return table(["engine", *models], rows)


def _times(results: Results, threads: int) -> list[str]:
    cells = _by_engine(
        results, threads, lambda engine, model, count, facts: f"{milliseconds(median(facts))} ({milliseconds(minimum(facts))})"
    )
    return [f"## Milliseconds with {threads} thread{'s' if threads > 1 else ''}: median (and minimum)", "", *cells]


def _errors(results: Results) -> list[str]:
    text = "Every engine computes in float32: the largest difference from PyTorch's result over its largest value. (About 1e-3 would be the mark of 16 bits; "
    text += "up to 1e-3 is also what Winograd may cost. `ocr` has no PyTorch source: its reference is ONNX Runtime without optimisations.)"
    return [
        "## Differences from PyTorch",
        "",
        text,
        "",
        *_by_engine(results, None, lambda engine, model, count, facts: f"{facts['largest']:.0e}"),
    ]


def _deployment(results: Results) -> list[str]:
    def build(engine: str, model: str, threads: int, facts: Facts) -> str:
        told = results.builds.get(f"{engine} {model} {threads}", {})
        tuning = f" + {told['tune_seconds']:.0f} of tuning" if "tune_seconds" in told else ""
        return f"{told['seconds']:.1f}{tuning}" if told.get("seconds") else "at load"

    first = _by_engine(results, None, lambda engine, model, count, facts: f"{1e3 * (facts['load'] + facts['first']):.0f}")
    memory = _by_engine(results, None, lambda engine, model, count, facts: f"{facts['memory']['peak'] / MB:.0f}")
    size = _by_engine(
        results, None, lambda engine, model, count, facts: f"{facts['runtime_bytes'] / MB:.1f} + {facts['model_bytes'] / MB:.1f}"
    )
    return [
        "## To deploy", "",
        "Megabytes of the runtime's libraries and of the model. The libraries are those of the Python packages, not minimal builds.", "",
        *size, "",
        "Milliseconds from loading a model to its first result, page cache warm, the engine's Python modules imported before:", "", *first, "",
        "Megabytes of memory at most, beyond Python and NumPy (ExecuTorch's Python module brings all of PyTorch):", "", *memory, "",
        "Seconds to build ahead of time, with no help from an earlier build:", "", *_by_engine(results, None, build),
    ]  # fmt: skip


def _least(results: Results) -> list[tuple[str, int]]:
    """(model, the least number of threads measured)."""
    pairs = list(results.measured())
    return [(model, min(n for m, n in pairs if m == model)) for model in dict.fromkeys(model for model, _ in pairs)]


def _own(results: Results) -> list[str]:
    rows = []
    for model, threads in _least(results):
        own = results.own.get(f"{model} {threads}")
        if own is None:
            continue
        weights, live = own["weights_bytes"], own["largest_live_bytes"]
        limit = weights + 1.1 * live + 4e6
        row = [model, f"{results.models[model]['weights'] / MB:.2f}", f"{weights / MB:.2f}", f"{(own['file_bytes'] - weights) / 1e3:.0f}"]
        rows.append([*row, f"{own['peak_resident_bytes'] / MB:.1f} ({own['peak_resident_bytes'] / limit:.2f})", f"{live / MB:.2f}"])
    headings = ["model", "weights MB", "packed weights MB", "file beyond them KB", "resident MB (share of limit)", "largest live set MB"]
    text = "A C program loads the file and runs it with one thread. The limit of its resident memory is the packed weights, 1.1 times the largest set of "
    text += "buffers alive at once, and 4 MB."
    return ["## What aotc's files need", "", text, "", *table(headings, rows), "", *_starts(results)] if rows else []


def _starts(results: Results) -> list[str]:
    rows = []
    for model, threads in results.measured():
        own, theirs = results.own.get(f"{model} {threads}"), results.group(model, threads).get("onnxruntime")
        if own is None:
            continue
        row = [model, str(threads), f"{own['start_ms']:.1f}", f"{own['run_ms']:.1f}"]
        if theirs:
            seconds = theirs["load"] + theirs["first"]
            ratios = (own["start_ms"] / 1e3 / seconds, own["run_ms"] / 1e3 / seconds, own["start_ms"] / 1e3 / (seconds + theirs["import"]))
            row += [f"{seconds * 1e3:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
        rows.append(row)
    headings = [
        "model",
        "threads",
        "start ms",
        "a later run ms",
        "ONNX Runtime's start ms",
        "start / theirs",
        "a later run / theirs",
        "with their import",
    ]
    text = "The start is from opening the file to the first result, in that C program; ONNX Runtime's is in Python, its module imported before, or with that import. "
    text += "A start holds one run: where a later run alone takes more than a tenth of their start, no start can take less."
    return [text, "", *table(headings, rows)]


def _failures(results: Results) -> list[str]:
    lines = [f"- {ENGINES[engine].title}, {model}: {_plain(reason)}" for engine, model, reason in results.failures()]
    taking_part = {name for group in results.groups.values() for name in group["engines"]}
    for name, engine in ENGINES.items():
        absent = [f"{group['model']} with {group['threads']}" for group in results.groups.values() if name not in group["engines"]]
        if name in taking_part and absent:
            lines.append(f"- {engine.title}: left out of the runs of {', '.join(absent)}")
    return ["## What did not run", "", *lines] if lines else []


def _plain(reason: str) -> str:
    """Short, and without the folders of the machine where it happened."""
    text = re.sub(r"/(?:[\w.+-]+/)+(?=[\w.+-]+)", "", reason)
    text = text if len(text) <= 160 else f"{text[:160]} ..."
    return f"`{text.replace('`', chr(39))}`" if any(character in text for character in "<>_*[]|") else text
