"""The tuning file: what it keeps, how it is merged and read by a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import ops, targets
from aotc.compiler import primitive_functions
from aotc.errors import InvalidOption
from aotc.ir.expr import Function, Var
from aotc.ir.types import TensorType
from aotc.lowering.build import compile_functions
from aotc.lowering.tuned import Tuned, merge, offered_digest, read_tuning, selections, shapes_text, tuning_key, write_tuning
from aotc.tuning.tune import Forms, Source
from tests.tune.helpers import HOST, two_layers

ENTRY = Tuned("a" * 32, "conv", "float32[1] -> float32[1]", "x86-64-v3", {"tile": "2x6"}, "b" * 12, 8, 1, 3.5, 2.5)


def test_round_trip(tmp_path: Path) -> None:
    other = replace(ENTRY, key="0" * 32, selection={}, label="Faltung")
    write_tuning(tmp_path / "t.jsonl", {ENTRY.key: ENTRY, other.key: other})
    assert read_tuning(tmp_path / "t.jsonl") == {ENTRY.key: ENTRY, other.key: other}
    assert [line[9] for line in (tmp_path / "t.jsonl").read_text().splitlines()] == ["0", "a"]  # in the order of keys
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_files_put_together_are_a_file(tmp_path: Path) -> None:
    better, worse = replace(ENTRY, trials=20, selection={"tile": "1x14"}), replace(ENTRY, trials=4)
    for name, entry in (("one", better), ("two", worse)):
        write_tuning(tmp_path / name, {entry.key: entry})
    (tmp_path / "both").write_text((tmp_path / "one").read_text() + (tmp_path / "two").read_text())
    assert read_tuning(tmp_path / "both") == {ENTRY.key: better}
    later = replace(better, selection={})
    assert merge([better, later]) == {ENTRY.key: later}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1: this is no JSON"),
        ("\n[]", "line 2: an object is missing"),
        ('{"key": "a"}', "label, machine"),
        ("\udcff", "is no tuning file"),
    ],
)
def test_what_is_no_tuning_file(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidOption, match=told):
        read_tuning(tmp_path / "t.jsonl")


def test_selections_must_be_texts(tmp_path: Path) -> None:
    write_tuning(tmp_path / "t.jsonl", {"a": replace(ENTRY, selection={"tile": 3})})  # type: ignore[dict-item]
    with pytest.raises(InvalidOption, match="not an object of texts"):
        read_tuning(tmp_path / "t.jsonl")


def test_a_missing_file() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be read: No such file.*`aotc tune` makes one"):
        aotc.compile(two_layers(), tuning="/nowhere/t.jsonl")


def test_the_key_is_of_content() -> None:
    def function(name: str, extent: int = 8) -> Function:
        x = Var(name, TensorType((extent, 8), "float32"))
        return Function((x,), ops.relu(x, origin=f"/{name}"), name, primitive=True)

    orin = targets.get("jetson-orin")
    assert tuning_key(function("a"), orin) == tuning_key(
        function("b"), targets.get("jetson-orin", "5.1")
    )  # names and systems do not matter
    assert tuning_key(function("a"), orin) != tuning_key(function("a", 9), orin)
    assert tuning_key(function("a"), orin) != tuning_key(function("a"), targets.get("jetson-nano"))


def test_a_build_takes_what_the_file_says(tmp_path: Path) -> None:
    """Two builds with one file are equal, differ from the untuned one, and compute the same."""
    module = Forms(Source(two_layers()).imported(), HOST, {})().module
    functions = primitive_functions(module)
    compiled = compile_functions(functions, HOST, jobs=0)
    function = next(f for f in functions if compiled[f].choices)
    name, options = compiled[function].choices[0]
    entry = replace(
        ENTRY,
        key=tuning_key(function, HOST),
        selection={name: options[1]},
        offered=offered_digest(compiled[function].choices),
        shapes=shapes_text(function),
    )
    write_tuning(tmp_path / "t.jsonl", {entry.key: entry})
    assert selections({entry.key: entry}, functions, HOST) == {function: {name: options[1]}}
    files, counts = [], []
    for number, tuning in enumerate([None, tmp_path / "t.jsonl", tmp_path / "t.jsonl"]):
        report = aotc.compile(two_layers(), output=tmp_path / f"{number}.so", jobs=0, tuning=tuning)
        files.append((tmp_path / f"{number}.so").read_bytes())
        counts.append(report.kernels_tuned)
    assert counts == [0, 1, 1]
    assert files[0] != files[1] == files[2]
    x = np.random.default_rng(1).standard_normal((1, 16, 14, 14), dtype=np.float32)
    untuned, tuned = (aotc.load(tmp_path / f"{number}.so").run({"x": x})["z"] for number in (0, 1))
    np.testing.assert_allclose(tuned, untuned, rtol=1e-5, atol=1e-6)


def test_a_file_without_use_is_told(tmp_path: Path) -> None:
    write_tuning(tmp_path / "t.jsonl", {ENTRY.key: ENTRY})
    report = aotc.compile(two_layers(), output=tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl")
    assert report.kernels_tuned == 0
    assert any("has nothing better for this model on this target" in note for note in report.notes)
