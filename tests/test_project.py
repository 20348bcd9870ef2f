"""The project's own files: the package mapping, the type checker's view, the text that users read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")


def test_every_package_folder_is_listed() -> None:
    packages = set(PROJECT["tool"]["setuptools"]["packages"])
    folders = {"aotc": ROOT / "aotc", "aotc.cross": ROOT / "cross", "aotc.passes": ROOT / "passes", "aotc.targets": ROOT / "targets"}
    found = {
        ".".join([package, *path.parent.relative_to(folder).parts])
        for package, folder in folders.items()
        for path in folder.rglob("__init__.py")
    }
    assert found == packages


def test_mapped_packages_import_from_the_top_folders() -> None:
    import aotc.passes
    import aotc.targets

    assert Path(str(aotc.passes.__file__)).parent == ROOT / "passes"
    assert Path(str(aotc.targets.__file__)).parent == ROOT / "targets"


@pytest.mark.parametrize("folder", ["aotc/ir", "passes", "targets"])
def test_type_checker_sees_each_folder(folder: str, tmp_path: Path) -> None:
    """A wrong line in any of the three folders is found by the view that ``make types`` checks."""
    view = tmp_path / "view" / "aotc"
    view.mkdir(parents=True)
    inside = Path(folder).parts[-1]
    (view / "__init__.py").touch()
    (view / inside).mkdir()
    for path in (ROOT / folder).glob("*.py"):
        (view / inside / path.name).symlink_to(path)
    for name in ("errors.py", "version.py", "cache_dir.py", "ir", "ops", "passes", "targets", "lowering"):
        source = ROOT / name if name in ("passes", "targets") else ROOT / "aotc" / name
        if not (view / name).exists():
            (view / name).symlink_to(source)
    (view / inside / "wrong.py").write_text("x: int = 'text'\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, "--follow-imports=skip", "-m", f"aotc.{inside}.wrong"], cwd=view.parent, check=False, capture_output=True, text=True
    )
    assert "wrong.py:1: error" in done.stdout, done.stdout + done.stderr


def test_view_of_the_makefile_holds_all_three_folders() -> None:
    subprocess.run(["make", "--no-print-directory", "build/view"], cwd=ROOT, check=True, capture_output=True)
    view = ROOT / "build" / "view" / "aotc"
    for inside, source in (("ir", "aotc/ir"), ("passes", "passes"), ("targets", "targets")):
        assert (view / inside).resolve() == ROOT / source


def test_tvm_pair_can_tensorize(tmp_path: Path) -> None:
    """A wrong apache-tvm-ffi beside this apache-tvm crashes the process in Schedule.tensorize; see pyproject.toml."""
    script = """
import sys
sys.modules["torch"] = None  # TVM imports it for nothing that is needed here
from tvm import s_tir, te
from tvm.s_tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN
a = te.placeholder((4,), "uint8", "a")
b = te.placeholder((16, 4), "int8", "b")
k = te.reduce_axis((0, 4), "k")
c = te.compute((16,), lambda j: te.sum(a[k].astype("int32") * b[j, k].astype("int32"), k), "c")
schedule = s_tir.Schedule(te.create_prim_func([a, b, c]))
block = schedule.get_sblock("c")
schedule.decompose_reduction(block, schedule.get_loops(block)[0])
schedule.tensorize(schedule.get_loops(schedule.get_sblock("c_update"))[0], VNNI_DOT_16x4_INTRIN)
assert "dpbusd" in str(schedule.mod)
"""
    file = tmp_path / "tensorize.py"  # a file: TVM asks for the source of its callers
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_local_paths_or_registry_hosts_in_the_project() -> None:
    pattern = re.compile(r"/work/|/root/|\.\./shared|pypi\.org|pythonhosted|deb\.debian\.org|registry\.npmjs")
    wrong = []
    for name in TRACKED:
        path = ROOT / name
        if not name or path == Path(__file__) or not path.is_file() or path.suffix in (".png", ".npz", ".onnx"):
            continue
        wrong += [f"{name}: {line.strip()[:100]}" for line in path.read_text(errors="ignore").splitlines() if pattern.search(line)]
    assert not wrong, "\n".join(wrong)


def test_files_stay_readable() -> None:
    one_file_by_design = {"aotc/runtime/aotc_runtime.py", "aotc/runtime/csrc/aotc_loader.c"}
    sources = [ROOT / name for name in TRACKED if name.endswith((".py", ".c", ".h", ".hpp", ".cpp")) and name not in one_file_by_design]
    long = [str(path.relative_to(ROOT)) for path in sources if path.is_file() and len(path.read_text().splitlines()) > 450]
    assert not long, long
