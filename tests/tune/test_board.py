"""The program aotc_board: what it measures, and what it survives."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aotc.errors import InvalidOption
from aotc.tuning.board import MAXIMUM_ENTRIES, Board, BoardLost, CandidateFailed, Input, Request, connect, local
from aotc.tuning.candidates import candidate_file
from aotc.tuning.program import board_program
from tests.tune.helpers import HOST, written_in_c

HEADER = struct.Struct("<IHHQ")
MAGIC = 0x42544F41
INPUTS = [Input((1024,), True)]

BODIES = {
    "plain": "y[i] = x[i] > 0 ? x[i] : 0;",
    "slow": "y[i] = 0; for (int k = 0; k < 200; k++) __asm__ volatile(\"\" ::: \"memory\"); y[i] = x[i] > 0 ? x[i] : 0;",
    "wrong": "y[i] = x[i] > 0 ? x[i] * 1.25f : 0;",
    "crash": "*(volatile int *)0 = 1;",
    "hang": "for (;;) __asm__ volatile(\"\");",
    "fails": "if (i == 7) return 3;",
}  # fmt: skip
PLACE = {name: place for place, name in enumerate(BODIES)}


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("board") / "candidates.so"
    layer, compiled = written_in_c(*BODIES.values())
    candidate_file([(layer.call, each) for each in compiled], HOST, path)
    return path


@contextlib.contextmanager
def listening(*options: str) -> Iterator[tuple[str, int]]:
    """A board on loopback: its address and process."""
    with subprocess.Popen([str(board_program(HOST)), "--port", "0", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:"), line
            yield line.split()[-1], process.pid
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with contextlib.closing(local(HOST)) as made:
        yield made


def request(*names: str, limit: float = 20.0, rounds: int = 12, **options: object) -> Request:
    return Request([PLACE[name] for name in names], INPUTS, rounds, 3, 5.0, limit, **options)  # type: ignore[arg-type]


def test_it_measures_and_compares(board: Board, candidates: Path) -> None:
    board.send_file(candidates)
    timing = board.time(request("plain", "slow", "wrong", sweep=100_000))
    assert timing.times.shape == (12, 3)
    plain, slow, _ = np.median(timing.times, axis=0)
    assert slow > 2 * plain > 0
    assert timing.difference[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(timing.difference[2], 0.25 * timing.largest[0], rtol=1e-6)
    assert 0.9 < timing.largest[0] <= 1.0


def test_steps_and_threads(board: Board, candidates: Path) -> None:
    board.send_file(candidates)
    timing = board.time(request("plain", "slow", steps=True, threads=2))
    assert [steps.shape for steps in timing.steps] == [(12, 1), (12, 1)]
    assert (timing.steps[1][:, 0] <= timing.times[:, 1]).all()


def test_budget_ends_the_rounds(board: Board, candidates: Path) -> None:
    board.send_file(candidates)
    assert len(board.time(Request([0], INPUTS, 10_000, 5, 0.0, 10.0)).times) == 5


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("crash", "crashed", "signal 11"),
        ("hang", "timed out", "within 0.5 s"),
        ("fails", "failed", "kernel"),
    ],
)
def test_a_bad_candidate_is_named_and_the_board_goes_on(board: Board, candidates: Path, name: str, kind: str, told: str) -> None:
    board.send_file(candidates)
    with pytest.raises(CandidateFailed, match=told) as caught:
        board.time(request("plain", "slow", name, limit=0.5))
    assert (caught.value.kind, caught.value.entry) == (kind, 2)
    assert board.time(request("plain")).times.shape == (12, 1)


def test_requests_that_cannot_be(board: Board, candidates: Path, tmp_path: Path) -> None:
    board.send_file(candidates)
    for wrong in (
        Request([], INPUTS, 1, 1, 1.0, 1.0),
        Request([0] * (MAXIMUM_ENTRIES + 1), INPUTS, 1, 1, 1.0, 1.0),
        Request([0], INPUTS, 0, 1, 1.0, 1.0),
        Request([0], [Input((1 << 20, 1 << 20), True)], 1, 1, 1.0, 1.0),
        Request([0], [Input((-1,), True)], 1, 1, 1.0, 1.0),
        Request([0], INPUTS, 1, 1, 1.0, 1.0, sweep=1 << 40),
        Request([0], INPUTS, 1, 1, 1.0, 1.0, threads=0),
    ):
        with pytest.raises(CandidateFailed, match="refused: the request to measure cannot be"):
            board.time(wrong)
    with pytest.raises(CandidateFailed, match="no entry point 60"):
        board.time(Request([60], INPUTS, 1, 1, 1.0, 5.0))
    with pytest.raises(CandidateFailed, match="1 inputs, and shapes of 2"):
        board.time(Request([0], INPUTS * 2, 1, 1, 1.0, 5.0))
    with pytest.raises(CandidateFailed, match="1024"):
        board.time(Request([0], [Input((1000,), True)], 1, 1, 1.0, 5.0))
    (tmp_path / "text").write_text("no library")
    board.send_file(tmp_path / "text")
    with pytest.raises(CandidateFailed, match=r"failed: .*ELF"):
        board.time(request("plain"))


def test_over_tcp_with_a_limit_on_files(candidates: Path, tmp_path: Path) -> None:
    with listening("--max-megabytes", "1", "--dir", str(tmp_path)) as (address, _):
        board = connect(address)
        assert board.facts["cores"] >= 1 and board.facts["machine"] == HOST.architecture
        with pytest.raises(CandidateFailed, match="no file was sent"):
            board.time(request("plain"))
        board.send_file(candidates)
        assert board.time(request("plain", "slow")).times.shape == (12, 2)
        board.close()
        (tmp_path / "large").write_bytes(bytes(2 << 20))
        again = connect(address)
        with pytest.raises((CandidateFailed, BoardLost), match=r"too large for this board|connection broke"):
            again.send_file(tmp_path / "large")
        again.close()
        connect(address).close()
    assert [path.name for path in tmp_path.iterdir()] == ["large"]  # it took its own files away


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEADER.pack(MAGIC, 1, 3, 1 << 60),
        HEADER.pack(MAGIC, 1, 2, 1 << 63),
        HEADER.pack(MAGIC, 1, 77, 4) + b"abcd",
        HEADER.pack(MAGIC, 1, 3, 3) + b"abc",
        HEADER.pack(MAGIC, 1, 2, 100) + b"cut short",
        os.urandom(4096),
        b"",
    ],
    ids=["http", "huge request", "huge file", "unknown kind", "short request", "cut short", "noise", "nothing"],
)
def test_nonsense_ends_at_most_the_session(sent: bytes) -> None:
    with listening() as (address, _):
        host, port = address.split(":")
        # The board may end the connection before it has read all.
        with socket.create_connection((host, int(port)), 10) as peer, contextlib.suppress(OSError):
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
        board = connect(address)
        assert board.facts["machine"] == HOST.architecture
        board.close()


def test_another_version_is_told_so() -> None:
    with listening() as (address, _):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 10) as peer:
            peer.sendall(HEADER.pack(MAGIC, 9, 1, 0))
            answer = peer.makefile("rb").read()
    assert b"speaks version 1 of the protocol, the request is of version 9" in answer


def test_a_board_that_dies(candidates: Path, tmp_path: Path) -> None:
    with listening("--dir", str(tmp_path)) as (address, process):
        board = connect(address)
        board.send_file(candidates)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(BoardLost, match="connection broke"):
            board.time(request("plain"))
        board.close()


@pytest.mark.parametrize("address", ["", ":1", "host:", "host:port", "host:99999"])
def test_addresses(address: str) -> None:
    with pytest.raises(InvalidOption, match="is not of the form HOST:PORT"):
        connect(address)


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(BoardLost, match=r"cannot be reached: .*start aotc_board there"):
            connect(f"127.0.0.1:{taken.getsockname()[1]}")


def test_help_warns() -> None:
    told = subprocess.run([str(board_program(HOST)), "--help"], capture_output=True, text=True, check=True).stdout
    assert "RUNS WHATEVER IT IS SENT" in told and "127.0.0.1 unless --bind" in told
    wrong = subprocess.run([str(board_program(HOST)), "--port", "70000"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "is not a number from 0 to 65535" in wrong.stderr
