"""Where aotc keeps what it can make again: compiled runtime objects, the linker's C library stubs, kernels.

The first of these that can be written is used: ``AOTC_CACHE_DIR``, ``XDG_CACHE_HOME/aotc``, ``HOME/.cache/aotc``, the system's
folder for temporary files. Everything in it is named by its content, so several builds may share it at the same time and it
may be deleted whenever none runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aotc.errors import BuildError, InvalidOption

VARIABLE = "AOTC_CACHE_DIR"


def cache_dir(*parts: str) -> Path:
    """The cache folder, or the folder ``parts`` in it; made if missing.

    Raises InvalidOption if ``AOTC_CACHE_DIR`` is set and cannot be written (it was asked for, so it is not passed over),
    BuildError if no folder can be written.
    """
    asked = os.environ.get(VARIABLE)
    if asked:
        root = Path(asked).absolute()
        if not _usable(root):
            raise InvalidOption(f"{VARIABLE} is {asked!r}, which is not a folder that can be written; set it to one that is, or unset it")
    else:
        found = next((path for path in _candidates() if _usable(path)), None)
        if found is None:
            raise BuildError(f"no cache folder can be written (tried XDG_CACHE_HOME, HOME/.cache, temporary files); set {VARIABLE}")
        root = found
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def cache_beside(output: Path) -> Iterator[None]:
    """Within it a cache exists even if nothing but the output's folder can be written: then one is made there and removed
    at the end. Worker processes started within see the same one."""
    try:
        cache_dir()
    except BuildError:
        pass
    else:
        yield
        return
    try:
        folder = tempfile.mkdtemp(prefix=".aotc-cache-", dir=output.absolute().parent)
    except OSError as error:
        raise BuildError(f"cannot write to the folder of {output}: {error.strerror}; choose another --output") from error
    os.environ[VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``path`` so that other processes see all of it or nothing."""
    handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _candidates() -> Iterator[Path]:
    for variable, below in (("XDG_CACHE_HOME", "aotc"), ("HOME", ".cache/aotc")):
        value = os.environ.get(variable)
        if value and os.path.isabs(value):  # the XDG specification: a relative path is to be ignored
            yield Path(value) / below
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # no temporary folder at all
        return
    if temporary != os.getcwd():  # what Python takes when there is none: a cache must not grow there
        yield Path(temporary) / f"aotc-cache-{os.getuid()}"


def _usable(path: Path) -> bool:
    """Whether files can be made in ``path``. A folder in the shared temporary files must be this user's own: another user
    could otherwise plant objects that would be linked into our output."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_uid != os.getuid() and os.getuid() != 0:
            return False
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
