"""Reading built files back, whole ones and others, for targets of any processor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aotc.errors import RuntimeFailure
from aotc.packaging.link import Linked
from aotc.packaging.manifest import TargetInfo
from aotc.packaging.planfile import read_plan, write_plan
from aotc.packaging.reader import read_packaged
from tests.packaging.sample import BOARDS, HOST, NANO, plan

Sample = Callable[[TargetInfo], Linked]


@pytest.mark.parametrize("target", [HOST, *BOARDS], ids=lambda target: target.name)
def test_what_was_built(sample: Sample, target: TargetInfo) -> None:
    packaged = read_packaged(sample(target).path)
    assert packaged.manifest.target == target
    assert packaged.plan == write_plan(plan())
    assert read_plan(packaged.plan).entry_points[0].name == "main"
    assert packaged.manifest.metadata == {"labels": "a,b,ä"}
    assert packaged.info.features == target.features and packaged.info.glibc == target.glibc
    packaged.verify()
    sizes = packaged.sizes
    parts = (sizes.kernels, sizes.runtime, sizes.weights, sizes.plan, sizes.manifest, sizes.other)
    assert sum(parts) == sizes.file == packaged.path.stat().st_size and min(parts) > 0 and sizes.cubins == 0
    assert (sizes.weights, sizes.plan) == (76, len(packaged.plan))


def test_changed_weights_are_found(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    shutil.copy(sample(NANO).path, path)
    offset, size = read_packaged(path).info.weights
    with path.open("r+b") as file:
        file.seek(offset + size - 1)
        file.write(b"\x55")
    with pytest.raises(RuntimeFailure, match=r"the weights changed since the file was built; copy or build it again"):
        read_packaged(path).verify()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def stripped_of_sections(data: bytes) -> bytes:
    return data[:40] + bytes(8) + data[48:60] + bytes(4) + data[64:]


@pytest.mark.parametrize(
    "damage,message",
    [
        (lambda data: b"", "it is empty"),
        (lambda data: b"PK\x03\x04 a zip", "does not begin as an ELF file does"),
        (lambda data: data[:30], "cut short after 30 bytes"),
        (cut, "cut short: at least"),
        (lambda data: data + b"\0", "it should have .* bytes and has"),
        (lambda data: data[:4] + b"\x01" + data[5:], "not a 64-bit little-endian one"),
        (lambda data: data[:16] + b"\x02" + data[17:], "not a shared library"),
        (stripped_of_sections, "sections lie outside the file"),
        (lambda data: data.replace(b"AOTCFILE", b"AOTCFILM"), "its header is not one of aotc's"),
        (lambda data: data.replace(b"AOTCFILE\x01", b"AOTCFILE\x02"), "header version 2, this loader reads 1"),
        (lambda data: data.replace(b"classifier/fc", b"classifier/fd"), "its checksum is wrong"),
    ],
    ids=["empty", "zip", "start", "half", "longer", "32-bit", "executable", "no-sections", "magic", "version", "flipped"],
)
def test_damaged_files(sample: Sample, tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(damage(sample(NANO).path.read_bytes()))
    with pytest.raises(RuntimeFailure, match=message) as caught:
        read_packaged(path)
    assert str(path) in str(caught.value)


def test_files_of_others(tmp_path: Path) -> None:
    for path in (Path("/bin/true").resolve(), tmp_path / "none.so", tmp_path):
        with pytest.raises(RuntimeFailure, match=r"is not a whole model built by aotc|cannot be read"):
            read_packaged(path)
