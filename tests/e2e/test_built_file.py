"""A built file loads on its board: exports, needed libraries, C library, instructions. (Cases 1, 2, 3, 8, 12.)"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import targets
from aotc.packaging.elf_check import inspect_elf
from aotc.packaging.reader import read_packaged
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.conftest import Build
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs

ALLOWED = {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}
OLD = {"libpthread.so.0", "libdl.so.2"}  # parts of libc.so.6 since glibc 2.34
JETSONS = tuple(name for name in targets.NAMES if name.startswith("jetson"))


@pytest.fixture(scope="module")
def transcendental_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file that needs much of libm, for every target."""
    folder = tmp_path_factory.mktemp("transcendental")
    files = {}
    for name in targets.NAMES:
        files[name] = folder / f"{name}.so"
        aotc.compile(small.transcendental(), target=name, output=files[name], device="cpu")
    return files


@pytest.mark.parametrize("name", targets.NAMES)
def test_file_needs_only_what_the_target_has(transcendental_files: dict[str, Path], name: str) -> None:
    elf = inspect_elf(transcendental_files[name])
    glibc = targets.get(name).glibc
    assert elf.exported == ("aotc_model",)
    assert set(elf.needed) <= ALLOWED | (OLD if glibc < (2, 34) else set())
    assert elf.glibc, "the file has no versioned symbols at all"
    for library, version in elf.glibc.items():
        assert version <= glibc, f"{library} {version}"
    assert not elf.foreign_versions


@pytest.mark.parametrize("name", targets.NAMES)
def test_runtime_is_small(transcendental_files: dict[str, Path], name: str) -> None:
    runtime = read_packaged(transcendental_files[name]).sizes.runtime
    assert 0 < runtime <= 64 * 1024


@pytest.mark.parametrize("release", ["5.1", "6.2", "7.2"])
def test_jetpack_chooses_the_c_library(tmp_path: Path, release: str) -> None:
    target = targets.get("jetson-orin", release)
    output = tmp_path / "model.so"
    aotc.compile(small.mlp(), target=target, output=output, device="cpu")
    assert inspect_elf(output).newest_glibc <= target.glibc
    assert read_packaged(output).manifest.target.jetpack == release


def disassembler() -> str:
    program = shutil.which("llvm-objdump")
    if program is None:
        pytest.skip("llvm-objdump is missing: apt-get install llvm")
    return program


def unknown_instructions(file: Path, processor: str) -> list[str]:
    """Lines of the disassembly that ``processor`` does not know."""
    command = [disassembler(), "-d", "--no-show-raw-insn", f"--mcpu={processor}", "--triple=aarch64-linux-gnu", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if re.match(r"\s+[0-9a-f]+:", line)]
    assert len(lines) > 1000, "the disassembly is empty"
    return [line for line in lines if "<unknown>" in line]


@pytest.mark.parametrize(("name", "processor"), [("jetson-nano", "cortex-a57"), ("jetson-tx2", "cortex-a57"), ("jetson-xavier", "carmel")])
def test_no_instruction_that_the_processor_lacks(transcendental_files: dict[str, Path], build: Build, name: str, processor: str) -> None:
    assert not unknown_instructions(transcendental_files[name], processor)
    assert not unknown_instructions(build("efficientnet-onnx", name), processor)


@pytest.mark.parametrize(
    ("instruction", "processor"),
    [("ldadd w0, w1, [x2]", "cortex-a57"), ("fmla v0.8h, v1.8h, v2.8h", "cortex-a57"), ("sdot v0.4s, v1.16b, v2.16b", "carmel")],
)
def test_disassembly_would_notice(tmp_path: Path, instruction: str, processor: str) -> None:
    """The check above sees an LSE atomic, half-precision arithmetic and a dot product where the processor lacks them."""
    source = tmp_path / "probe.s"
    source.write_text(f".text\n.global probe\nprobe:\n{instruction}\n" + "nop\n" * 1001 + "ret\n")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", "-mcpu=cortex_a78", "-c", str(source), "-o"]
    subprocess.run([*compiler, str(tmp_path / "probe.o")], check=True)
    assert unknown_instructions(tmp_path / "probe.o", processor)


def test_nano_file_runs_on_a_cortex_a57(build: Build, tmp_path: Path) -> None:
    source = small.convolutional()
    file = tmp_path / "nano.so"
    aotc.compile(source, target="jetson-nano", output=file, device="cpu")
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)
    answer = emulate(file, [x], tmp_path, cpu="cortex-a57")["y"]
    assert_agrees(answer, onnxruntime_outputs(source, {"x": x})["y"], 1e-4)


@pytest.mark.parametrize("name", JETSONS)
def test_every_jetson_file_computes_right(transcendental_files: dict[str, Path], tmp_path: Path, name: str) -> None:
    x = np.linspace(0.01, 0.99, 64, dtype=np.float32)
    answers = emulate(transcendental_files[name], [x], tmp_path)
    for output, reference in onnxruntime_outputs(small.transcendental(), {"x": x}).items():
        assert_agrees(answers[output], reference, 1e-4, output)


def test_a_build_loads_no_target_library(tmp_path: Path) -> None:
    """A build for Arm neither opens Arm libraries nor starts a program outside Python's own folders."""
    script = f"""
import sys
started, opened = [], []
def hook(event, args):
    if event == "subprocess.Popen": started.append(str(args[0]))
    if event == "ctypes.dlopen": opened.append(str(args[0]))
sys.addaudithook(hook)
from tests.e2e import small
import aotc
aotc.compile(small.mlp(hidden=24), target="jetson", output={str(tmp_path / "model.so")!r})
print("\\n".join(started + opened))
"""
    environment_root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=environment_root)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines, "nothing was started at all"
    outside = [
        line for line in lines if "aarch64" in line or "qemu" in line or not ("site-packages" in line or "python" in line or line == "None")
    ]
    assert not outside
