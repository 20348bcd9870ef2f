"""Boards that measure: the client of ``aotc_board``, over TCP or to a child process of this machine.

The protocol is in aotc/runtime/csrc/board/protocol.h; numbers are little-endian. A board that is lost raises ``BoardLost``; a
candidate that fails, crashes or hangs on the board raises ``CandidateFailed``, and the board goes on.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from aotc.errors import AotcError, InvalidOption, RuntimeFailure
from aotc.targets import Target
from aotc.tuning.program import board_program

DEFAULT_PORT = 7878
_MAGIC, _VERSION = 0x42544F41, 1
_HELLO, _FILE, _TIME, _DONE, _ERROR = 1, 2, 3, 4, 5
_HEADER = struct.Struct("<IHHQ")
_REQUEST = struct.Struct("<4I4Q2I")
_INPUT = struct.Struct("<2I16q")
_ANSWER = struct.Struct("<2IQ")
_FAILURE = struct.Struct("<Ii")
_LARGEST_ANSWER = 1 << 31
_CONNECT_SECONDS, _GRACE_SECONDS = 10.0, 30.0
KINDS = {1: "refused", 2: "failed", 3: "crashed", 4: "timed out", 5: "lacks memory or disk"}
MAXIMUM_ENTRIES, MAXIMUM_RANK = 64, 16


class BoardLost(RuntimeFailure):
    """The connection to a board broke, or it does not speak the protocol."""


class CandidateFailed(AotcError):
    """A measurement that gave no times. ``entry`` is the place of the entry point that ran, or -1; ``kind`` one of ``KINDS``."""

    def __init__(self, kind: str, entry: int, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.entry = kind, entry


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the entry points. ``fresh``: what the step before wrote, so that it lies in the cache; weights do not."""

    shape: tuple[int, ...]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Which entry points to run beside each other, and for how long. No round begins after ``budget`` seconds unless fewer than
    ``minimum_rounds`` are done; after ``limit`` seconds the run is killed. ``sweep`` bytes of other memory are read before each run."""

    entries: Sequence[int]
    inputs: Sequence[Input]
    rounds: int
    minimum_rounds: int
    budget: float
    limit: float
    sweep: int = 0
    threads: int = 1
    steps: bool = False
    seed: int = 1

    def pack(self) -> bytes:
        numbers = (self.threads, self.rounds, self.minimum_rounds, int(self.steps), int(self.budget * 1e9), int(self.limit * 1e9))
        head = _REQUEST.pack(*numbers, self.sweep, self.seed, len(self.entries), len(self.inputs))
        inputs = [
            _INPUT.pack(int(each.fresh), len(each.shape), *each.shape, *[0] * (MAXIMUM_RANK - len(each.shape))) for each in self.inputs
        ]
        return b"".join([head, struct.pack(f"<{len(self.entries)}I", *self.entries), *inputs])


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds[round, entry]; the largest difference of each entry's outputs from the first one's, and the largest value of
    these; where steps were asked for, nanoseconds[round, step] of each entry."""

    times: np.ndarray
    difference: np.ndarray
    largest: np.ndarray
    steps: tuple[np.ndarray, ...] = ()


class Board:
    """A board that answers. Use it from one thread at a time."""

    def __init__(
        self, name: str, receive: IO[bytes], send: IO[bytes], close: contextlib.ExitStack, connection: socket.socket | None
    ) -> None:
        self.name, self._receive, self._send, self._stack, self._socket = name, receive, send, close, connection
        self._wait(_CONNECT_SECONDS)
        try:
            self.facts: dict[str, Any] = json.loads(self._ask(_HELLO, b"", _HELLO))
        except ValueError as error:
            raise BoardLost(f"board {name}: its greeting is no JSON; is this an aotc_board?") from error

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, whose cores must not compile while they measure."""
        return self._socket is None

    def close(self) -> None:
        self._stack.close()

    def send_file(self, path: Path) -> None:
        """Gives the board the file that later requests are about. Raises BoardLost, or CandidateFailed where it cannot be kept."""
        self._wait(_GRACE_SECONDS)
        self._ask(_FILE, path.read_bytes(), _DONE)

    def time(self, request: Request) -> Timing:
        """Raises BoardLost, or CandidateFailed where a run gave no times."""
        self._wait(request.limit + _GRACE_SECONDS)
        return _timing(self._ask(_TIME, request.pack(), _TIME), request, self.name)

    def _wait(self, seconds: float) -> None:
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def _ask(self, kind: int, payload: bytes, wanted: int) -> bytes:
        try:
            self._send.write(_HEADER.pack(_MAGIC, _VERSION, kind, len(payload)) + payload)
            self._send.flush()
            magic, version, answer, length = _HEADER.unpack(self._exactly(_HEADER.size))
            if magic != _MAGIC or (version != _VERSION and answer != _ERROR) or length > _LARGEST_ANSWER:
                raise BoardLost(f"board {self.name}: what answers is no aotc_board of this version; copy the one that `aotc board` writes")
            data = self._exactly(length)
        except TimeoutError as error:
            raise BoardLost(f"board {self.name} does not answer: it is busy with another session, or hangs") from error
        except (OSError, EOFError) as error:
            raise BoardLost(f"board {self.name}: the connection broke ({str(error) or 'it was closed'})") from error
        if answer == _ERROR:
            code, entry = _FAILURE.unpack_from(data)
            raise CandidateFailed(KINDS.get(code, f"error {code}"), entry, data[_FAILURE.size :].decode(errors="replace"))
        if answer != wanted:
            raise BoardLost(
                f"board {self.name}: expected an answer of kind {wanted}, got {answer}; copy the program that `aotc board` writes"
            )
        return data

    def _exactly(self, size: int) -> bytes:
        data = self._receive.read(size)
        if len(data) < size:
            raise EOFError
        return data


def connect(address: str) -> Board:
    """The board at ``HOST:PORT``, or ``HOST`` with the default port. Raises InvalidOption for another form, BoardLost where none answers."""
    host, mark, port = address.rpartition(":")
    if not mark:
        host, port = address, str(DEFAULT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidOption(f"--board {address!r} is not of the form HOST:PORT, such as 192.168.1.20:{DEFAULT_PORT}")
    stack = contextlib.ExitStack()
    try:
        connection = stack.enter_context(socket.create_connection((host, int(port)), _CONNECT_SECONDS))
    except OSError as error:
        raise BoardLost(
            f"board {address} cannot be reached: {error.strerror or error}; start aotc_board there (`aotc board` writes it), with --bind, "
            "or through an ssh tunnel"
        ) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receive, send = stack.enter_context(connection.makefile("rb")), stack.enter_context(connection.makefile("wb"))
    return _greeted(address, receive, send, stack, connection)


def local(target: Target) -> Board:
    """This machine as a board: the same program as a child process, which Ctrl-C does not reach: it would look like a lost board."""
    stack = contextlib.ExitStack()
    command = [str(board_program(target)), "--pipe"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    stack.callback(process.wait)
    stack.callback(process.terminate)  # what it measures may take another minute
    stack.enter_context(process.stdout)
    stack.enter_context(contextlib.suppress(BrokenPipeError))
    stack.enter_context(process.stdin)
    return _greeted("this machine", process.stdout, process.stdin, stack, None)


def _greeted(name: str, receive: IO[bytes], send: IO[bytes], stack: contextlib.ExitStack, connection: socket.socket | None) -> Board:
    try:
        return Board(name, receive, send, stack, connection)
    except AotcError:
        with contextlib.suppress(OSError):
            stack.close()
        raise


def _timing(data: bytes, request: Request, board: str) -> Timing:
    entries, rounds, _ = _ANSWER.unpack_from(data)
    numbers = np.frombuffer(data, "<f8", offset=_ANSWER.size)
    count = rounds * entries
    if entries != len(request.entries) or len(numbers) < count + 2 * entries or not rounds:
        raise BoardLost(f"board {board}: its answer does not fit the request; copy the program that `aotc board` writes")
    steps, at = [], count + 2 * entries
    for _ in range(entries if request.steps else 0):
        width = int(numbers[at : at + 1].view("<u8")[0])
        steps.append(numbers[at + 1 : at + 1 + rounds * width].reshape(rounds, width))
        at += 1 + rounds * width
    difference, largest = numbers[count : count + entries], numbers[count + entries : count + 2 * entries]
    return Timing(numbers[:count].reshape(rounds, entries), difference, largest, tuple(steps))
