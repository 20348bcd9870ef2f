"""A 64-bit Arm C library that is older than this machine's: Debian 11's glibc 2.31, that of JetPack 5.

Built files for JetPack 4 and 5 run under it with qemu-user, which shows what symbol tables only promise. It is one Debian
package, taken from the mirror that this machine's apt uses and unpacked in aotc's cache; nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from aotc.cache_dir import cache_dir
from aotc.errors import BuildError

SUITE = "bullseye"
GLIBC = (2, 31)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))


def sysroot() -> Path:
    """The folder to give to ``qemu-aarch64 -L``; made on first use. Raises BuildError where the package cannot be had."""
    folder = cache_dir("sysroots") / f"debian-{SUITE}-arm64"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            tree = Path(work) / "tree"
            _run(["dpkg-deb", "-x", str(_download(Path(work))), str(tree)], Path(work))
            os.replace(tree, folder)
    return folder


def _download(work: Path) -> Path:
    """The package libc6 of the older suite as a file below ``work``."""
    (work / "old.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {SUITE} main\n")
    (work / "status").touch()
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": work / "old.list", "Dir::Etc::sourceparts": "/dev/null", "Dir::State::Lists": work / "lists",
        "Dir::State::status": work / "status", "Dir::Cache": work / "cache", "APT::Architecture": "arm64", "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", *words, "update"], work)
    _run(["apt-get", *words, "download", "libc6"], work)
    return next(work.glob("libc6_*.deb"))


def _mirror() -> str:
    """The address of the Debian archive that this machine uses."""
    for path in APT_SOURCES:
        found = re.search(r"^(?:URIs:|deb)\s.*?(\w+://\S+/debian/?)(?:\s|$)", path.read_text(), re.MULTILINE) if path.exists() else None
        if found:
            return found.group(1)
    raise BuildError(f"no Debian archive is named in {' or '.join(map(str, APT_SOURCES))}")


def _run(command: list[str], work: Path) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise BuildError(f"{command[0]} is not installed")
    done = subprocess.run([program, *command[1:]], cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
