"""Equal input gives equal bytes; a build needs nothing of its surroundings. (Case 11.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aotc
from tests.e2e import small
from tests.zoo.cache import empty_build_cache

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import aotc
from tests.e2e import small
aotc.compile(small.convolutional(), target=sys.argv[3], output=sys.argv[2], jobs=int(sys.argv[4]), metadata={"b": "2", "a": "1"})
print("tvm" in sys.modules)
"""


def build_elsewhere(output: Path, target: str, jobs: int, environment: dict[str, str], folder: Path = ROOT) -> str:
    command = [sys.executable, "-c", SCRIPT, str(ROOT), str(output), target, str(jobs)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=folder).stdout.strip()


@pytest.mark.parametrize("target", ["host", "jetson"])
def test_two_builds_give_the_same_bytes(tmp_path: Path, target: str) -> None:
    """Other worker counts, hash seeds, folders, names and caches, all empty at first."""
    files = []
    for number, jobs in enumerate((1, 2, 3)):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        stubs = empty_build_cache(folder)
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "AOTC_CACHE_DIR": str(stubs), "TZ": f"UTC{number:+d}"}
        build_elsewhere(folder / f"model{number}.so", target, jobs, environment, folder)
        files.append((folder / f"model{number}.so").read_bytes())
    assert files[0] == files[1] == files[2]
    assert str(tmp_path).encode() not in files[0]


def test_a_rebuild_needs_no_tvm(tmp_path: Path) -> None:
    environment = dict(os.environ)
    build_elsewhere(tmp_path / "first.so", "host", 2, environment)
    assert build_elsewhere(tmp_path / "again.so", "host", 2, environment) == "False"
    assert (tmp_path / "first.so").read_bytes() == (tmp_path / "again.so").read_bytes()


def test_build_without_path_and_home(tmp_path: Path) -> None:
    build_elsewhere(tmp_path / "bare.so", "jetson", 2, {"PATH": "", "TMPDIR": str(tmp_path)})
    build_elsewhere(tmp_path / "usual.so", "jetson", 2, dict(os.environ))
    assert (tmp_path / "bare.so").read_bytes() == (tmp_path / "usual.so").read_bytes()


@pytest.mark.skipif(os.getuid() != 0, reason="a read-only mount needs root")
def test_build_on_a_read_only_file_system(tmp_path: Path) -> None:
    """All of the file system is mounted read-only, the output's folder excepted."""
    (tmp_path / "out").mkdir()
    inner = " ".join(f"'{part}'" for part in (sys.executable, "-c", SCRIPT, ROOT, tmp_path / "out" / "model.so", "host", 2))
    mounts = f"mount --bind {tmp_path}/out {tmp_path}/out && mount -o remount,ro,bind / && for m in /tmp /root /home /var /work; do \
mountpoint -q $m && mount -o remount,ro,bind $m; done; "
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f"{mounts} touch {tmp_path}/probe 2>/dev/null && exit 77; env -u HOME {inner}",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this machine lets nobody mount: the read-only case cannot be set up")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.so").exists()


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "model.so"
    with pytest.raises(aotc.AotcError):
        aotc.compile(small.mlp(), target="jetson", output=output, precision="fp7")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing like a model")
    with pytest.raises(aotc.AotcError):
        aotc.compile(broken, output=output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.onnx"]
