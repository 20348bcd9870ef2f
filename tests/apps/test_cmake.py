"""The applications as a user builds them: in this tree, from an installed package, for this machine and for a board."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aotc.packaging.elf_check import inspect_elf
from cross import qemu

ROOT = Path(__file__).resolve().parents[2]
AOTC = Path(sys.executable).parent / "aotc"

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")


def run(command: Sequence[str | Path], **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


def configure(source: Path, build: Path, *options: str) -> None:
    run(["cmake", "-S", source, "-B", build, f"-DAOTC_EXECUTABLE={AOTC}", f"-DAOTC_MODEL_PYTHON={sys.executable}", *options])


@pytest.fixture(scope="module")
def host_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("needs a C and a C++ compiler")
    build = tmp_path_factory.mktemp("apps")
    configure(ROOT, build)
    run(["cmake", "--build", build])
    return build


def test_applications_of_this_machine(host_build: Path) -> None:
    output = run(["ctest", "--test-dir", host_build, "--output-on-failure"])
    assert "100% tests passed, 0 tests failed out of 6" in output


def test_installed_package(host_build: Path, tmp_path: Path) -> None:
    """A project of its own: find_package(aotc) and aotc_add_model(), which builds again when the model changes."""
    prefix = tmp_path / "prefix"
    run(["cmake", "--install", host_build, "--prefix", prefix])
    assert (prefix / "include" / "aotc.hpp").is_file() and (prefix / "share" / "aotc" / "aotc_runtime.py").is_file()
    made = host_build / "examples"
    model = tmp_path / "classifier.onnx"
    shutil.copy(made / "classifier.onnx", model)
    for app in ("c", "cpp"):
        build = tmp_path / app
        configure(ROOT / "examples" / app, build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DMODEL={model}")
        run(["cmake", "--build", build])
        output = run([build / f"classify_{app}", build / "model.so", made / "image.npy", made / "labels.txt"])
        assert output.startswith("1. ring 0.76")  # exp(3) / sum of exp(0.5, 1, 3, 0, -0.5, -1), see make_model.py
    before = (tmp_path / "c" / "model.so").stat().st_mtime_ns
    run(["cmake", "--build", tmp_path / "c"])
    assert (tmp_path / "c" / "model.so").stat().st_mtime_ns == before
    model.touch()
    run(["cmake", "--build", tmp_path / "c"])
    assert (tmp_path / "c" / "model.so").stat().st_mtime_ns > before


def test_mistakes_in_a_project_are_explained(tmp_path: Path) -> None:
    head = f'cmake_minimum_required(VERSION 3.10)\nproject(x LANGUAGES NONE)\ninclude("{ROOT}/cmake/aotcAddModel.cmake")\n'
    for call, message in (
        ("aotc_add_model(m TARGET jetson)", "MODEL must name the model's file"),
        ("aotc_add_model(m MODEL x.onnx WRONG)", "cannot understand WRONG"),
        ("aotc_add_model(m MODEL x.onnx)", "the program aotc was not found in PATH"),
    ):
        (tmp_path / "CMakeLists.txt").write_text(f"{head}set(ENV{{PATH}} /nowhere)\nset(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)\n{call}\n")
        command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and message in " ".join(done.stderr.split()), done.stderr


@pytest.mark.slow
def test_applications_of_a_board(tmp_path: Path) -> None:
    """Built by the ziglang wheel for the oldest board, run under emulation; zig builds its C++ library on first use (1 to 2 min)."""
    if packages := qemu.missing():
        pytest.skip(f"needs {' and '.join(packages)}")
    configure(ROOT, tmp_path, f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cross' / 'aarch64-linux-gnu.cmake'}")
    run(["cmake", "--build", tmp_path])
    assert "100% tests passed, 0 tests failed out of 5" in run(["ctest", "--test-dir", tmp_path, "--output-on-failure"])
    for program in ("aotc_run", "examples/c/classify_c", "examples/cpp/classify_cpp"):  # case 2
        report = inspect_elf(tmp_path / program)
        assert report.machine == "EM_AARCH64" and report.newest_glibc <= (2, 27)
        assert not [library for library in report.needed if "stdc++" in library or "cuda" in library]
