"""How time grows with work and shrinks with threads.

    python -m benchmarks.scaling                    builds what is missing, times it, writes docs/performance.md and docs/scaling.svg
    python -m benchmarks.scaling --build-only       the first half, which needs no quiet machine

Three questions: what two threads bring; whether cost is linear in the batch and in tokens; what eight sessions that share a pool of
two threads lose beside two sessions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

import aotc
from aotc.cli.common import AsJson, console, print_json, reporting_errors
from aotc.packaging.toolchain import ZigToolchain
from aotc.targets import get
from benchmarks import page
from benchmarks.chart import Axis, Chart, Series, powers
from benchmarks.peers.builds import ROOT, Place
from benchmarks.peers.models import MODELS, prepare
from benchmarks.statistics import Ratio, ratio

OUTPUT = ROOT / "build" / "scaling"
CHART = page.DOCS / "scaling.svg"
CSRC = ROOT / "aotc" / "runtime" / "csrc"
THREADS_MODEL, SESSIONS_MODEL = "resnet50", "mobilenet_v2"
FEW, MANY, POOL = 2, 8, 2
BATCHES, TOKENS = (1, 2, 3, 4, 6, 8, 12, 16), (16, 32, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Growth:
    """``name`` of what grows, its ``sizes``, and milliseconds of a run at each; ``work``: multiply-accumulates of a run at each."""

    name: str
    sizes: tuple[int, ...]
    milliseconds: tuple[float, ...]
    work: tuple[int, ...]

    def slope(self) -> float:
        """The exponent p of the time ~ work^p that fits best: 1 is linear. The smallest sizes, a quarter of them, are left out: there the
        cost that every run has shows."""
        skip = len(self.sizes) // 4
        exponent, _ = np.polyfit(np.log(self.work[skip:]), np.log(self.milliseconds[skip:]), 1)
        return float(exponent)

    def rates(self) -> list[float]:
        """Multiply-accumulates a nanosecond."""
        return [macs / time / 1e6 for macs, time in zip(self.work, self.milliseconds, strict=True)]


# Building ---------------------------------------------------------------------------------------------------------------


def fixed(model: str, place: Place) -> Path:
    """The model as it is in ``benchmarks.peers``."""
    output = OUTPUT / f"{model}.so"
    aotc.compile(str(prepare(MODELS[model], place.models) / "model.onnx"), output=output)
    return output


def any_batch() -> Path:
    """MobileNetV2 of any batch."""
    import torch

    from tests.zoo import classifiers

    batch = torch.export.Dim("batch", min=1, max=max(BATCHES))
    output = OUTPUT / "any_batch.so"
    aotc.compile(classifiers.module("mobilenet_v2"), args=(torch.zeros(2, 3, 224, 224),), dynamic_shapes=({0: batch},), output=output)
    return output


def any_length() -> Path:
    """The encoder of ``benchmarks.peers`` with any number of tokens."""
    import torch

    from benchmarks.peers.networks import Bert

    torch.manual_seed(0)
    tokens = torch.export.Dim("tokens", min=2, max=max(TOKENS))
    output = OUTPUT / "any_length.so"
    encoder = Bert(tokens=max(TOKENS)).eval()
    aotc.compile(encoder, args=(torch.zeros(1, 8, dtype=torch.int64),), dynamic_shapes=({1: tokens},), output=output)
    return output


@functools.cache
def sessions_program() -> Path:
    """sessions.c with the loader, for this machine. Raises BuildError."""
    host, output = get("host"), OUTPUT / "sessions"
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", f"-I{CSRC}"]
    sources = [Path(__file__).with_name("sessions.c"), CSRC / "aotc_loader.c"]
    ZigToolchain(host.triple, host.glibc).build_program(sources, output, flags)
    return output


# Timing -----------------------------------------------------------------------------------------------------------------


def threads(file: Path, feeds: dict[str, np.ndarray], rounds: int, seconds: float) -> Ratio:
    """How many times as fast two threads are as one."""
    sessions = {count: aotc.load(file).session(num_threads=count) for count in (1, 2)}
    times: dict[int, dict[str, float]] = {1: {}, 2: {}}
    for number in range(rounds):
        for count in (1, 2) if number % 2 else (2, 1):
            times[count][str(number)] = median_seconds(lambda count=count: sessions[count].run(feeds, copy=False), seconds)  # type: ignore[misc]
    return ratio(times[1], times[2])


def shared_pool(file: Path, rounds: int, seconds: float) -> Ratio:
    """The throughput of MANY sessions over that of FEW, all on one pool of POOL threads."""
    found: dict[int, dict[str, float]] = {FEW: {}, MANY: {}}
    for number in range(rounds):
        for count in (FEW, MANY) if number % 2 else (MANY, FEW):
            words = [str(sessions_program()), str(file), str(count), str(POOL), str(seconds)]
            found[count][str(number)] = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return ratio(found[MANY], found[FEW])


def growth(name: str, file: Path, feeds: Callable[[int], np.ndarray], sizes: Sequence[int], work: Sequence[int], seconds: float) -> Growth:
    """One thread, one session for all sizes."""
    session = aotc.load(file).session(num_threads=1)
    (info,) = session.inputs
    times = []
    for size in sizes:
        x = feeds(size)
        times.append(1e3 * median_seconds(lambda x=x: session.run({info.name: x}, copy=False), seconds))  # type: ignore[misc]
    return Growth(name, tuple(sizes), tuple(times), tuple(work))


def median_seconds(run: Callable[[], object], seconds: float) -> float:
    run()
    found, end = [], time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def encoder_work(tokens: int, layers: int = 6, hidden: int = 384, feed_forward: int = 1536) -> int:
    """Multiply-accumulates of the encoder: projections and feed-forward grow with tokens, attention with their square."""
    return layers * (tokens * hidden * (4 * hidden + 2 * feed_forward) + 2 * tokens * tokens * hidden)


# Reporting --------------------------------------------------------------------------------------------------------------


def chart(found: Sequence[Growth]) -> Chart:
    """Time by multiply-accumulates: a straight line upwards by one decade a decade is linear."""
    work = [macs for each in found for macs in each.work]
    times = [time for each in found for time in each.milliseconds]
    low, high = 10 ** np.floor(np.log10(min(work))), 10 ** np.ceil(np.log10(max(work)))
    bottom, top = 10 ** np.floor(np.log10(min(times))), 10 ** np.ceil(np.log10(max(times)))
    series = [
        Series(
            each.name,
            [(macs, time, f"{size}: {time:.2f} ms") for size, time, macs in zip(each.sizes, each.milliseconds, each.work)],
            joined=True,
        )
        for each in found
    ]
    x, y = Axis("multiply-accumulates", low, high, powers(low, high), log=True), Axis("ms", bottom, top, powers(bottom, top), log=True)
    return Chart("Time by work, one thread", x, y, series)


def section(results: Mapping[str, Any]) -> list[str]:
    two, pool = Ratio(**results["threads"]), Ratio(**results["pool"])
    found = [_growth(each) for each in results["growth"]]
    rows = [
        (each.name, size, f"{time:.2f}", f"{rate:.2f}")
        for each in found
        for size, time, rate in zip(each.sizes, each.milliseconds, each.rates())
    ]
    exponents = "; ".join(f"{each.name}: {each.slope():.2f}" for each in found)
    return [
        "## Scaling",
        "",
        page.provenance("python -m benchmarks.scaling"),
        "Medians over interleaved rounds, in brackets the 95 % bootstrap interval; float32, not tuned.",
        "",
        f"- Two threads on {THREADS_MODEL}: **{two.median:.2f}** times as fast as one [{two.low:.2f}, {two.high:.2f}].",
        f"- {MANY} sessions that share a pool of {POOL} threads, {SESSIONS_MODEL}: **{pool.median:.2f}** of the throughput of {FEW} sessions on it [{pool.low:.2f}, {pool.high:.2f}].",
        f"- Time grows as multiply-accumulates to the power of: {exponents} (1 is linear; one file serves all sizes, one thread).",
        "",
        f"![Time by work]({CHART.name})",
        "",
        *page.table(("what grows", "size", "ms", "multiply-accumulates a ns"), rows),
    ]


def _growth(facts: Mapping[str, Any]) -> Growth:
    return Growth(facts["name"], *(tuple(facts[key]) for key in ("sizes", "milliseconds", "work")))


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]


@reporting_errors
def main(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of the comparisons of threads and of sessions.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of one measurement.")] = 0.5,
    build_only: Annotated[bool, typer.Option("--build-only", help="Build the files and stop before timing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Time again what was timed of the same files.")] = False,
    write: Annotated[bool, typer.Option(help="Write the section of docs/performance.md and its chart.")] = True,
    json_: AsJson = False,
) -> None:
    """Measure two threads against one, cost by batch and tokens, and many sessions on one pool. Let nothing else run while it times.

    Example: `python -m benchmarks.scaling --rounds 4 --no-write`
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    place, kept = Place(ROOT / "build" / "peers"), OUTPUT / "results.json"
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True, disable=json_) as bar:
        task = bar.add_task("building")
        whole, small, batch, length = fixed(THREADS_MODEL, place), fixed(SESSIONS_MODEL, place), any_batch(), any_length()
        sessions_program()
        if build_only:
            return
        key = _digest([whole, small, batch, length])
        results = json.loads(kept.read_text()) if kept.exists() and not again else {}
        if results.get("key") != key:
            results = {"key": key, "growth": []}
        for name, step in _measurements(whole, small, batch, length, place, rounds, seconds).items():
            bar.update(task, description=name)
            if name in ("threads", "pool") and name not in results:
                results[name] = asdict(step())
            elif name not in ("threads", "pool") and all(each["name"] != name for each in results["growth"]):
                results["growth"].append(asdict(step()))
            kept.write_text(json.dumps(results, indent=1))
    if write:
        CHART.write_text(chart([_growth(each) for each in results["growth"]]).svg())
        page.write_section("scaling", section(results))
    if json_:
        print_json(results)
    else:
        console.print("\n".join(section(results)), highlight=False, markup=False, soft_wrap=True)


def _measurements(
    whole: Path, small: Path, batch: Path, length: Path, place: Place, rounds: int, seconds: float
) -> dict[str, Callable[[], Ratio | Growth]]:
    x = np.load(prepare(MODELS[THREADS_MODEL], place.models) / "data.npz")["x"]
    facts = json.loads((prepare(MODELS[SESSIONS_MODEL], place.models) / "facts.json").read_text())
    pictures, tokens = "MobileNetV2 by batch", "BERT, 6 layers, by tokens"
    random = np.random.default_rng(0)
    return {
        "threads": lambda: threads(whole, {"x": x}, rounds, seconds),
        "pool": lambda: shared_pool(small, rounds, 2 * seconds),
        pictures: lambda: growth(
            pictures, batch, lambda size: random.standard_normal((size, 3, 224, 224), dtype=np.float32), BATCHES,
            [size * facts["multiply_accumulates"] for size in BATCHES], seconds,
        ),
        tokens: lambda: growth(
            tokens, length, lambda size: random.integers(0, 30522, (1, size)), TOKENS, [encoder_work(size) for size in TOKENS], seconds
        ),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
