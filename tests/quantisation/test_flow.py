"""From data to an int8 file: the Python API and the command line, on networks of a few layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.errors import InvalidOption
from aotc.frontends import import_model
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, run_passes
from aotc.quantisation import Quantised, quantise
from aotc.quantisation.recipe import LayerRecipe
from aotc.quantisation.statistics import with_counters
from aotc.quantisation.structure import analyse
from aotc.quantisation.timing import LayerTime, without_slower
from tests.quantisation.helpers import decibels


class Small(nn.Module):
    """Two inputs; any batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 24), nn.Linear(12, 24)
        self.c = nn.Linear(24, 7)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.c(torch.relu(self.a(x)) + self.b(y))


def small() -> tuple[Small, tuple[Tensor, Tensor], dict[str, object]]:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=64)
    return Small().eval(), (torch.zeros(2, 12), torch.zeros(2, 12)), {"x": {0: rows}, "y": {0: rows}}


def batches(sizes: tuple[int, ...] = (8, 8, 3), seed: int = 0) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{name: random.standard_normal((rows, 12)).astype("float32") for name in ("x", "y")} for rows in sizes]


def calibration() -> Iterator[dict[str, np.ndarray]]:
    yield from batches()


def wanted(feeds: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return small()[0](*(torch.from_numpy(feeds[name]) for name in ("x", "y"))).numpy()


@pytest.fixture(scope="module")
def made() -> Quantised:
    model, args, shapes = small()
    return quantise(import_model(model, None, args, shapes, ()), batches())


def test_statistics_are_those_of_all_batches(made: Quantised) -> None:
    everything = {name: np.concatenate([batch[name] for batch in batches()]) for name in ("x", "y")}
    assert made.statistics is not None
    for name, values in everything.items():
        assert made.statistics.ranges[name] == (values.min(), values.max())
        assert made.statistics.counts[name].sum() == values.size
    np.testing.assert_allclose(made.statistics.mean("a"), everything["x"].mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made.statistics.largest["b"], np.abs(everything["y"]).max(axis=0))


def test_a_built_file_agrees_with_pytorch(tmp_path: Path) -> None:
    model, args, shapes = small()
    report = aotc.compile(
        model, output=tmp_path / "m.so", args=args, dynamic_shapes=shapes, precision="int8", calibration=batches(), jobs=0
    )
    assert any("3 of 3 layers" in note for note in report.notes)
    for feeds in batches():
        result = next(iter(aotc.load(tmp_path / "m.so").run(feeds).values()))
        assert decibels(wanted(feeds), result) > 35


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    run, name = CliRunner(), "tests.quantisation.test_flow"
    recipe, page = tmp_path / "r.json", tmp_path / "r.html"
    first = run.invoke(
        app, ["quantize", f"{name}:small", "--calib", f"{name}:calibration", "-o", str(recipe), "--report", str(page), "--json"]
    )
    assert first.exit_code == 0, first.output
    facts = json.loads(first.stdout)
    assert [layer["dtype"] for layer in facts["layers"]] == ["int8"] * 3 and "What became int8" in page.read_text()
    second = run.invoke(
        app, ["build", f"{name}:small", "--precision", "int8", "--calib", str(recipe), "-o", str(tmp_path / "m.so"), "-j", "1"]
    )
    assert second.exit_code == 0, second.output
    feeds = batches((4,), seed=3)[0]
    assert decibels(wanted(feeds), next(iter(aotc.load(tmp_path / "m.so").run(feeds).values()))) > 30


def test_layers_go_back_to_float_until_the_bound_holds() -> None:
    """An input a thousand times the others spoils the layer that reads it, and only this."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 7)).eval()
    with torch.no_grad():
        model[0].weight[:, 3] /= 1000
    data = [
        {
            "input": np.random.default_rng(i).standard_normal((16, 12)).astype("float32")
            * np.where(np.arange(12) == 3, 1000, 1).astype("float32")
        }
        for i in range(4)
    ]
    module = import_model(model, None, (torch.zeros(16, 12),), None, ())
    made = quantise(module, data, aotc.Int8Options(observer="minmax", max_drop=0.005, equalise=False))
    assert made.search is not None and made.search.kept and made.search.first_score < 0.99 < made.search.score
    assert [made.recipe.layers[name].dtype for name in ("0", "2", "4")] == ["float32", "int8", "int8"]
    assert made.search.float_score - made.search.score <= 0.005


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--precision", "int8"], "needs calibration"),
        (["--calib", "nothing"], "neither a folder"),
        (["--calib", "json:nothing"], "--calib"),
        (["--precision", "int8", "--calib", "tests.quantisation.test_flow:calibration", "--observer", "best"], "minmax"),
        (["--precision", "int8", "--calib", "tests.quantisation.test_flow:calibration", "--max-drop", "x%"], "percentage"),
        (["--precision", "int8", "--calib", "tests.quantisation.test_flow:calibration", "--metric", "top1"], "--max-drop"),
    ],
)
def test_wrong_options_are_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["build", "tests.quantisation.test_flow:small", "-o", str(tmp_path / "m.so"), *arguments])
    assert found.exit_code == 2 and said in " ".join(found.output.split())


def test_data_that_do_not_fit_are_said() -> None:
    model, args, shapes = small()
    module = import_model(model, None, args, shapes, ())
    for data, said in (([{"x": np.zeros((2, 12), "float32")}], "each input: x, y"), (3, "expected a list"), ([], "empty")):
        with pytest.raises(InvalidOption, match=said):
            quantise(module, data)


def test_arrays_of_a_file_are_cut_into_batches(tmp_path: Path) -> None:
    from aotc.cli.calibration import load_calibration
    from aotc.cli.tensors import Preprocessing

    model, args, shapes = small()
    module = import_model(model, None, args, shapes, ())
    arrays = {name: np.arange(19 * 12, dtype="float32").reshape(19, 12) for name in ("x", "y")}
    np.savez(tmp_path / "d.npz", **arrays, labels=np.arange(19))
    found = list(load_calibration(str(tmp_path / "d.npz"), module, Preprocessing()).batches())
    assert [len(batch["x"]) for batch in found] == [8, 8, 3] and set(found[0]) == {"x", "y", "labels"}
    np.testing.assert_array_equal(np.concatenate([batch["y"] for batch in found]), arrays["y"])
    np.savez(tmp_path / "e.npz", x=arrays["x"])
    with pytest.raises(InvalidOption, match="no array for the input 'y'"):
        load_calibration(str(tmp_path / "e.npz"), module, Preprocessing())


def test_dynamic_scales_need_no_data(tmp_path: Path) -> None:
    model, args, shapes = small()
    report = aotc.compile(
        model, output=tmp_path / "m.so", args=args, dynamic_shapes=shapes, precision="int8", calibration="dynamic", jobs=0
    )
    assert any("3 of 3 layers" in note for note in report.notes)
    for feeds in (*batches((5, 1), seed=9), {name: np.zeros((2, 12), "float32") for name in ("x", "y")}):
        result = next(iter(aotc.load(tmp_path / "m.so").run(feeds).values()))
        assert decibels(wanted(feeds), result) > 35


def test_layers_are_timed_and_slower_ones_stay_float() -> None:
    model, args, shapes = small()
    made = quantise(import_model(model, None, args, shapes, ()), batches(), aotc.Int8Options(timing=True))
    assert set(made.times) == {"a", "b", "c"} and all(each.float_us > 0 < each.int8_us for each in made.times.values())
    assert {name for name, each in made.times.items() if each.is_slower} == {
        name for name, each in made.recipe.layers.items() if each.dtype == "float32"
    }
    plain = replace(made.recipe, layers={name: LayerRecipe() for name in made.recipe.layers})
    recipe = without_slower(plain, {"a": LayerTime(1.0, 2.0), "b": LayerTime(2.0, 2.1)})
    assert [recipe.layers[name].dtype for name in "abc"] == ["float32", "int8", "int8"] and "slower here: 2.0 us" in recipe.layers[
        "a"
    ].reason


def test_counters_take_hardly_any_memory(tmp_path: Path) -> None:
    """What is counted is forgotten: the working memory is that of a run without counters."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(5))).eval()
    module = import_model(model, None, (torch.zeros(1, 8, 96, 96),), None, ())
    network = analyse(run_passes(module, CLEAN, Options()))
    plain, counted = (
        aotc.compile(each, output=tmp_path / "m.so", winograd=False, jobs=0) for each in (module, with_counters(network).module)
    )
    assert plain.arena_size is not None and counted.arena_size is not None
    assert counted.arena_size <= plain.arena_size * 1.7, (plain.arena_size, counted.arena_size)


def test_bounds_and_metrics() -> None:
    from aotc.quantisation.accuracy import metric_of, parse_drop, sqnr

    assert [parse_drop(text) for text in ("1%", "0.02", "30dB")] == pytest.approx([0.01, 0.02, 0.001])
    random = np.random.default_rng(0)
    reference = random.standard_normal((50, 10)).astype("float32")
    noisy = reference + 0.1 * random.standard_normal((50, 10)).astype("float32")
    assert sqnr([{"y": noisy}], [{"y": reference}]) == pytest.approx(decibels(reference, noisy), abs=1e-3)
    assert metric_of("sqnr")([{"y": noisy}], [{"y": reference}], None) == pytest.approx(
        1 - 10 ** (-decibels(reference, noisy) / 10), abs=1e-5
    )
    cosines = torch.nn.functional.cosine_similarity(torch.from_numpy(noisy), torch.from_numpy(reference)).mean()
    assert metric_of("cosine")([{"y": noisy}], [{"y": reference}], None) == pytest.approx(float(cosines), abs=1e-5)
    labels = reference.argmax(axis=1)
    labels[:10] = (labels[:10] + 1) % 10
    assert metric_of("top1")([{"y": reference}], [{"y": reference}], [labels]) == pytest.approx(0.8)
