"""The C loader and the C++ wrapper, plain and under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aotc.packaging.header import CHECKSUM_OFFSET, checksum
from aotc.packaging.toolchain import ZigToolchain
from aotc.runtime import aotc_runtime
from cross import qemu
from tests.packaging.sample import BIAS, HOST, NANO, ORIN, WEIGHT, XAVIER, build_sample, expected, kernel_object, weights_blob
from tests.runtime.build import HERE, RUNTIME, compiler, run_tool
from tests.runtime.models import PADDED_WEIGHTS
from tests.runtime.models_control import states
from tests.runtime.sample_files import impossible_features, mutants, sample_bytes

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def program(folder: Path, name: str, flags: Sequence[str] = ()) -> Path:
    made = folder / name
    sources = [str(HERE / f"{name}.c"), str(RUNTIME / "aotc_loader.c")]
    run_tool(
        [*compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", *flags, f"-I{RUNTIME}", *sources, "-o", str(made), "-ldl"]
    )
    return made


def opened(tool: Path, paths: Sequence[Path]) -> list[str]:
    done = subprocess.run([str(tool)], input="\n".join(map(str, paths)) + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizers need gcc")
def test_hostile_files(tmp_path: Path) -> None:
    data = sample_bytes()
    (tmp_path / "model.so").write_bytes(data)
    weights = aotc_runtime.read_file(tmp_path / "model.so").weights
    paths = []
    for number, mutant in enumerate(mutants(data, weights, 400)):
        paths.append(tmp_path / f"{number}.so")
        paths[-1].write_bytes(mutant)
    answers = opened(program(tmp_path, "open_many", SANITIZERS), paths)
    assert len(answers) == len(paths)
    for path, answer in zip(paths, answers, strict=True):
        assert answer == "ok: " if path.read_bytes() == data else answer.startswith(("invalid file: ", "wrong version: ")), answer
        assert path.read_bytes() == data or str(path) in answer


def resealed(data: bytes, offset: int, content: bytes, folder: Path) -> bytes:
    """``data`` with the header's bytes at ``offset`` replaced and its checksum set right."""
    at = data.index(b"AOTCFILE\x01")
    changed = bytearray(data)
    changed[at + offset : at + offset + len(content)] = content
    (folder / "changed.so").write_bytes(changed)
    with (folder / "changed.so").open("r+b") as file:
        (folder / "whole.so").write_bytes(data)
        value = checksum(file.fileno(), at, aotc_runtime.read_file(folder / "whole.so").weights)
    changed[at + CHECKSUM_OFFSET : at + CHECKSUM_OFFSET + 4] = value.to_bytes(4, "little")
    return bytes(changed)


def test_messages(tmp_path: Path) -> None:
    """Cases 9 and 40: what was expected, what came, what to do."""
    data = sample_bytes()
    files = {
        "nano": sample_bytes(NANO),
        "future": sample_bytes(impossible_features()),
        "abi": resealed(data, 16, (2).to_bytes(4, "little"), tmp_path),
        "half": data[: len(data) // 2],
        "longer": data + b"\0",
        "empty": b"",
        "text": b"a text",
        "system": Path("/bin/true").resolve().read_bytes(),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.so").write_bytes(content)
    paths = [*(tmp_path / f"{name}.so" for name in files), tmp_path / "none.so", tmp_path]
    answers = dict(zip([*files, "none", "folder"], opened(program(tmp_path, "open_many"), paths), strict=True))
    assert answers["nano"].startswith("unsupported: ")
    assert "is built for aarch64 (target jetson-nano), this is x86-64: build it again with --target host" in answers["nano"]
    assert "target future, which has processor features that this machine lacks (" in answers["future"]
    assert answers["abi"].startswith("wrong version: ") and "ABI version 2, this application's loader knows version 1" in answers["abi"]
    assert "is cut short" in answers["half"] and "it should have" in answers["longer"]
    assert "it is empty" in answers["empty"] and "does not begin as an ELF file does" in answers["text"]
    assert "without the section .aotc.header" in answers["system"] or "not a 64-bit shared library" in answers["system"]
    assert answers["none"].startswith("system: ") and "No such file or directory; check the path" in answers["none"]
    assert answers["folder"].startswith("invalid file: ") and "is not a file" in answers["folder"]


@pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitized"])
def test_two_files_and_a_pool(tmp_path: Path, flags: Sequence[str]) -> None:
    """Case 10, in C: with a pool of one file that serves a session of the other."""
    if flags and shutil.which("gcc") is None:
        pytest.skip("the sanitizers need gcc")
    (tmp_path / "first.so").write_bytes(sample_bytes())
    build_sample(tmp_path / "second.so", weights=weights_blob(WEIGHT * 2, BIAS))
    tool = program(tmp_path, "loader_api", flags)
    done = subprocess.run([str(tool), str(tmp_path / "first.so"), str(tmp_path / "second.so")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.array(done.stdout.split(), np.float32).reshape(6, 2)
    image = np.array([[1] * 4, [-1] * 4], np.float32)
    np.testing.assert_allclose(found[:, 0], expected(image).reshape(-1), rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], expected(image, WEIGHT * 2).reshape(-1), rtol=1e-5)


def test_files_of_an_older_aotc(tmp_path: Path) -> None:
    run_tool([str(program(tmp_path, "older_table", SANITIZERS if shutil.which("gcc") else []))])


@pytest.mark.parametrize("standard", ["c++11", "c++17"])
def test_wrapper(tmp_path: Path, standard: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    (tmp_path / "model.so").write_bytes(sample_bytes())
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{RUNTIME}"]
    run_tool(["gcc", "-std=c99", *strict, "-c", str(RUNTIME / "aotc_loader.c"), "-o", str(tmp_path / "loader.o")])
    sources = [str(HERE / "wrapper.cpp"), str(tmp_path / "loader.o")]
    run_tool(["g++", f"-std={standard}", *strict, *SANITIZERS, *sources, "-o", str(tmp_path / "wrapper"), "-ldl"])
    kernels = kernel_object(HOST, tmp_path, (HERE / "kernels.c").read_text())
    build_sample(tmp_path / "states.so", the_plan=states(), weights=PADDED_WEIGHTS, kernel=kernels)
    run_tool([str(tmp_path / "wrapper"), str(tmp_path / "model.so"), str(tmp_path / "states.so")])


# ---- On the boards' processor ----

needs_emulation = pytest.mark.skipif(bool(qemu.missing()), reason=f"needs {' and '.join(qemu.missing())}")


def emulated(arguments: Sequence[str], cpu: str = "max") -> subprocess.CompletedProcess[str]:
    return subprocess.run(qemu.command(arguments, cpu), capture_output=True, text=True, check=False)


@needs_emulation
@pytest.mark.parametrize("target,cpu", [(NANO, "cortex-a57"), (XAVIER, "max"), (ORIN, "max")], ids=["nano", "xavier", "orin"])
def test_the_boards_file_under_emulation(tmp_path: Path, target: object, cpu: str) -> None:
    (tmp_path / "model.so").write_bytes(sample_bytes(target))  # type: ignore[arg-type]
    image = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "ids.npy", np.array([5, -6]))
    inputs = [f"--input=image={tmp_path / 'image.npy'}", f"--input=ids={tmp_path / 'ids.npy'}"]
    words = [word for item in inputs for word in item.split("=", 1)]
    done = emulated([str(tmp_path / "model.so"), *words, "--output-dir", str(tmp_path), "--threads", "2", "--runs", "3", "--profile"], cpu)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "load_ms",
        "first_run_ms",
        "mean_run_ms",
        "best_run_ms",
        "step",
        "step",
    ]
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected(image), rtol=1e-5)
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), [5, -6])


@needs_emulation
def test_a_board_that_lacks_instructions(tmp_path: Path) -> None:
    (tmp_path / "orin.so").write_bytes(sample_bytes(ORIN))
    (tmp_path / "host.so").write_bytes(sample_bytes(HOST))
    done = emulated([str(tmp_path / "orin.so")], "cortex-a57")
    assert done.returncode == 1
    assert "target jetson-orin, which has processor features that this machine lacks (fullfp16, lse, dotprod)" in done.stderr
    done = emulated([str(tmp_path / "host.so")])
    assert "is built for x86-64 (target host), this is aarch64: build it again with --target jetson or aarch64" in done.stderr


# ---- The runner ----


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runner") / "aotc_run"
    ZigToolchain(HOST.triple, HOST.glibc).build_program(qemu.SOURCES, made, ["-O2", f"-I{RUNTIME}", f"-I{qemu.RUNNER}"])
    return made


def test_runner_with_random_inputs(runner: Path, tmp_path: Path) -> None:
    (tmp_path / "model.so").write_bytes(sample_bytes())
    outputs = []
    for seed in ("1", "1", "2"):
        command = [str(runner), str(tmp_path / "model.so"), "--shape", "image=6x4", "--random-seed", seed, "--output-dir", str(tmp_path)]
        run_tool(command)
        outputs.append(np.load(tmp_path / "scores.npy"))
    assert outputs[0].shape == (6, 3)
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    "words,status,message",
    [
        ([], 2, "no model is named"),
        (["MODEL", "--input", "img=x.npy"], 2, "the model has no such input: img=x.npy"),
        (["MODEL", "--input", "image=none.npy"], 1, "none.npy: No such file"),
        (["MODEL", "--shape", "image=3"], 2, "too few dims are given for image"),
        (["MODEL", "--shape", "image=9x4"], 1, "1 to 8"),
        (["MODEL", "--runs", "0"], 2, "must be at least 1"),
        (["MODEL", "--frobnicate", "1"], 2, "cannot understand --frobnicate"),
        (["MODEL", "--threads"], 2, "a value is missing after --threads"),
    ],
)
def test_runner_refusals(runner: Path, tmp_path: Path, words: list[str], status: int, message: str) -> None:
    (tmp_path / "model.so").write_bytes(sample_bytes())
    arguments = [str(tmp_path / "model.so") if word == "MODEL" else word for word in words]
    done = subprocess.run([str(runner), *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == status and message in done.stderr, done.stderr


NPY = """
#include "aotc_npy.h"
#include <stdio.h>
int main(int count, char **paths) {
    DLTensor tensor;
    char message[256];
    (void)count;
    if (npy_read(paths[1], &tensor, message) || npy_write(paths[2], &tensor, message)) { puts(message); return 1; }
    npy_free(&tensor);
    return 0;
}
"""


def test_npy_files(tmp_path: Path) -> None:
    (tmp_path / "npy.c").write_text(NPY)
    sources = [str(tmp_path / "npy.c"), str(qemu.RUNNER / "aotc_npy.c")]
    flags = SANITIZERS if shutil.which("gcc") else []
    run_tool([*compiler(), "-std=c11", *flags, f"-I{RUNTIME}", f"-I{qemu.RUNNER}", *sources, "-o", str(tmp_path / "npy")])

    def there_and_back(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(tmp_path / "npy"), str(path), str(tmp_path / "out.npy")], capture_output=True, text=True, check=False)

    for dtype in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "bool"]:
        for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 4, 5)):
            array = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
            np.save(tmp_path / "in.npy", array)
            assert there_and_back(tmp_path / "in.npy").returncode == 0
            found = np.load(tmp_path / "out.npy")
            assert (found.dtype, found.shape) == (array.dtype, array.shape) and np.array_equal(found, array)
    for array, message in (
        (np.asfortranarray(np.ones((2, 3))), "expected C order"),
        (np.ones(3, ">f4"), "little-endian"),
        (np.ones(2, "c8"), "expected"),
    ):
        np.save(tmp_path / "in.npy", array)
        assert message in there_and_back(tmp_path / "in.npy").stdout
    np.save(tmp_path / "in.npy", np.ones((40, 40)))
    whole = (tmp_path / "in.npy").read_bytes()
    for number in range(0, len(whole) - 1, 509):
        (tmp_path / "cut.npy").write_bytes(whole[:number])
        assert there_and_back(tmp_path / "cut.npy").returncode == 1
    for mutant in mutants(whole[:256], (256, 0), 60):
        (tmp_path / "mutant.npy").write_bytes(mutant + whole[256:])
        assert there_and_back(tmp_path / "mutant.npy").returncode in (0, 1)
