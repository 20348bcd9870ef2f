"""``python -m benchmarks.arm``: counts, compares and writes the page's section."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from aotc.cli.common import AsJson, console, print_json, reporting_errors
from benchmarks import page
from benchmarks.arm import ours, peers
from benchmarks.arm.mca import Mca
from benchmarks.arm.report import OURS, name, section, show, verdicts
from benchmarks.peers.builds import ROOT, Place
from benchmarks.peers.models import MODELS as SHARED
from benchmarks.peers.models import Model, prepare


def _picture() -> np.ndarray:
    from tests.zoo import images

    return images.prepare(images.paths()[0])


def _lite() -> Path:
    from tests.zoo import efficientnet

    return efficientnet.onnx_path()


MODELS: dict[str, Model] = {
    **{model: SHARED[model] for model in ("resnet18", "mobilenet_v2", "efficientnet_b0", "bert6", "lstm2", "resnet50")},
    "efficientnet_lite0": Model("efficientnet_lite0", "1x3x224x224, ImageNet weights", _picture, onnx=_lite),
}
BESIDE = ("resnet18", "mobilenet_v2", "bert6")
"""Models that peers are counted on where none is named: an engine with one of them takes minutes."""
OUTPUT = ROOT / "build" / "arm"


def qemu_version() -> str:
    text = subprocess.run(["qemu-aarch64", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"version ([\d.]+)", text)
    return f"qemu {found[1] if found else 'of unknown version'}"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _keep(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1))


@reporting_errors
def main(
    models: Annotated[str, typer.Option(help="Which models, by commas.")] = ",".join(MODELS),
    cpus: Annotated[str, typer.Option(help="Which processors, by commas.")] = ",".join(ours.TARGETS),
    peer_tools: Annotated[
        Path | None,
        typer.Option("--peers", metavar="FOLDER", help="Also count other engines, with these tools (see benchmarks/arm/peers.py)."),
    ] = None,
    engines: Annotated[str, typer.Option(help="Which other engines, by commas.")] = ",".join(peers.TOOLS),
    peer_models: Annotated[str, typer.Option(help="On which models, by commas.")] = ",".join(BESIDE),
    again: Annotated[bool, typer.Option("--again", help="Count peers that have been counted again.")] = False,
    llvm: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where llvm-mc and llvm-mca of LLVM 19 or newer are.")] = None,
    cycles: Annotated[bool, typer.Option(help="Estimate cycles with llvm-mca.")] = True,
    folder: Annotated[Path, typer.Option(help="Where results and built files are kept.")] = OUTPUT,
    write: Annotated[bool, typer.Option(help="Write the section of docs/performance.md.")] = True,
    json_: AsJson = False,
) -> None:
    """Count executed aarch64 instructions per inference, beside other engines' counts.

    What was counted of the same built file is not counted again. Needs Debian's qemu-user and libc6-arm64-cross, and llvm-19 or newer for cycles.

    Example: `python -m benchmarks.arm --models lstm2 --cpus neoverse-n1 --no-cycles --no-write`
    """
    mca, place, kept = Mca(llvm) if cycles else None, Place(ROOT / "build" / "peers"), folder / "results.json"
    results = _read(kept)
    folder.mkdir(parents=True, exist_ok=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True, disable=json_
    ) as bar:
        task = bar.add_task("starting")
        for model in models.split(","):
            bar.update(task, description=f"files of {model}")
            files = prepare(MODELS[model], place.models)
            for cpu in cpus.split(","):
                bar.update(task, description=f"{model} on {cpu}")
                key = name(model, cpu, OURS)
                results[key] = ours.count(model, cpu, files, folder, mca, results.get(key))
                _keep(kept, results)
                for engine in engines.split(",") if peer_tools and model in peer_models.split(",") else ():
                    bar.update(task, description=f"{model} on {cpu}: {engine}")
                    key = name(model, cpu, engine)
                    if again or "millions" not in results.get(key, {}):
                        results[key] = peers.count(peer_tools, engine, cpu, model, files, place)  # type: ignore[arg-type]
                        _keep(kept, results)
    if write:
        tools = [qemu_version(), *([f"LLVM {mca.version}"] if mca else [])]
        page.write_section("arm", section(results, tools))
    if json_:
        print_json({"counts": results, "within": {f"{each.model} {each.cpu}": each.passes for each in verdicts(results)}})
    else:
        console.print(show(results), highlight=False)


if __name__ == "__main__":
    typer.run(main)
