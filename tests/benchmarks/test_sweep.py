"""The operator sweep and its page: on two small shapes, never asserting a time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import aotc
from benchmarks import page, shapes, sweep
from benchmarks.chart import Axis, Chart, Series, powers
from benchmarks.machine import SIZES, Machine

CONV = shapes.Conv("tiny", 1, 5, (9, 7), 6, (3, 2), (2, 1), (1, 0), (1, 2), 1)
PRODUCT = shapes.Matmul("tiny", 2, 3, 4, 5, weights=False)


def test_the_list_has_200_shapes_of_20_networks_and_odd_ones() -> None:
    found = shapes.load()
    assert len(found) == len(set(found)) == 200
    assert len({shape.network for shape in found} - {"odd"}) >= 20
    assert sum(shape.network == "odd" for shape in found) == shapes.ODD
    assert all(shape.macs >= shapes.SMALLEST for shape in found)


def test_work_of_a_convolution_is_torchs() -> None:
    x, weight = torch.zeros(1, 5, 9, 7), torch.zeros(6, 5, 3, 2)
    result = torch.conv2d(x, weight, stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    assert CONV.extents == tuple(result.shape[2:])
    assert CONV.macs == result.numel() * 5 * 3 * 2
    assert CONV.elements == x.numel() + weight.numel() + 6 + result.numel()


def test_modules_compute_what_the_shapes_say(tmp_path: Path) -> None:
    assert sweep.build([CONV, PRODUCT], tmp_path / "two.so") == [None, None]
    model = aotc.load(tmp_path / "two.so")
    x, weight = sweep.noise(1, 5, 9, 7), sweep.noise(6, 5, 3, 2)
    expected = torch.conv2d(*map(torch.from_numpy, (x, weight)), torch.from_numpy(sweep.noise(6)), (2, 1), (1, 0), (1, 2)).relu()
    np.testing.assert_allclose(model.run({"x": x}, entry_point="s0")["y"], expected.numpy(), atol=1e-5)
    a, b = sweep.noise(2, 3, 4), sweep.noise(2, 4, 5)
    np.testing.assert_allclose(model.run({"x": a, "other": b}, entry_point="s1")["y"], a @ b, atol=1e-5)


def test_command_measures_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "CHART", tmp_path / "sweep.svg")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sweep, "measure", lambda: Machine(1e11, (1e10,) * len(SIZES)))
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps({"shapes": [asdict(CONV), asdict(PRODUCT)]}))
    app = typer.Typer()
    app.command()(sweep.main)
    arguments = ["--file", str(listed), "--seconds", "0.001", "--json"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, arguments)
    assert json.loads(again.output) == json.loads(first.output)  # nothing was timed again
    assert json.loads(first.output)["summary"]["shapes"] == 2
    assert "| conv | 1 |" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "sweep.svg").read_text().count("<title>") == 2


def test_sections_of_the_page_stand_in_one_order(tmp_path: Path) -> None:
    place = tmp_path / "page.md"
    for name, text in (("scaling", "old"), ("arm", "counts"), ("scaling", "new")):
        page.write_section(name, [text], place)
    assert page.read_sections(place) == {"arm": "counts", "scaling": "new"}
    assert place.read_text().index("counts") < place.read_text().index("new")


def test_charts_keep_points_inside_and_escape_text() -> None:
    text = Chart("a < b", Axis("x", 1, 100, powers(1, 100), log=True), Axis("y", 0, 1, (0, 1)), [Series("s", [(10, 5, "&")])]).svg()
    assert 'cy="40.0"' in text  # a value above the axis stands at its end
    assert "a &lt; b" in text
    assert "<title>&amp;</title>" in text
