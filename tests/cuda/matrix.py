"""``python -m tests.cuda.matrix``: networks built for boards' GPUs on this machine, and what each file holds.

Every file must hold machine code for exactly its board's GPU and no CUDA source; the boards for whose driver no compiler can be had must be
called unproven. ``matrix.json`` is the result, which is committed; the command goes on where it was ended, and ``--fresh`` begins again.
Builds start with a cache without kernels (the linker's C library stubs are kept).
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer

import aotc
from aotc import targets
from aotc.cli.common import console
from aotc.compiler import BuildReport
from aotc.lowering.cuda.cubin import architecture, toolkit
from aotc.packaging.board_check import findings
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import PackagedModel, read_packaged
from aotc.targets.boards import BOARDS
from tests.zoo import classifiers, detector, efficientnet, minilm, ocr, silero
from tests.zoo.cache import empty_build_cache

NETWORKS: dict[str, Callable[[], Path]] = {
    "efficientnet_lite0": efficientnet.onnx_path,
    "resnet50": lambda: classifiers.onnx_path("resnet50"),
    "minilm": minilm.onnx_path,
    "ocr_recognition": lambda: ocr.onnx_path("recognition"),
    "detector": detector.onnx_path,
    "silero": lambda: silero.onnx_path("both"),
}
PROVEN = ("jetson-xavier", "jetson-orin", "jetson-thor")
UNPROVEN = {"jetson-nano": "nano", "jetson-tx2": "tx2"}
"""Targets whose boards have drivers of CUDA 10.2, of which no compiler is published as a wheel."""
SMALL = ("efficientnet_lite0", "detector")
"""What is built for them."""
PRECISIONS = ("fp32", "fp16")
SOURCE = (b"__global__", b"__launch_bounds__", b"threadIdx", b"blockIdx.x")
"""Words that every CUDA source of ours has."""
SECONDS = 90
"""What ResNet-50 for jetson-orin may take with an empty cache."""
RESULT = Path(__file__).parent / "matrix.json"


@dataclass(frozen=True)
class Cell:
    """One build. ``device`` is what the command line calls ``--device``."""

    network: str
    target: str
    precision: str
    device: str = "cuda"

    @property
    def name(self) -> str:
        return " ".join((self.network, self.target, self.precision, self.device))


def cells() -> list[Cell]:
    pairs = [*itertools.product(NETWORKS, PROVEN), *itertools.product(SMALL, UNPROVEN)]
    found = [Cell(network, target, precision) for network, target in pairs for precision in PRECISIONS]
    return [*found, *(Cell("resnet50", "jetson-orin", precision, "auto") for precision in PRECISIONS)]


def built(cell: Cell, folder: Path) -> tuple[BuildReport, dict[str, Any]]:
    """The file, and what the build took: seconds, seconds of processors, bytes, kernels."""
    cache = empty_build_cache(folder)
    begin, processors = time.perf_counter(), _processor_seconds()
    with mock.patch.dict(os.environ, {"AOTC_CACHE_DIR": str(cache)}):
        path, output = str(NETWORKS[cell.network]()), folder / "model.so"
        report = aotc.compile(path, cell.target, output, precision=cell.precision, device=cell.device)
    return report, {
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(_processor_seconds() - processors, 1),
        "bytes": output.stat().st_size,
        "cuda_kernels": len(report.cuda_kernels),
        "on_gpu": sum(placed.on_device for placed in report.placement.values()),
        "on_cpu": sum(not placed.on_device for placed in report.placement.values()),
        "compiler": sorted({f"{major}.{minor}" for major, minor in _toolkits(output)}),
    }


def _processor_seconds() -> float:
    """Of this process and those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _toolkits(path: Path) -> set[tuple[int, int]]:
    model = read_packaged(path)
    return {toolkit(code) for code in model.cubins(read_plan(model.plan))}


def faults(cell: Cell, report: BuildReport) -> list[str]:
    """What the file has that it should not have, or the other way round."""
    found = []
    model = read_packaged(report.output)
    codes = model.cubins(read_plan(model.plan))
    gpu = targets.get(cell.target).gpu
    assert gpu is not None
    held = {architecture(code) for code in codes}
    if held != set(gpu.sm):
        found.append(f"it holds code for {sorted(held)}, not for {sorted(gpu.sm)}")
    content = Path(report.output).read_bytes()
    found += [f"it holds CUDA source: {word.decode()}" for word in SOURCE if word in content]
    found += [f"the source of {kernel.symbol} is in it" for kernel in report.cuda_kernels if kernel.source.encode() in content]
    return [*found, *_on_boards(cell.target, model)]


def _on_boards(target: str, model: PackagedModel) -> list[str]:
    """Its boards take it, or are said to be unproven."""
    wanted = None if target in UNPROVEN else True
    found = []
    for each in BOARDS:
        if each.target == target:
            told = {finding.what: finding.right for finding in findings(model, each, None)}
            if told.pop("driver") is not wanted or not all(told.values()):
                found.append(f"{each.name}: {told}")
    return found


def results() -> dict[str, dict[str, Any]]:
    """By the name of the cell, what it took and what is wrong."""
    return dict(json.loads(RESULT.read_text())) if RESULT.exists() else {}


def run_cell(cell: Cell) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report, facts = built(cell, Path(folder))
        return {**facts, "faults": faults(cell, report)}


def main(
    only: Annotated[str, typer.Option(help="Only builds whose name holds this text.", metavar="TEXT")] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results.")] = False,
) -> None:
    """Build all networks for all boards. Fails where a file is not as it should be.

    Example: `python -m tests.cuda.matrix --only resnet50`
    """
    found = {} if fresh else results()
    wanted = [cell for cell in cells() if only in cell.name]
    for cell in wanted:
        if cell.name in found:
            continue
        found[cell.name] = run_cell(cell)
        partial = RESULT.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        partial.replace(RESULT)
        facts = found[cell.name]
        console.print(
            f"{cell.name}: {facts['seconds']} s ({facts['processor_seconds']} s of processors) {facts['faults'] or ''}", highlight=False
        )
    if any(found[cell.name]["faults"] for cell in wanted):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
