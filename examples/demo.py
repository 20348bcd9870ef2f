"""The main job from end to end: a trained classifier becomes one file for this machine and one for a Jetson, and both see.

EfficientNet-Lite0 with its ImageNet weights is compiled from PyTorch and from ONNX. Each file classifies 20 photographs: the host's
here, the Jetson's under user-mode emulation of its Arm cores. Every answer is compared with ONNX Runtime's.

    make demo
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from rich.table import Table

import aotc
from aotc.cli.common import console
from tests.agreement import distance
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import efficientnet, images

FIGURE = 1e-4  # largest difference allowed, relative to the largest value; the L2 distance may be a third of it
NEEDED = 18  # of 20: what ONNX Runtime gets right too
Classify = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Row:
    """How one file did. ``largest`` and ``l2`` are its largest distances from ONNX Runtime."""

    source: str
    target: str
    seconds: float
    size: int
    arena: int | None
    right: int
    largest: float
    l2: float

    @property
    def passed(self) -> bool:
        return self.right >= NEEDED and self.largest <= FIGURE and self.l2 <= FIGURE / 3


def on_host(file: Path) -> Classify:
    model = aotc.load(file)
    (info,) = model.inputs
    return lambda image: next(iter(model.run({info.name: image}).values()))


def on_emulated_board(file: Path) -> Classify:
    return lambda image: next(iter(emulate(file, [image], file.parent).values()))


def evaluate(source: str, target: str, folder: Path, expected: list[np.ndarray]) -> Row:
    """Builds one file and classifies all photographs with it."""
    output = folder / f"{source}-{target}.so"
    begin = time.perf_counter()
    if source == "PyTorch":
        report = aotc.compile(efficientnet.module(), target=target, output=output, args=(torch.zeros(efficientnet.SHAPE),), device="cpu")
    else:
        report = aotc.compile(efficientnet.onnx_path(), target=target, output=output, device="cpu")
    seconds = time.perf_counter() - begin
    classify = on_host(output) if target == "host" else on_emulated_board(output)
    right, largest, l2 = 0, 0.0, 0.0
    for path, reference in track(
        list(zip(images.paths(), expected, strict=True)), f"{source} for {target}", console=console, transient=True
    ):
        answer = classify(images.prepare(path))
        found = distance(answer, reference)
        right += int(answer.argmax()) == images.label(path)
        largest, l2 = max(largest, found.largest), max(l2, found.l2)
    return Row(source, target, seconds, output.stat().st_size, report.arena_size, right, largest, l2)


def show(rows: list[Row], reference_right: int) -> None:
    table = Table(title="EfficientNet-Lite0 on 20 photographs", title_justify="left")
    for heading in ("from", "for", "run on", "build", "file", "working memory", "right", "largest difference", "L2", ""):
        table.add_column(heading)
    for row in rows:
        where = "this machine" if row.target == "host" else "emulated Arm"
        arena = f"{row.arena / 2**20:.1f} MiB" if row.arena is not None else "-"
        verdict = "[green]passed[/]" if row.passed else "[bold red]failed[/]"
        table.add_row(
            row.source, row.target, where, f"{row.seconds:.1f} s", f"{row.size / 2**20:.1f} MiB", arena, f"{row.right} of 20",
            f"{row.largest:.1e}", f"{row.l2:.1e}", verdict,
        )  # fmt: skip
    console.print(table, highlight=False)
    console.print(f"ONNX Runtime gets {reference_right} of 20 right; differences are relative to its answers.", highlight=False)


def main() -> None:
    model = efficientnet.onnx_path()
    expected = [onnxruntime_outputs(model, {"x": images.prepare(path)})["logits"] for path in images.paths()]
    reference_right = sum(int(answer.argmax()) == images.label(path) for answer, path in zip(expected, images.paths(), strict=True))
    with tempfile.TemporaryDirectory(prefix="aotc-demo-") as folder:
        rows = [evaluate(source, target, Path(folder), expected) for source in ("PyTorch", "ONNX") for target in ("host", "jetson")]
    show(rows, reference_right)
    if not all(row.passed for row in rows):
        sys.exit(f"the demo failed: expected {NEEDED} of 20 right and agreement within {FIGURE:g} in each row")


if __name__ == "__main__":
    main()
