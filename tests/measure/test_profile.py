"""``aotc profile``: what it says of steps, and that it says it in valid files."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.measure.page import assign_lanes
from aotc.measure.profile import KEPT, profile
from aotc.measure.traffic import edges
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from tests.e2e import small
from tests.frontends.onnx.helpers import parse

GROWTH = 2 << 20  # bytes that the interpreter and the allocator may still take


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}\n{result.exception!r}"
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with a residual connection, and a product of matrices with a fixed size."""
    path = tmp_path_factory.mktemp("profile")
    onnx.save(small.convolutional(), path / "conv.onnx")
    aotc.compile(str(path / "conv.onnx"), output=path / "conv.so", jobs=0)
    weights = np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="the product")
    aotc.compile(
        small.model([product], {"x": ("float32", [16, 64])}, {"y": ("float32", [16, 32])}, {"w": weights}),
        output=path / "product.so",
        jobs=0,
    )
    return path


def test_a_product_touches_its_matrices_once(folder: Path) -> None:
    facts = json.loads(command("profile", folder / "product.so", "--runs", 5, "--json"))
    steps = [step for step in facts["steps"] if step["flops"]]
    assert [step["name"] for step in steps] == ["the product"]
    assert steps[0]["flops"] == 2 * 16 * 64 * 32
    assert steps[0]["weight_bytes"] == 64 * 32 * 4
    assert steps[0]["bytes"] == (16 * 64 + 64 * 32 + 16 * 32) * 4
    assert facts["run_us"] > 0 and facts["peak_flops_per_second"] > 1e8
    assert steps[0]["of_peak"] == pytest.approx(steps[0]["flops_per_second"] / facts["peak_flops_per_second"])
    assert sum(step["share"] for step in facts["steps"]) == pytest.approx(1)


def test_tables_speak_in_the_users_names(folder: Path) -> None:
    run = ("profile", folder / "conv.so", "--shape", "x:2x3x16x16", "--runs", 5)
    text = command(*run, "--threads", 2)
    assert "conv1" in text and "of peak" in text and "2 threads" in text
    in_order = [step["number"] for step in json.loads(command(*run, "--json"))["steps"]]
    assert in_order == list(range(len(in_order)))
    assert "more steps take" in command(*run, "--top", 1, "--sort", "plan")
    assert "steps" in command(*run, "--by", "operators")
    assert "time or plan" in command(*run, "--sort", "size", code=2)
    assert "--entry-point 'step'" in command(*run, "--entry-point", "step", code=2)
    assert "cannot be written" in command(*run, "--html", folder / "nowhere" / "page.html", code=2)


def test_trace_holds_runs_with_their_steps_inside(folder: Path) -> None:
    command("profile", folder / "conv.so", "--shape", "x:1x3x16x16", "--runs", 4, "--trace", folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    runs = [event for event in slices if event["cat"] == "run"]
    assert [event["name"] for event in runs] == ["run 0", "run 1", "run 2", "run 3"]
    steps = [event for event in slices if event["cat"] != "run"]
    for run, following in zip(runs, [*runs[1:], None]):
        inside = [step for step in steps if run["ts"] <= step["ts"] and (following is None or step["ts"] < following["ts"])]
        assert sum(step["dur"] for step in inside) == pytest.approx(run["dur"], abs=0.1)
        assert any("conv1" in step["name"] for step in inside)
        assert following is None or run["ts"] + run["dur"] < following["ts"]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page_is_whole_and_loads_nothing(folder: Path) -> None:
    command("profile", folder / "conv.so", "--shape", "x:1x3x16x16", "--runs", 3, "--html", folder / "page.html")
    text = (folder / "page.html").read_text()
    page = Page()
    page.feed(text)
    entry = read_plan(read_packaged(folder / "conv.so").plan).entry_points[0]
    rows = len(entry.steps) + len(entry.inputs)
    assert sum(tag == "tr" and "data-row" in attributes for tag, attributes in page.tags) == rows
    assert sum(tag == "rect" for tag, _ in page.tags) == rows
    assert sum(tag == "path" for tag, _ in page.tags) == len(edges(entry)) >= len(entry.steps)
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags) and "http" not in text
    details = json.loads(text.split("const details = ", 1)[1].split(", panel = ", 1)[0])
    assert len(details) == rows and any("relu1" in value for row in details for _, value in row)


def test_graph_has_the_residual_connection(folder: Path) -> None:
    entry = read_plan(read_packaged(folder / "conv.so").plan).entry_points[0]
    first = next(number for number, step in enumerate(entry.steps) if "conv1" in step.source)
    second = next(number for number, step in enumerate(entry.steps) if "add2" in step.source)
    assert (first, second) in {(edge.source, edge.target) for edge in edges(entry)}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=40))
def test_ways_in_one_lane_do_not_meet(lengths: list[tuple[int, int]]) -> None:
    ways = [(begin, begin + length) for begin, length in lengths]
    lanes = assign_lanes(ways)
    for (way, lane), (other, its) in ((a, b) for a in zip(ways, lanes) for b in zip(ways, lanes)):
        assert (lane == 0) == (way[1] == way[0] + 1)
        if lane and lane == its and way[0] != other[0]:
            assert way[1] <= other[0] or other[1] <= way[0]


LOOP = """(int64 trips, float[8] x) => (float[8] y, int64[2, K] places) {
    go = Constant <value = bool {1}> ()
    y = Loop (trips, go, x) <body = b (int64 i, bool c, float[8] v) => (bool c2, float[8] v2) {
        c2 = Identity (c)
        w = Add (v, x)
        v2 = Sin (w)
    }>
    twice = Constant <value_ints = [2, 4]> ()
    square = Reshape (y, twice)
    places = NonZero (square)
}"""


def test_loops_and_sizes_that_only_a_run_tells(tmp_path: Path) -> None:
    aotc.compile(parse(LOOP, 18), output=tmp_path / "loop.so", jobs=0)
    found = profile(tmp_path / "loop.so", {"trips": np.array(5), "x": np.ones(8, np.float32)}, runs=3)
    assert any(step.executions == 5 and "sin" in step.operators for step in found.steps)
    assert found.steps_ns > 0 and {step.kind for step in found.steps} > {"kernel"}
    feeds: dict[str, Any] = {"trips": np.array(0), "x": np.ones(8, np.float32)}
    assert not any("sin" in step.operators and step.ns for step in profile(tmp_path / "loop.so", feeds, runs=3).steps)


def resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def test_profiled_runs_grow_nothing(folder: Path) -> None:
    """A hundred thousand runs are `python -m tests.measure`."""
    feeds = {"x": np.ones((1, 3, 16, 16), np.float32)}
    profile(folder / "conv.so", feeds, runs=2 * KEPT, measure_peak=False)
    before = resident()
    found = profile(folder / "conv.so", feeds, runs=4 * KEPT, measure_peak=False)
    assert found.samples.shape == (KEPT, len(found.steps)) and found.runs == 4 * KEPT
    assert resident() - before <= GROWTH
