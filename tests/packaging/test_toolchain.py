"""The compilers and their cache."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from aotc.errors import BuildError, InvalidOption
from aotc.packaging.toolchain import GccToolchain, ZigToolchain, compile_all, toolchain, zig

HOST = f"{platform.machine()}-linux-gnu"


class Counting:
    """A toolchain that counts what it compiles."""

    def __init__(self, identity: str = "one") -> None:
        self.inner, self.triple, self.identity, self.compiled = ZigToolchain(HOST, (2, 27)), HOST, identity, 0

    def compile(self, source: Path, output: Path, flags: list[str]) -> None:
        self.compiled += 1
        output.write_bytes(source.read_bytes())


def test_zig_is_the_wheels_own_and_never_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoy = tmp_path / "zig"
    decoy.write_text("#!/bin/sh\nexit 1\n")
    decoy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert zig().endswith("ziglang/zig") and Path(zig()).is_absolute()


def test_objects_are_kept_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path / "cache"))
    source, header = tmp_path / "a.c", tmp_path / "a.h"
    source.write_text("one")
    header.write_text("one")
    tools = Counting()
    first = compile_all(tools, [source], [header])  # type: ignore[arg-type]
    assert compile_all(tools, [source], [header]) == first and tools.compiled == 1  # type: ignore[arg-type]
    header.write_text("two")
    assert compile_all(tools, [source], [header]) != first and tools.compiled == 2  # type: ignore[arg-type]
    source.write_text("two")
    assert compile_all(tools, [source], [header])[0].read_text() == "two"  # type: ignore[arg-type]
    other = Counting("another version")
    compile_all(other, [source], [header])  # type: ignore[arg-type]
    assert (tools.compiled, other.compiled) == (3, 1)


def test_a_faulty_source_shows_the_compilers_words(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f(void) { return undeclared_thing; }\n")
    with pytest.raises(BuildError, match=r"compiling bad.c failed.*\n(.*\n)*.*undeclared_thing"):
        compile_all(toolchain(HOST, (2, 27)), [tmp_path / "bad.c"], [])


def test_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AOTC_CC", raising=False)
    assert isinstance(toolchain(HOST, (2, 27)), ZigToolchain)
    with pytest.raises(InvalidOption, match=r"riscv64.*is not one of"):
        toolchain("riscv64-linux-gnu", (2, 27))
    with pytest.raises(InvalidOption, match=r"'no-such-gcc' was not found; name one that exists, or unset AOTC_CC"):
        toolchain(HOST, (2, 27), "no-such-gcc")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a gcc of the system")
def test_a_gcc_for_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "aarch64-linux-gnu" if HOST.startswith("x86") else "x86_64-linux-gnu"
    monkeypatch.setenv("AOTC_CC", "gcc")
    assert isinstance(toolchain(HOST, (2, 27)), GccToolchain)
    with pytest.raises(InvalidOption, match=rf"makes code for .*expected {other}"):
        toolchain(other, (2, 27))
