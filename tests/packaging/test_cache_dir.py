"""Which folder becomes the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aotc import cache_dir as module
from aotc.cache_dir import cache_beside, cache_dir
from aotc.errors import BuildError, InvalidOption


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AOTC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)


def test_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_dir() == tmp_path / "temporary" / f"aotc-cache-{os.getuid()}"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "aotc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir("zig") == tmp_path / "xdg" / "aotc" / "zig"
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "aotc"


def test_the_folder_that_was_asked_for_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InvalidOption, match=r"AOTC_CACHE_DIR is .*file.*set it to one that is"):
        cache_dir()


def test_none_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(module.tempfile, "gettempdir", no_folder)
    with pytest.raises(BuildError, match=r"no cache folder can be written.*set AOTC_CACHE_DIR"):
        cache_dir()
    with cache_beside(tmp_path / "model.so"):
        assert cache_dir("zig").parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert "AOTC_CACHE_DIR" not in os.environ
    with pytest.raises(BuildError, match=r"cannot write to the folder of"), cache_beside(tmp_path / "none" / "model.so"):
        pass
