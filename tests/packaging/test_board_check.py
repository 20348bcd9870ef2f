"""Whether a file fits a board: what the board has is data, what the file needs is read from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import aotc
from aotc import targets
from aotc.cli import app
from aotc.errors import InvalidOption
from aotc.packaging.board_check import findings
from aotc.packaging.reader import read_packaged
from aotc.targets.boards import BOARDS, Board, board
from tests.passes.helpers import module

TEXT = "(%x: float32[4, 8]) {\n %0 = dense(%x, $w)\n %1 = relu(%0)\n return %1\n}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One network for the boards' CPUs and GPUs."""
    path = tmp_path_factory.mktemp("boards")
    model = module(TEXT, {"w": np.ones((8, 8), np.float32)})
    for target in ("jetson-orin", "jetson-nano"):
        for device in ("cpu", "cuda"):
            aotc.compile(model, target, path / f"{target}-{device}.so", device=device)
    return path


def told(path: Path, name: str, jetpack: str | None = None) -> dict[str, bool | None]:
    return {finding.what: finding.right for finding in findings(read_packaged(path), board(name), jetpack)}


def test_a_file_fits_the_boards_that_it_is_for(folder: Path) -> None:
    for name in ("orin-nano-4gb", "orin-nx", "agx-orin"):
        found = told(folder / "jetson-orin-cuda.so", name)
        assert found == dict.fromkeys(("processor", "instructions", "libraries", "GPU code", "driver", "steps", "memory"), True)
        assert told(folder / "jetson-orin-cpu.so", name) == dict.fromkeys(("processor", "instructions", "libraries", "memory"), True)


@pytest.mark.parametrize(
    ("name", "jetpack", "wrong"),
    [
        ("agx-xavier", None, {"instructions", "libraries", "GPU code"}),  # no dotprod, an older C library, another GPU
        ("thor-t5000", None, {"GPU code"}),
        ("orin-nano", "5.1", {"libraries", "driver"}),  # CUDA 12.6 made it, the driver is of 11.4
    ],
)
def test_what_does_not_fit_is_named(folder: Path, name: str, jetpack: str | None, wrong: set[str]) -> None:
    found = told(folder / "jetson-orin-cuda.so", name, jetpack)
    assert {what for what, right in found.items() if right is False} == wrong


def test_a_c_library_that_is_too_old_has_a_cure(folder: Path) -> None:
    result = command("check", folder / "jetson-orin-cpu.so", "--board", "orin-nano", "--jetpack", "5.1")
    assert result.exit_code == 6 and "build it with --target jetson-orin --jetpack 5.1" in " ".join(result.output.split())
    result = command("check", folder / "jetson-orin-cpu.so", "--jetpack", "5.1")
    assert result.exit_code == 6 and "build it with --target jetson-orin --jetpack 5.1" in " ".join(result.output.split())


def test_what_no_compiler_here_can_prove(folder: Path) -> None:
    """No compiler of CUDA 10.2, which JetPack 4.6 has, is published as a wheel."""
    assert told(folder / "jetson-nano-cuda.so", "nano")["driver"] is None
    result = command("check", folder / "jetson-nano-cuda.so", "--board", "nano")
    assert result.exit_code == 9 and "run it once" in " ".join(result.output.split())
    assert command("check", folder / "jetson-nano-cpu.so", "--board", "nano").exit_code == 0


def test_memory_is_the_boards(folder: Path) -> None:
    small = Board("small", "A board without memory", "jetson-orin", 87, 1, 1)
    found = findings(read_packaged(folder / "jetson-orin-cuda.so"), small, None)
    assert [finding.what for finding in found if finding.right is False] == ["memory"]


@pytest.mark.parametrize(
    ("shape", "fits"),
    [("64, 4096, 4096", False), ("n, 4096, 4096", False), ("8, 4096, 4096", True)],  # 4 GiB in, 4 GiB out, of 8
)
def test_memory_counts_inputs_and_outputs_at_their_largest(shape: str, fits: bool, tmp_path: Path) -> None:
    model = module(f"symbol n: 1..64\n(%x: float32[{shape}]) {{\n %0 = relu(%x)\n return %0\n}}")
    aotc.compile(model, "jetson-orin", tmp_path / "big.so", device="cpu")
    assert told(tmp_path / "big.so", "orin-nano")["memory"] is fits


def test_code_for_other_gpus_than_the_targets(tmp_path: Path) -> None:
    model = module(TEXT, {"w": np.ones((8, 8), np.float32)})
    aotc.compile(model, targets.with_sm(targets.get("jetson-orin"), (72,)), tmp_path / "a.so", device="cuda")
    refused = command("check", tmp_path / "a.so")
    assert refused.exit_code == 6 and "build it with --sm 87" in " ".join(refused.output.split())
    with pytest.raises(InvalidOption, match="no GPU of compute capability 99"):
        targets.with_sm(targets.get("jetson-orin"), (99,))
    needless = command("build", "model.onnx", "--target", "jetson-orin", "--device", "cpu", "--sm", "87")
    assert needless.exit_code == 2 and "not with --device cpu" in needless.output


def test_command(folder: Path) -> None:
    facts = json.loads(command("check", folder / "jetson-orin-cuda.so", "--board", "orin-nano", "--json").stdout)
    assert facts["board"] == "orin-nano" and all(finding["right"] for finding in facts["findings"])
    refused = command("check", folder / "jetson-orin-cuda.so", "--board", "agx-xavier")
    assert refused.exit_code == 6 and "--sm 72" in " ".join(refused.output.split())
    assert command("check", folder / "jetson-orin-cuda.so", "--board", "orin").exit_code == 2
    assert command("check", folder / "jetson-orin-cuda.so", "--board", "orin-nano", "--jetpack", "4.6").exit_code == 2


def test_builds_say_what_their_boards_will_not_do(tmp_path: Path) -> None:
    model = module(TEXT, {"w": np.ones((8, 8), np.float32)})
    assert not aotc.compile(model, "jetson-orin", tmp_path / "a.so", device="cuda").notes
    notes = aotc.compile(model, "jetson-nano", tmp_path / "b.so", device="cuda").notes
    assert any(note.startswith("nano: made by CUDA 11.8") for note in notes)


def test_boards_have_targets() -> None:
    for each in BOARDS:
        gpu = targets.get(each.target).gpu
        assert gpu is not None and each.sm in gpu.sm
    with pytest.raises(InvalidOption, match="orin-nano"):
        board("orin")


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_only_files_with_code_for_gpus_hold_the_runtimes_part_for_them(folder: Path) -> None:
    for device, there in (("cpu", False), ("cuda", True)):
        assert (b"libcuda.so" in (folder / f"jetson-orin-{device}.so").read_bytes()) is there
