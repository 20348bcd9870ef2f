"""The commands: what they print, and what they say when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from aotc.cli import app
from aotc.lowering.tuned import read_tuning, write_tuning
from tests.tune.helpers import HOST
from tests.tune.test_database import ENTRY
from tests.tune.test_session import ROOT, dying


def aotc(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    weight = np.random.default_rng(0).standard_normal((24, 8, 3, 3), dtype=np.float32)
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["c"], name="/conv"), onnx.helper.make_node("Relu", ["c"], ["y"], name="/relu")]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", 1, [1, 8, 12, 12])], [info("y", 1, [1, 24, 10, 10])], [onnx.numpy_helper.from_array(weight, "w")]
    )
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_tune_then_build(model: str, tmp_path: Path) -> None:
    file, effort = str(tmp_path / "t.jsonl"), ["--trials", "2", "--seconds", "0.1", "--jobs", "1"]
    code, out, err = aotc("tune", model, "-o", file, *effort)
    assert code == 0, err
    assert "Before and after" in out and "/conv" in out and "wrote" in out
    assert "1 layers have a choice" in err and "best of" in err
    code, out, _ = aotc("tune", model, "-o", file, *effort, "--json", "--no-whole")
    facts = json.loads(out)
    (layer,) = facts["layers"]
    assert code == 0 and not layer["measured_now"] and layer["trials"] >= 1
    assert facts["note"] == "it was not asked for"
    code, out, _ = aotc("build", model, "--tuning", file, "-o", str(tmp_path / "m.so"), "--jobs", "1", "--json")
    assert code == 0 and json.loads(out)["kernels_tuned"] == bool(layer["selection"])


def test_all_boards_lost(model: str, tmp_path: Path) -> None:
    with dying(1) as bad:
        code, out, err = aotc("tune", model, "-o", str(tmp_path / "t.jsonl"), "--board", bad, "--trials", "1", "--jobs", "1")
    assert code == 6
    assert "not measured" in out
    told = " ".join(err.split())
    assert "1 layers were not measured" in told and "the same command goes on from there" in told
    assert read_tuning(tmp_path / "t.jsonl") == {}


def test_merge(tmp_path: Path) -> None:
    other = replace(ENTRY, key="c" * 32)
    write_tuning(tmp_path / "a", {ENTRY.key: ENTRY})
    write_tuning(tmp_path / "b", {other.key: other})
    code, out, _ = aotc("tune", "--merge", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "c"))
    assert code == 0 and "2 layers of 2 files" in out
    assert read_tuning(tmp_path / "c") == {ENTRY.key: ENTRY, other.key: other}
    code, _, err = aotc("tune", "--merge", str(tmp_path / "none"), "-o", str(tmp_path / "d"))
    assert code == 2 and "cannot be read" in err


def test_board_writes_a_program(tmp_path: Path) -> None:
    program = tmp_path / "aotc_board"
    assert aotc("board", "--target", "host", "-o", str(program))[0] == 0
    assert os.access(program, os.X_OK)
    assert "RUNS WHATEVER IT IS SENT" in subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    code, _, err = aotc("board", "--target", "host", "-o", str(tmp_path / "no" / "where"))
    assert code == 5 and "choose another --output" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--size", "x=many"], "expected NAME=N with a number"),
        (["--size", "rows=3"], "no input has such a dim"),
        (["--board", "nowhere:0"], "is not of the form HOST:PORT"),
        (["-o", "/nowhere/t.jsonl"], "cannot be written"),
        (["--target", "jetson-orin" if HOST.architecture == "x86_64" else "x86-64-v3"], "cannot measure for"),
    ],
)
def test_what_cannot_be(model: str, tmp_path: Path, arguments: list[str], told: str) -> None:
    code, _, err = aotc("tune", model, "-o", str(tmp_path / "t.jsonl"), "--jobs", "1", *arguments)
    assert code in (2, 5) and told in " ".join(err.split())


def test_ended_by_the_user(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the session: it ends at once, tells what it kept, and no process shows a traceback."""
    words = ["tune", "tests.tune.helpers:many_layers", "-o", str(tmp_path / "t.jsonl"), "--trials", "8", "--seconds", "2"]
    command = [sys.executable, "-m", "aotc", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as session:
        assert session.stderr is not None
        lines = iter(session.stderr.readline, "")
        first = next(line for line in lines if "best of" in line)
        os.killpg(session.pid, signal.SIGINT)
        rest = session.stderr.read()
    assert first and session.returncode == 130, rest
    assert "the same command goes on from there" in rest and "Traceback" not in rest
    assert 1 <= len(read_tuning(tmp_path / "t.jsonl")) < 24
