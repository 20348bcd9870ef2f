"""The linked file: what a board's loader sees of it, its bytes, and what is left when linking fails."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import aotc
from aotc.errors import BuildError, RuntimeFailure
from aotc.packaging import toolchain as toolchain_module
from aotc.packaging.elf_check import check_output, inspect_elf
from aotc.packaging.header import CHECKSUM_OFFSET, SIZE
from aotc.packaging.link import CSRC, Linked, Parts, link
from aotc.packaging.manifest import TargetInfo, make_manifest
from aotc.packaging.planfile import write_plan
from aotc.packaging.reader import read_packaged
from aotc.packaging.stubs import stub_source
from aotc.packaging.weights_file import weights_path, write_weights
from tests.packaging.sample import BIAS, BOARDS, HOST, KERNEL, NANO, ORIN, WEIGHT, build_sample, expected, kernel_object, plan, weights_blob

ROOT = Path(__file__).resolve().parents[2]
Sample = Callable[[TargetInfo], Linked]
IMAGE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("target", [*BOARDS, HOST], ids=lambda target: target.name)
def test_loads_on_the_board(sample: Sample, target: TargetInfo) -> None:
    """Cases 1 to 3: one export, no library that a board may lack, nothing newer than its glibc."""
    linked = sample(target)
    report = inspect_elf(linked.path)
    loader = "ld-linux-aarch64.so.1" if target.triple.startswith("aarch64") else "ld-linux-x86-64.so.2"
    before_2_34 = {"libpthread.so.0", "libdl.so.2"} if target.glibc < (2, 34) else set()
    assert report.exported == ("aotc_model",)
    assert set(report.needed) <= {"libc.so.6", "libm.so.6", loader} | before_2_34
    assert report.glibc and all(version <= target.glibc for version in report.glibc.values())
    assert report.soname is None and report.search_path is None and not report.writable_and_executable
    assert linked.header.runtime_text <= 64 * 1024


@pytest.mark.parametrize("target", [HOST, *BOARDS], ids=lambda target: target.name)
def test_libm_is_no_newer_than_the_board(tmp_path: Path, target: TargetInfo) -> None:
    """Case 1: exp, log and pow were renewed in glibc 2.27 and 2.29, fmod in 2.38."""
    calls = "expf(sum) + (float)(exp(sum) * 0 + pow(sum, 2) * 0 + log(sum * sum + 1) * 0 + fmod(sum, 3) * 0) + (powf(sum, 2) + logf(2) + fmodf(sum, 3)) * 0"
    kernel = kernel_object(target, tmp_path, KERNEL.replace("expf(sum)", calls))
    linked = build_sample(tmp_path / "model.so", target, kernel=kernel)
    assert "libm.so.6" in linked.elf.needed
    assert linked.elf.glibc["libm.so.6"] <= target.glibc


@pytest.mark.parametrize("target", BOARDS, ids=lambda target: target.name)
def test_data_sections(sample: Sample, target: TargetInfo) -> None:
    with sample(target).path.open("rb") as file:
        elf = ELFFile(file)
        weights = elf.get_section_by_name(".aotc.weights")
        assert weights["sh_offset"] % 65536 == 0 and weights["sh_addr"] % 65536 == 0
        assert weights.data() == weights_blob()
        for name in (".aotc.weights", ".aotc.plan", ".aotc.manifest", ".aotc.header"):
            assert elf.get_section_by_name(name)["sh_flags"] == 2 | elf.get_section_by_name(name)["sh_flags"] & 0x200000  # read-only
        kinds = [segment["p_type"] for segment in elf.iter_segments()]
        assert "PT_GNU_RELRO" in kinds
        assert elf.get_section_by_name(".symtab") is None
        names = [section.name for section in elf.iter_sections()]
        assert not [name for name in names if name.startswith((".debug", ".note.gnu.build-id"))]


def test_no_paths_of_the_build(sample: Sample) -> None:
    content = sample(NANO).path.read_bytes()
    for path in (str(ROOT), str(Path.home()), str(sample(NANO).path.parent)):
        assert path.encode() not in content


BUILD = """
import sys
from pathlib import Path
from aotc.packaging import toolchain
from tests.packaging.sample import {target}, build_sample
toolchain.os.cpu_count = lambda: {workers}
build_sample(Path(sys.argv[1]), {target})
"""


def built_elsewhere(output: Path, cache: Path, target: str, workers: int) -> bytes:
    """Built in another process, with another cache, hash seed, working directory and number of workers."""
    output.parent.mkdir(parents=True)
    environment = {"AOTC_CACHE_DIR": str(cache), "PYTHONHASHSEED": str(workers), "PYTHONPATH": str(ROOT)}
    script = BUILD.format(target=target, workers=workers)
    subprocess.run([sys.executable, "-c", script, str(output)], check=True, env=environment, cwd=output.parent)
    return output.read_bytes()


def test_same_bytes(tmp_path: Path) -> None:
    """Everything made anew twice, the C library's stubs and the runtime's objects included. PATH and HOME are missing: case 11."""
    first = built_elsewhere(tmp_path / "a" / "model.so", tmp_path / "cache-a", "NANO", 1)
    second = built_elsewhere(tmp_path / "b" / "deeper" / "other.so", tmp_path / "cache-b", "NANO", 5)
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_new_data_under_the_same_names(tmp_path: Path) -> None:
    """A tool's cache must not serve the data of an earlier build."""
    output = tmp_path / "model.so"
    for scale in (1, 2, 3):
        build_sample(
            output, weights=weights_blob(WEIGHT * scale, BIAS * scale), metadata={"scale": str(scale)}, the_plan=plan(f"layer{scale}")
        )
        model = aotc.load(output, num_threads=1)
        found = model.run({"image": IMAGE, "ids": np.arange(2)})["scores"]
        np.testing.assert_allclose(found, expected(IMAGE, WEIGHT * scale, BIAS * scale), rtol=1e-5)
        assert model.metadata == {"scale": str(scale)}
        assert model.session().steps()[0].name == f"layer{scale}"


def test_new_code_under_the_same_names(tmp_path: Path) -> None:
    for factor in ("1.0f", "2.0f"):
        kernel = kernel_object(HOST, tmp_path, KERNEL.replace("expf(sum)", f"{factor} * expf(sum)"))
        build_sample(tmp_path / "model.so", kernel=kernel)
        found = aotc.load(tmp_path / "model.so").run({"image": IMAGE, "ids": np.arange(2)})["scores"]
        np.testing.assert_allclose(found, float(factor[:-1]) * expected(IMAGE), rtol=1e-5)


def test_weights_are_streamed_and_links_are_quick(tmp_path: Path) -> None:
    """100 MB of weights never stand in Python's memory. A link is 0.3 s here; the bound allows for a busy machine."""
    blob = weights_blob() + bytes(100 << 20)
    build_sample(tmp_path / "model.so", ORIN, weights=blob, work=tmp_path)
    plan_bytes = write_plan(plan())
    kernel = kernel_object(ORIN, tmp_path)
    del blob
    tracemalloc.start()
    path, zeros = tmp_path / "sample-weights.bin", np.memmap(tmp_path / "zeros", np.uint8, "w+", 0, 100 << 20)
    manifest = make_manifest(plan(), plan_bytes, write_weights(path, [(0, zeros)]), ORIN, aotc_version="0")
    begin = time.process_time()
    link(Parts([kernel], stub_source(plan()), plan_bytes, manifest, path), tmp_path / "model.so")
    assert time.process_time() - begin < 1.0
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_symbols_that_a_kernel_may_not_need(tmp_path: Path) -> None:
    source = KERNEL.replace("expf(sum)", "TVMBackendAllocWorkspace(sum)").replace(
        "int32_t affine", "float TVMBackendAllocWorkspace(float);\nint32_t affine", 1
    )
    with pytest.raises(BuildError, match=r"kernels need symbols that a built file must not: TVMBackendAllocWorkspace"):
        build_sample(tmp_path / "model.so", kernel=kernel_object(HOST, tmp_path, source))
    assert not (tmp_path / "model.so").exists()


@pytest.mark.slow
def test_helper_functions_of_the_compiler(tmp_path: Path) -> None:
    """fp16 without instructions for it: compiler-rt is linked in, and still only one symbol leaves the file."""
    target = TargetInfo("x86-64", "x86_64-linux-gnu", "x86-64", (), (2, 27))
    source = KERNEL.replace("= expf(sum)", "= (float)(_Float16)expf(sum)")
    linked = build_sample(tmp_path / "model.so", target, kernel=kernel_object(target, tmp_path, source))
    assert linked.elf.exported == ("aotc_model",)
    if HOST.triple == target.triple:
        found = aotc.load(linked.path).run({"image": IMAGE, "ids": np.arange(2)})["scores"]
        np.testing.assert_allclose(found, expected(IMAGE).astype(np.float16).astype(np.float32), rtol=1e-3)


def test_all_faults_of_a_file_are_named(tmp_path: Path) -> None:
    source = "#include <math.h>\nint aotc_model(double x) { return (int)fmod(x, 3); }\nint other(void) { return 1; }\n"
    (tmp_path / "bad.c").write_text(source)
    tools = toolchain_module.ZigToolchain("x86_64-linux-gnu", (2, 39))
    tools.compile(tmp_path / "bad.c", tmp_path / "bad.o", ["-fPIC", "-O2"])
    stubs = map(str, tools.stubs().glob("*.so*"))
    command = [toolchain_module.zig(), "ld.lld", "--shared", "-soname", "bad.so", "-z", "execstack", str(tmp_path / "bad.o"), *stubs]
    subprocess.run([*command, "-o", str(tmp_path / "bad.so")], check=True)
    with pytest.raises(BuildError) as caught:
        check_output(tmp_path / "bad.so", (2, 27))
    for fault in (
        "exports aotc_model, other",
        "GLIBC_2.38 of libm.so.6; the target has 2.27",
        "soname (bad.so)",
        "writable and executable",
    ):
        assert fault in str(caught.value)


# ---- When it fails ----


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", Path("/proc")):
        with pytest.raises(BuildError, match=rf"cannot write to the folder {re.escape(str(folder))}: .*; choose another output"):
            build_sample(folder / "model.so", work=tmp_path)


def test_an_interrupted_link_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_sample(tmp_path / "model.so")
    before, names = (tmp_path / "model.so").read_bytes(), left_over(tmp_path)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aotc.packaging.link.check_output", fails)
    with pytest.raises(KeyboardInterrupt):
        build_sample(tmp_path / "model.so", metadata={"new": "1"})
    assert (tmp_path / "model.so").read_bytes() == before and left_over(tmp_path) == names


def test_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(small)], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        with pytest.raises(BuildError, match=r"(No space left|no space is left)"):
            build_sample(small / "model.so", weights=bytes(1 << 20), work=tmp_path)
        assert left_over(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


READ_ONLY = """
set -e
mount -t tmpfs none "$1"
mount -o remount,bind,ro /
cd "$1"
if touch /tmp/aotc-should-not-be-writable 2>/dev/null; then exit 77; fi
exec env -i PYTHONPATH="$2" "$3" -c '
from pathlib import Path
from aotc.cache_dir import cache_beside
from tests.packaging.sample import HOST, build_sample
with cache_beside(Path("model.so")):
    linked = build_sample(Path.cwd() / "model.so", HOST)
print(sorted(path.name for path in Path.cwd().iterdir()))
'
"""


def test_read_only_system(tmp_path: Path) -> None:
    """Case 11: no PATH, no HOME, and nothing but the output's folder can be written."""
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(tmp_path), str(ROOT), sys.executable]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 77 or "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs the right to make a read-only view of the file system")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['kernel.c', 'model.so', 'sample-weights.bin']"


def test_a_gcc_of_the_system(tmp_path: Path) -> None:
    """It links, and the check says so when the system's C library is newer than the board's."""
    if shutil.which("gcc") is None:
        pytest.skip("needs a gcc of the system")
    version = tuple(int(part) for part in (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1].split("."))
    here = TargetInfo("host", HOST.triple, "generic", (), (version[0], version[1]))
    linked = build_sample(tmp_path / "model.so", here, compiler="gcc")
    assert linked.elf.exported == ("aotc_model",)
    found = aotc.load(linked.path).run({"image": IMAGE, "ids": np.arange(2)})["scores"]
    np.testing.assert_allclose(found, expected(IMAGE), rtol=1e-5)
    if version >= (2, 34):
        with pytest.raises(BuildError, match=r"it needs GLIBC_2\.34 of libc\.so\.6; the target has 2\.27"):
            build_sample(tmp_path / "older.so", HOST, compiler="gcc")


def test_the_headers_struct_is_512_bytes() -> None:
    """aotc_loader.c and header.py describe the same bytes."""
    assert (SIZE, CHECKSUM_OFFSET) == (512, 24)
    assert "char target[48];\n    char features[384];\n} file_header;" in (CSRC / "aotc_loader.c").read_text()


@pytest.mark.parametrize("compiler", [None, "gcc"])
def test_weights_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None) -> None:
    """Weights above the limit get a file of their own, which loaders want whole, of this build, and at its place."""
    if compiler is not None and shutil.which(compiler) is None:
        pytest.skip("needs a gcc of the system")
    target = HOST if compiler is None else replace(HOST, glibc=(99, 0))
    model, beside = tmp_path / "model.so", tmp_path / "model.so.weights"
    feeds = {"image": IMAGE, "ids": np.arange(2)}
    with monkeypatch.context() as patched:
        patched.setattr("aotc.packaging.manifest.WEIGHTS_INSIDE", 75)
        linked = build_sample(model, target, compiler=compiler)
        first = beside.read_bytes()
        build_sample(tmp_path / "other.so", target, compiler=compiler, weights=bytes(76))
    assert linked.weights_beside and weights_path(model) == beside and len(first) == 64 + 76
    packaged = read_packaged(model)
    packaged.verify()
    assert packaged.sizes.weights == 0 and packaged.sizes.weights_beside == len(first)
    np.testing.assert_allclose(aotc.load(model).run(feeds)["scores"], expected(IMAGE), rtol=1e-5)
    for change, message in (
        (first[:-1], "140"),
        ((tmp_path / "other.so.weights").read_bytes(), "another build"),
        (None, "copy it beside"),
    ):
        beside.unlink()
        if change is not None:
            beside.write_bytes(change)
        with pytest.raises(RuntimeFailure, match=message):
            packaged.verify()
        with pytest.raises(RuntimeFailure, match=message):
            aotc.load(model)
    beside.write_bytes(first[:-1] + b"\1")
    with pytest.raises(RuntimeFailure, match="weights changed"):
        packaged.verify()
    build_sample(model)
    assert not beside.exists(), "weights of the file that was here before"
    np.testing.assert_allclose(aotc.load(model).run(feeds)["scores"], expected(IMAGE), rtol=1e-5)


def huge_pages(path: Path) -> int:
    """Bytes of a file that this system maps with huge pages when all of it is read, by a process of its own."""
    program = "import mmap, re, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); sum(m[::4096])\n"
    program += "print(1024 * int(re.search(r'FilePmdMapped: *(\\d+)', open('/proc/self/smaps_rollup').read())[1]))"
    return int(subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True).stdout)


def test_weights_are_mapped_with_huge_pages(tmp_path: Path) -> None:
    """Where a file that was written in one piece is."""
    size = 8 << 20
    (tmp_path / "whole").write_bytes(b"1" * size)
    if huge_pages(tmp_path / "whole") < size // 2:
        pytest.skip("files are not mapped with huge pages here")
    linked = build_sample(tmp_path / "model.so", weights=weights_blob() + b"1" * size)
    assert huge_pages(linked.path) >= size // 2
