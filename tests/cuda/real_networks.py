"""``python -m tests.cuda.real_networks``: real networks on the software GPU with its checks on, beside ONNX Runtime.

They are cut to sizes that it computes in minutes. ``real_networks.json`` is the result, which is committed; the command goes on where it was
ended, and ``--fresh`` begins again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import aotc
from aotc.cli.common import console
from aotc.compiler import BuildReport
from tests.agreement import Distance, distance
from tests.cuda import software
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import classifiers, detector, efficientnet, images, minilm, ocr, silero
from tests.zoo.cache import derived
from tests.zoo.export import export_onnx

FIGURES = {"fp32": 1e-4, "fp16": 2.5e-2}
"""How far results may be from ONNX Runtime's in float32; for halves fifty roundings of 2^-11, one a layer."""

AMPLIFIED = {"resnet50": 0.2}
"""The same for halves in networks that enlarge what is rounded: halves round 2^13 times as coarsely as floats, and with random weights
ResNet-50's logits are already 2.7e-5 off in float32."""

RESULT = Path(__file__).parent / "real_networks.json"

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """``chosen`` are results of comparisons, in which halves may decide otherwise: they are left out in fp16."""

    path: Callable[[], Path]
    feeds: Callable[[], list[Feeds]]
    inputs: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()


def _small_resnet() -> Path:
    def export(path: Path) -> None:
        import torch

        export_onnx(classifiers.module("resnet50"), (torch.zeros(1, 3, 64, 64),), path, ["x"], ["y"])

    return derived("resnet50_64.onnx", export, "classifiers", "export")


def _noise(*shape: int) -> Feeds:
    return {"x": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}


def _speech() -> list[Feeds]:
    frame = next(iter(silero.frames(16000, 1)))
    return [{"input": frame, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}]


NETWORKS = {
    "efficientnet_lite0": Network(efficientnet.onnx_path, lambda: [{"x": images.prepare(path)} for path in images.paths()[:5]]),
    "resnet50": Network(_small_resnet, lambda: [_noise(1, 3, 64, 64)]),
    "minilm": Network(minilm.onnx_path, lambda: [minilm.example(1, 12), minilm.example(2, 7)]),
    "ocr_recognition": Network(lambda: ocr.onnx_path("recognition"), lambda: [{"x": ocr.example((1, 3, 48, 48))}], {"x": (1, 3, 48, 48)}),
    "detector": Network(detector.onnx_path, lambda: [detector.example()], chosen=("chosen",)),
    "silero": Network(lambda: silero.onnx_path("both"), _speech),
}


def build(name: str, precision: str, folder: Path, board: str = "jetson-orin") -> BuildReport:
    network = NETWORKS[name]
    target = software.host_with_gpu(board)
    return aotc.compile(
        str(network.path()), target, folder / f"{name}-{precision}-{board}.so", inputs=network.inputs, device="cuda", precision=precision
    )


def figure(name: str, precision: str) -> float:
    return AMPLIFIED.get(name, FIGURES[precision]) if precision == "fp16" else FIGURES[precision]


def measured(name: str, precision: str, report: BuildReport, folder: Path, **settings: str | bool) -> dict[str, Distance]:
    """How far each output is from ONNX Runtime's, over all inputs, through the unchanged runtime and the software driver."""
    network, found = NETWORKS[name], dict[str, Distance]()
    with software.software_gpu(report.cuda_kernels, folder, **settings):  # type: ignore[arg-type]
        model = aotc.load(report.output)
        for feeds in network.feeds():
            results = {output: np.array(value) for output, value in model.run(feeds).items()}
            for output, reference in onnxruntime_outputs(network.path(), dict(feeds)).items():
                if precision == "fp32" or output not in network.chosen:
                    one = distance(results[output], reference)
                    old = found.get(output, Distance(0.0, 0.0))
                    found[output] = Distance(max(one.largest, old.largest), max(one.l2, old.l2))
    return found


def results() -> dict[str, dict[str, dict[str, float]]]:
    """By network and precision, how far each output was from the reference."""
    return dict(json.loads(RESULT.read_text())) if RESULT.exists() else {}


def main(fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results.")] = False) -> None:
    """Run all networks in all precisions. Fails where one departs.

    Example: `python -m tests.cuda.real_networks --fresh`
    """
    found = {} if fresh else results()
    for name in NETWORKS:
        for precision in FIGURES:
            if f"{name} {precision}" in found:
                continue
            with tempfile.TemporaryDirectory() as folder:
                outputs = measured(name, precision, build(name, precision, Path(folder)), Path(folder), checked=True)
            found[f"{name} {precision}"] = {output: each._asdict() for output, each in outputs.items()}
            partial = RESULT.with_suffix(".partial")
            partial.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            partial.replace(RESULT)
            worst, limit = max(each.largest for each in outputs.values()), figure(name, precision)
            console.print(f"{name} {precision}: {worst:.1e} of {limit:g}", highlight=False)
            if any(each.largest > limit or each.l2 > limit / 3 for each in outputs.values()):
                raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
