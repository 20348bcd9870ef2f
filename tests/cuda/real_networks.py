"""Real networks on the software GPU, cut to sizes that it computes in seconds, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import aotc
from aotc.compiler import BuildReport
from tests.agreement import Distance, distance
from tests.cuda import software
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import classifiers, detector, efficientnet, images, minilm, ocr, silero
from tests.zoo.cache import derived
from tests.zoo.export import export_onnx

FIGURES = {"fp32": 1e-4, "fp16": 2e-2}
"""How far results may be from ONNX Runtime's in float32: 11 bits of a half, over tens of layers."""

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """``whole``: results that are chosen by comparison, so that halves may choose otherwise, are left out in fp16."""

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
