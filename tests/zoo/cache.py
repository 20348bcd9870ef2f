"""Files derived from installed packages, made once and shared by all test workers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "zoo"


def package_folder(package: str) -> Path:
    """Where ``package`` is installed, without importing it. Raises FileNotFoundError with what to do."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {package} is not installed; run `make setup`, which installs tests/models.txt")
    return Path(next(iter(spec.submodule_search_locations)))


def derived(name: str, maker: Callable[[Path], None], *sources: str) -> Path:
    """The file build/zoo/<digest>/<name>, made by ``maker(path)`` unless it exists.

    The digest covers the text of this package's modules named by ``sources``, so that an edit makes the file anew.
    Workers may race: each writes its own temporary folder and renames the file, whose content is the same.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update((Path(__file__).parent / f"{source}.py").read_bytes())
    target = FOLDER / digest.hexdigest()[:12] / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / name
        maker(made)
        os.replace(made, target)
    return target


def empty_build_cache(folder: Path) -> Path:
    """A new folder for AOTC_CACHE_DIR, empty but for the linker's C library stubs: they take long to make and depend on no model."""
    from aotc.cache_dir import cache_dir

    cache = folder / "cache"
    cache.mkdir(parents=True)
    for part in ("sysroots", "zig"):
        (cache / part).symlink_to(cache_dir(part))
    return cache
