"""The benchmark beside other engines: its figures, its page, and that a build and a failure are kept."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peers import builds
from benchmarks.peers.builds import Place
from benchmarks.peers.chart import chart
from benchmarks.peers.engine import Engine, Job
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.engines.onnxruntime import OnnxRuntime
from benchmarks.peers.models import work
from benchmarks.peers.networks import Bert, Detector
from benchmarks.peers.page import page
from benchmarks.peers.results import Results, against, fastest_peer
from benchmarks.peers.rounds import Plan, measure_group
from benchmarks.statistics import geometric_mean, ratio
from tests.zoo.export import export_onnx


def test_a_ratio_pairs_rounds_and_its_interval_holds_the_truth() -> None:
    """A machine that slows down half-way changes both times of a round, not their ratio."""
    random = np.random.default_rng(3)
    speed = [1.0] * 20 + [3.0] * 20
    theirs = {str(i): factor * float(random.normal(1.0, 0.01)) for i, factor in enumerate(speed)}
    ours = {str(i): factor * float(random.normal(0.8, 0.01)) for i, factor in enumerate(speed) if i != 7}
    found = ratio(ours, theirs)
    assert found.low <= 0.8 <= found.high
    assert found.low <= found.median <= found.high
    assert found.high - found.low < 0.03
    with pytest.raises(ValueError, match="no round"):
        ratio({"0": 1.0}, {"1": 1.0})
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["bert", "detector"])
def test_work_is_what_torch_counts(name: str, tmp_path: Path) -> None:
    if name == "bert":
        module, x = Bert(layers=1, hidden=48, heads=3, feed_forward=96, tokens=10), torch.randint(0, 30522, (1, 10))
    else:
        module, x = Detector(side=64, width=4, classes=3), torch.randn(1, 3, 64, 64)
    module.eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it passes over fused attention
        module(x)
    export_onnx(module, (x,), tmp_path / "model.onnx", ["x"], ["y"])
    assert work(tmp_path / "model.onnx", {"x": x.numpy()})["multiply_accumulates"] == counter.get_total_flops() // 2


class Broken(Engine):
    """No worker knows it."""

    name, title, packages = "broken", "Broken", ()
    modules: ClassVar[tuple[str, ...]] = ()


def small_files(folder: Path) -> Path:
    """A matrix product of known result, in the form that ``models.prepare`` writes."""
    files = folder / "product-1"
    files.mkdir()
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (2, 3)), ("y", (2, 4)))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), files / "model.onnx")
    np.savez(files / "data.npz", x=x, reference=x @ w)
    return files


def test_a_build_is_kept_and_a_model_without_torch_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, files, calls = Place(tmp_path / "place"), small_files(tmp_path), []
    monkeypatch.setattr(builds, "_built", lambda *words: calls.append(words) or {"seconds": 1.0})
    first = builds.build(Broken, "product", 1, files, place, 5.0)
    assert builds.build(Broken, "product", 1, files, place, 5.0) == first
    assert builds.build(Broken, "product", 2, files, place, 5.0) == first, "its build does not depend on threads"
    assert len(calls) == 1
    monkeypatch.undo()
    assert "ONNX" in builds.build(ENGINES["executorch"], "product", 1, files, place, 5.0)["error"]


def test_engines_are_measured_in_turn_and_failures_are_reasons(tmp_path: Path) -> None:
    """A worker that does not know its engine ends with an error, and so stands for one that cannot load."""
    place, files = Place(tmp_path / "place"), small_files(tmp_path)
    engines: dict[str, type[Engine]] = {"onnxruntime": OnnxRuntime, "broken": Broken}
    for engine in engines.values():
        place.build(engine, "product", 1).mkdir(parents=True)
    found = measure_group(engines, "product", 1, files, place, Plan(rounds=3, seconds=0.01, starts=1), lambda text: None)
    assert len(found["onnxruntime"]["rounds"]) == 3
    assert found["onnxruntime"]["largest"] == 0
    assert found["onnxruntime"]["memory"]["peak"] > 0
    assert found["onnxruntime"]["model_bytes"] == (files / "model.onnx").stat().st_size
    assert "KeyError" in found["broken"]["error"]


def figures(seconds: float) -> dict[str, Any]:
    rounds = {str(i): {"runs": 5, "minimum": 0.9 * seconds, "median": seconds} for i in range(4)}
    sizes = {"import": 0.1, "load": 0.2, "first": 0.1, "runtime_bytes": 10**7, "model_bytes": 10**6, "memory": {"peak": 10**7}}
    return {"rounds": rounds, "largest": 1e-6, "l2": 1e-7, **sizes}


def test_the_page_compares_with_the_fastest_peer(tmp_path: Path) -> None:
    engines = {
        "aotc": figures(0.008),
        "onnxruntime": figures(0.012),
        "openvino": figures(0.010),
        "tvm": {"error": "/home/me/build/m.mlir:9: no operator <LSTM>"},
    }
    own = {
        "weights_bytes": 1e6,
        "largest_live_bytes": 1e5,
        "peak_resident_bytes": 2e6,
        "file_bytes": 1.2e6,
        "start_ms": 36.0,
        "run_ms": 8.0,
    }
    group = {"model": "lstm2", "threads": 1, "date": "1 May 2026", "rounds": 4, "seconds": 0.1, "keys": {}, "engines": engines}
    results = Results(
        "P", {"1": 1e11}, {"aotc": "aotc 1"},
        {"lstm2": {"note": "n", "multiply_accumulates": 200_000_000, "weights": 900_000}}, {}, {"lstm2 1": group}, {"lstm2 1": own},
    )  # fmt: skip
    results.write(tmp_path / "results.json")
    results = Results.read(tmp_path / "results.json")
    assert fastest_peer(results.group("lstm2", 1)) == "openvino"
    found = against(results.group("lstm2", 1), "aotc", "openvino")
    assert found is not None and found.median == pytest.approx(0.8)
    text = page(results, "page.svg")
    assert "| lstm2 | 1 | 8.00 | OpenVINO 10.0 | 0.80 [0.80, 0.80] | 0.80 | 50% | 40% |" in text
    assert "**0.80**" in text and "in 0 of 1 rows" in text
    assert "- TVM, untuned, lstm2: `m.mlir:9: no operator <LSTM>`" in text
    assert "| lstm2 | 0.90 | 1.00 | 200 | 2.0 (0.39) | 0.10 |" in text
    assert "| lstm2 | 1 | 36.0 | 8.0 | 300.0 | 0.12 | 0.03 | 0.09 |" in text
    picture = ElementTree.fromstring(chart(results, 1))
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}title")) == 3


def test_every_engine_has_what_the_page_and_the_worker_read() -> None:
    for name, engine in ENGINES.items():
        assert engine.name == name and engine.title and engine.packages
        assert engine.modules and isinstance(engine.runtime, tuple) and engine.artefacts
        assert issubclass(engine, Engine) and engine(Job("m", 1, Path("f"), Path("b"))).job.onnx == Path("f/model.onnx")
