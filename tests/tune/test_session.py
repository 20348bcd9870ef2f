"""Whole sessions: here, on boards over TCP, under emulation; boards that are lost, sessions that are killed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import ops, targets
from aotc.errors import InvalidOption
from aotc.ir.dims import symbol
from aotc.ir.expr import Function, Module, Parameter, Var
from aotc.ir.types import TensorType
from aotc.lowering.tuned import read_tuning
from aotc.tuning.board import BoardLost
from aotc.tuning.program import board_program
from aotc.tuning.search import Effort
from aotc.tuning.session import Event
from aotc.tuning.tune import Report, Source, tune
from cross import qemu
from tests.tune.helpers import HOST, two_layers
from tests.tune.test_board import listening

QUICK = Effort(trials=3, seconds=0.1)
ROOT = Path(__file__).resolve().parents[2]


def session(path: Path, module: Module | None = None, **options: object) -> tuple[Report, list[Event]]:
    told: list[Event] = []
    settings = {"effort": QUICK, "jobs": 0, "tell": told.append, **options}
    return tune(Source(module or two_layers()), HOST, path, **settings), told  # type: ignore[arg-type]


@contextlib.contextmanager
def dying(answers: int) -> Iterator[str]:
    """A board that passes ``answers`` requests on to a true one, and then closes every connection."""
    with listening() as (address, _), socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_forward, args=(server, address, answers), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def _forward(server: socket.socket, address: str, answers: int) -> None:
    host, port = address.split(":")
    peer, _ = server.accept()
    with peer, socket.create_connection((host, int(port)), 10) as board:
        ends = [(peer.makefile("rb"), board.makefile("wb")), (board.makefile("rb"), peer.makefile("wb"))]
        for _ in range(answers):
            for source, sink in ends:
                header = source.read(16)
                sink.write(header + source.read(int.from_bytes(header[8:], "little")))
                sink.flush()
        ends[0][0].read(16)  # the next request gets no answer


def test_here_from_end_to_end(tmp_path: Path) -> None:
    report, told = session(tmp_path / "t.jsonl")
    assert [layer.name for layer in report.layers] and all(layer.key in report.entries for layer in report.layers)
    assert [event.kind for event in told] == ["start", "done"] * len(report.layers)
    assert read_tuning(tmp_path / "t.jsonl") == dict(report.entries)
    again, told = session(tmp_path / "t.jsonl")
    assert (again.measured, told) == ((), [])  # it knows all of them
    anew, _ = session(tmp_path / "t.jsonl", again=True, network=False)
    assert len(anew.measured) == len(report.layers)
    aotc.compile(two_layers(), output=tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl")


def test_the_whole_model_is_compared(tmp_path: Path) -> None:
    """With a selection made by hand for each layer, which the comparison keeps or takes back."""
    report, _ = session(tmp_path / "t.jsonl", network=False)
    text = (tmp_path / "t.jsonl").read_text()
    (tmp_path / "t.jsonl").write_text(text.replace('"selection": {}', '"selection": {"tile": "1x2"}'))
    again, _ = session(tmp_path / "t.jsonl")
    (comparison,) = again.comparisons
    assert comparison.entry_point == "main"
    assert {layer.key for layer in report.layers} <= set(comparison.layers)
    for layer in report.layers:
        kept = bool(again.entries[layer.key].selection)
        assert kept != (layer.key in again.reverted)
        assert not (kept and comparison.layers[layer.key][2].is_slower)
    assert read_tuning(tmp_path / "t.jsonl") == dict(again.entries)


def test_a_lost_board_loses_nothing(tmp_path: Path) -> None:
    with dying(2) as bad, listening() as (good, _):
        report, told = session(tmp_path / "t.jsonl", boards=[bad, good])
    assert len(report.measured) == len(report.layers) and not report.left
    assert [event.board for event in told if event.kind == "lost"] == [bad]
    assert len(report.lost) == 1


def test_several_boards_at_once(tmp_path: Path) -> None:
    with listening() as (one, _), listening() as (other, _):
        report, told = session(tmp_path / "t.jsonl", boards=[one, other])
    assert len(report.measured) == len(report.layers) == 2
    assert {event.board for event in told if event.kind == "done"} == {one, other}


def test_with_no_board_left_what_was_found_is_kept(tmp_path: Path) -> None:
    with dying(5) as bad:  # the greeting, and two files with their times, so one layer
        report, _ = session(tmp_path / "t.jsonl", boards=[bad], effort=Effort(trials=2, seconds=0.1))
    assert len(report.left) == len(report.layers) - 1 == len(report.layers) - len(read_tuning(tmp_path / "t.jsonl"))
    assert report.comparisons == ()
    with listening() as (good, _):
        later, _ = session(tmp_path / "t.jsonl", boards=[good])
    assert later.measured == tuple(job.key for job in report.left)


def test_boards_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(BoardLost, match="cannot be reached"):
        session(tmp_path / "t.jsonl", boards=["127.0.0.1:9"])
    other = targets.get("jetson-orin" if HOST.architecture == "x86_64" else "x86-64-v3")
    with pytest.raises(InvalidOption, match=rf"cannot measure for {other.name}: start aotc_board on such a board"):
        tune(Source(two_layers()), other, tmp_path / "t.jsonl", effort=QUICK, jobs=0)
    with listening() as (good, _), pytest.raises(InvalidOption, match=f"while {other.name} is {other.architecture}"):
        tune(Source(two_layers()), other, tmp_path / "t.jsonl", effort=QUICK, jobs=0, boards=[good])


def test_sizes_that_a_run_tells(tmp_path: Path) -> None:
    rows = symbol("rows", 1, 64)
    x = Var("x", TensorType((rows, 32), "float32"))
    weight = Parameter("w", np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32))
    module = Module({"main": Function((x,), ops.relu(ops.matmul(x, weight, origin="/product")))}, {"main": ("y",)})
    with pytest.raises(InvalidOption, match=r"rows are known only when the model runs: .*--size rows=N"):
        session(tmp_path / "t.jsonl", module)
    with pytest.raises(InvalidOption, match="rows=65 is out of bounds: it is from 1 to 64"):
        session(tmp_path / "t.jsonl", module, sizes={"rows": 65})
    with pytest.raises(InvalidOption, match="no input has such a dim; the dims that a run tells are rows"):
        session(tmp_path / "t.jsonl", module, sizes={"columns": 3})
    report, _ = session(tmp_path / "t.jsonl", module, sizes={"rows": 24})
    assert len(report.measured) == len(report.layers)


@pytest.mark.skipif(bool(qemu.missing()), reason=f"emulating Arm needs: apt-get install {' '.join(qemu.missing())}")
def test_an_emulated_board(tmp_path: Path) -> None:
    """A session for Arm from end to end: the program under qemu-user, candidates sent over TCP, the file built with what was found."""
    orin = targets.get("jetson-orin")
    command = ["qemu-aarch64", "-L", str(qemu.SYSROOT), str(board_program(orin)), "--port", "0", "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board:
        try:
            assert board.stdout is not None
            address = board.stdout.readline().split()[-1]
            told: list[Event] = []
            effort = Effort(trials=2, seconds=0.1)
            report = tune(Source(two_layers(8)), orin, tmp_path / "t.jsonl", boards=[address], effort=effort, jobs=0, tell=told.append)
        finally:
            board.terminate()
    assert len(report.measured) == len(report.layers) and not report.failed, [event.message for event in told]
    assert aotc.compile(two_layers(8), orin, tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl", device="cpu").steps


def test_killed_half_way(tmp_path: Path) -> None:
    """The process is killed as soon as it has told of the first layer; what it found is in the file, and the next goes on."""
    code = (
        "import os, signal\n"
        "from tests.tune.test_session import *\n"
        "def tell(event):\n"
        "    if event.kind == 'done': os.kill(os.getpid(), signal.SIGKILL)\n"
        f"tune(Source(two_layers()), HOST, {str(tmp_path / 't.jsonl')!r}, effort=QUICK, jobs=0, tell=tell)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    found = read_tuning(tmp_path / "t.jsonl")
    assert len(found) == 1
    report, _ = session(tmp_path / "t.jsonl", network=False)
    assert len(report.measured) == len(report.layers) - 1
    assert found.items() <= report.entries.items()
