"""Compiles the runtime's C and links the .so: by the ziglang wheel, which brings clang, lld and every glibc, or by a gcc.

Nothing is looked up in PATH: zig is the wheel's own binary, run by this Python. Zig's compile driver is used for C and, once
per C library version, to make the stubs of that version; those are kept, and each link is then ``zig ld.lld`` alone (0.02 s),
which has no cache of its own that could hold stale data.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aotc.cache_dir import cache_dir, write_atomically
from aotc.errors import BuildError, InvalidOption

TRIPLES = ("x86_64-linux-gnu", "aarch64-linux-gnu")
VARIABLE = "AOTC_CC"

COMMON_FLAGS = (
    "-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections",
    "-ffp-contract=off", "-fno-math-errno", "-D_GNU_SOURCE", "-DNDEBUG",
)  # fmt: skip
ARCHITECTURE_FLAGS = {
    "x86_64-linux-gnu": (),
    # Cortex-A57 has no LSE atomics, and the outlined ones contain them behind a check: stay with load/store exclusive.
    "aarch64-linux-gnu": ("-mno-outline-atomics",),
}
LINK_FLAGS = ("--build-id=none", "--gc-sections", "--strip-all", "--no-undefined", "--as-needed", "--hash-style=gnu")
LINK_KEYWORDS = ("relro", "now", "noexecstack", "text")


class Toolchain(Protocol):
    """What packaging needs of a compiler for one (triple, glibc)."""

    @property
    def triple(self) -> str: ...

    @property
    def identity(self) -> str:
        """Tool and version: part of the key of everything that is cached."""
        ...

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        """Compile one C file to an object. Raises BuildError."""
        ...

    def link(self, objects: Sequence[Path], version_script: Path, output: Path, *, builtins: bool) -> None:
        """Link objects to a stripped shared library, with the compiler's helper functions if ``builtins``. Raises BuildError."""
        ...


def toolchain(triple: str, glibc: tuple[int, int], compiler: str | None = None) -> Toolchain:
    """The tools for a target: zig, or the gcc that ``compiler`` or else the variable AOTC_CC names (a path or a command
    with arguments). Raises InvalidOption for a triple that is not in ``TRIPLES``."""
    if triple not in TRIPLES:
        raise InvalidOption(f"the target triple {triple!r} is not one of {', '.join(TRIPLES)}")
    compiler = compiler or os.environ.get(VARIABLE)
    return GccToolchain(triple, compiler) if compiler else ZigToolchain(triple, glibc)


@dataclass(frozen=True)
class ZigToolchain:
    """The ziglang wheel for one triple and glibc."""

    triple: str
    glibc: tuple[int, int]

    @property
    def identity(self) -> str:
        return f"zig-{_zig_version()}-{self.triple}.{self.glibc[0]}.{self.glibc[1]}"

    @property
    def zig_target(self) -> str:
        return f"{self.triple}.{self.glibc[0]}.{self.glibc[1]}"

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        prefix = f"-ffile-prefix-map={source.parent}=."
        _run_zig(["cc", "-target", self.zig_target, *flags, prefix, "-c", str(source), "-o", str(output)], f"compiling {source.name}")

    def link(self, objects: Sequence[Path], version_script: Path, output: Path, *, builtins: bool) -> None:
        emulation = {"x86_64-linux-gnu": "elf_x86_64", "aarch64-linux-gnu": "aarch64linux"}[self.triple]
        libraries = [*sorted(self.stubs().glob("*.so*")), *self.stubs().glob("*.a"), *([self.builtins()] if builtins else [])]
        response = output.with_suffix(".rsp")  # thousands of kernels would overflow a command line
        response.write_text("\n".join(f'"{path}"' for path in objects))
        keywords = [word for keyword in LINK_KEYWORDS for word in ("-z", keyword)]
        command = ["ld.lld", "-m", emulation, "--shared", *LINK_FLAGS, *keywords, f"--version-script={version_script}", "-o", str(output)]
        _run_zig([*command, f"@{response}", *map(str, libraries)], "linking")

    def build_program(self, sources: Sequence[Path], output: Path, flags: Sequence[str]) -> None:
        """Compile and link a program, for the tools that run on a board. Raises BuildError."""
        libraries = ["-ldl", "-lpthread", "-lm"]
        _run_zig(["cc", "-target", self.zig_target, *flags, *map(str, sources), "-o", str(output), *libraries], f"building {output.name}")

    def stubs(self) -> Path:
        """The folder with the link-time C library of this glibc version; made on first use (1 s)."""
        return _made_once(cache_dir("sysroots") / self.identity, self._make_stubs)

    def builtins(self) -> Path:
        """The archive of compiler-rt, which the few objects need that convert fp16 without instructions for it; made on first
        use (10 s)."""
        identity = f"compiler_rt-{_zig_version()}-{self.triple}"
        return _made_once(cache_dir("sysroots") / identity, self._make_builtins) / "libcompiler_rt.a"

    def _make_stubs(self, work: Path, ready: Path) -> None:
        (work / "empty.c").write_text("int aotc_empty;\n")
        command = ["build-lib", "-dynamic", "-target", self.zig_target, "-lc", "-lm", "-fno-compiler-rt", "-fno-ubsan-rt", "--verbose-link"]
        log = _run_zig([*command, f"-femit-bin={work / 'empty.so'}", str(work / "empty.c")], f"making the stubs of {self.zig_target}")
        last = [line for line in log.splitlines() if line.startswith("ld.lld ")][-1:]
        words = [Path.cwd() / word for line in last for word in shlex.split(line)[1:]]  # zig shortens paths below its directory
        libraries = [path for path in words if re.search(r"\.(so\.\d+|a)$", path.name)]
        if not {"libc.so.6", "libm.so.6"} <= {path.name for path in libraries}:
            raise BuildError(f"the C library stubs of {self.zig_target} were not found; expected ziglang 0.17.1, found {_zig_version()}")
        for library in libraries:
            shutil.copyfile(library, ready / library.name)

    def _make_builtins(self, work: Path, ready: Path) -> None:
        source = Path(zig()).parent / "lib" / "compiler_rt.zig"
        options = ["-target", self.triple, "-O", "ReleaseFast", "-fPIC", "--name", "compiler_rt"]
        _run_zig(["build-lib", *options, f"-femit-bin={ready / 'libcompiler_rt.a'}", str(source)], "making compiler-rt")


@dataclass(frozen=True)
class GccToolchain:
    """A gcc or clang of the system, for people who must use it. Its sysroot decides the glibc; the check of the output
    tells if that is too new for the target."""

    triple: str
    command: str
    _words: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = shlex.split(self.command)
        found = shutil.which(words[0]) if words else None
        if found is None:
            raise InvalidOption(f"the C compiler {self.command!r} was not found; name one that exists, or unset {VARIABLE} to use zig")
        object.__setattr__(self, "_words", [found, *words[1:]])
        machine = _run([*self._words, "-dumpmachine"], "asking the compiler for its machine").strip()
        if machine.split("-")[0] != self.triple.split("-")[0]:
            raise InvalidOption(f"the C compiler {self.command!r} makes code for {machine}, expected {self.triple}; name one for that")

    @property
    def identity(self) -> str:
        version = _run([*self._words, "--version"], "asking the compiler for its version")
        return f"gcc-{hashlib.sha256((self.command + version).encode()).hexdigest()[:16]}-{self.triple}"

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        prefix = f"-ffile-prefix-map={source.parent}=."
        _run([*self._words, *flags, prefix, "-c", str(source), "-o", str(output)], f"compiling {source.name}")

    def link(self, objects: Sequence[Path], version_script: Path, output: Path, *, builtins: bool) -> None:
        response = output.with_suffix(".rsp")
        response.write_text("\n".join(f'"{path}"' for path in objects))
        flags = [*(f"-Wl,{flag}" for flag in LINK_FLAGS), *(f"-Wl,-z,{keyword}" for keyword in LINK_KEYWORDS)]
        command = [*self._words, "-shared", *flags, f"-Wl,--version-script={version_script}", "-o", str(output)]
        _run([*command, f"@{response}", "-lm", "-lpthread", "-ldl"], "linking")


def _made_once(folder: Path, make: Callable[[Path, Path], None]) -> Path:
    """``folder``, filled by ``make(work, ready)`` if it does not exist; several processes may do so at the same time."""
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work, ready = Path(name), Path(name, "ready")
        ready.mkdir()
        make(work, ready)
        try:
            ready.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
    return folder


def compile_all(tools: Toolchain, sources: Sequence[Path], headers: Sequence[Path], include: Path | None = None) -> list[Path]:
    """Objects of C ``sources``, in their order, from the cache where the sources, headers, flags and tools are the same.

    ``headers``: all files that the sources may include; ``include``: the folder of those that are not beside the sources."""
    flags = [*COMMON_FLAGS, *ARCHITECTURE_FLAGS[tools.triple]]
    common = hashlib.sha256(repr((tools.identity, flags)).encode())
    for header in sorted(headers, key=lambda path: path.name):
        common.update(f"\0{header.name}\0".encode() + header.read_bytes())
    folder = cache_dir("objects")

    def compiled(source: Path) -> Path:
        digest = common.copy()
        digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
        kept = folder / f"{source.stem}-{digest.hexdigest()[:32]}.o"
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                tools.compile(source, Path(work, "out.o"), flags if include is None else [*flags, f"-I{include}"])
                write_atomically(kept, Path(work, "out.o").read_bytes())
        return kept

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(compiled, sources))


def zig() -> str:
    """The absolute path of the ziglang wheel's binary. Raises BuildError if the wheel is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"ziglang is not installed for {sys.executable}; run: pip install ziglang==0.17.1 (or set {VARIABLE} to a gcc)")
    return str(Path(next(iter(spec.submodule_search_locations))).absolute() / "zig")


def _zig_version() -> str:
    return importlib.metadata.version("ziglang")


def _run_zig(arguments: Sequence[str], doing: str) -> str:
    """Zig writes only below our cache, and nothing of the caller's environment reaches it."""
    folder = str(cache_dir("zig"))
    names = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "TMPDIR")
    return _run([zig(), *arguments], doing, {**dict.fromkeys(names, folder), "LC_ALL": "C"})


def _run(command: Sequence[str], doing: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a tool and return what it printed. Raises BuildError with its first lines of output."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)
    except OSError as error:
        raise BuildError(f"{doing}: {command[0]} could not be started: {error.strerror}") from error
    log = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    if done.returncode != 0:
        if done.returncode == -signal.SIGBUS:  # linkers write through a mapping
            raise BuildError(f"{doing} failed: no space is left for the output; free space or choose another output")
        shown = "\n".join(log.strip().splitlines()[:20])
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        raise BuildError(f"{doing} failed ({ended}):\n{shown}")
    return log
