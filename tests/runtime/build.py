"""Builds the handwritten plans and the C test programs, plain or with a sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aotc.lowering.plan import ExecutionPlan
from aotc.packaging.planfile import write_plan
from aotc.packaging.stubs import stub_source
from aotc.packaging.weights_file import NO_HEADER
from tests.runtime.models import MODELS, PADDED_WEIGHTS
from tests.runtime.models_cuda import CUBINS

HERE = Path(__file__).resolve().parent / "csrc"
RUNTIME = Path(__file__).resolve().parents[2] / "aotc" / "runtime" / "csrc"
SOURCES = sorted(path for path in RUNTIME.glob("*.c") if path.name != "aotc_loader.c")
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-ffp-contract=off", f"-I{RUNTIME}"]
SYSROOT = Path("/usr/aarch64-linux-gnu")  # of Debian's libc6-arm64-cross
FLAVOURS = {
    "plain": ["-O2"],
    "aarch64": ["-O2", "-mcpu=cortex_a57", "-mno-outline-atomics"],
    "address": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"],
    "thread": ["-O1", "-g", "-fsanitize=thread"],
}


def compiler(flavour: str = "plain") -> list[str]:
    gcc, zig = shutil.which("gcc"), [sys.executable, "-m", "ziglang", "cc"]
    if flavour == "aarch64":
        return [*zig, "-target", "aarch64-linux-gnu.2.34"]
    return [gcc] if gcc else zig


def missing(flavour: str) -> str:
    """What this machine lacks for the flavour; empty for nothing."""
    if flavour == "aarch64":
        return "" if shutil.which("qemu-aarch64") and SYSROOT.exists() else "needs qemu-user and libc6-arm64-cross"
    return "" if flavour == "plain" or shutil.which("gcc") else "the sanitizers need gcc"


def command(driver: Path, flavour: str) -> list[str]:
    """How to start a program of the flavour. The emulated processor has no atomics beyond Armv8.0."""
    emulator = ["qemu-aarch64", "-cpu", "cortex-a57", "-L", str(SYSROOT)] if flavour == "aarch64" else []
    return [*emulator, str(driver)]


def run_tool(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}"


def compile_objects(folder: Path, sources: list[Path], flavour: str) -> list[Path]:
    """Objects in ``folder``; those that are there already stay."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [*compiler(flavour), *STRICT, *FLAVOURS[flavour], "-fPIC", "-fvisibility=hidden", "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
        if not made.exists()
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(run_tool, commands))
    return objects


def blob_source(plan: bytes, weights: bytes, cubins: bytes = b"", *, writable: bool = False, header: bytes = NO_HEADER) -> str:
    """C that stands for what the linker adds. ``writable``: the plan can be changed in place, for the fuzzer. ``header``: of a
    file of weights beside the model."""
    const = "" if writable else "const "

    def array(name: str, section: str, data: bytes, kind: str) -> str:
        place = f'__attribute__((section("{section}"), aligned(64)))' if kind else "__attribute__((aligned(64)))"
        return f"{place} {kind}unsigned char {name}[] = {{{','.join(map(str, data)) or '0'}}};\n{kind}uint64_t {name.replace('data', 'size')} = {len(data)};\n"

    manifest = b'{"name": "handwritten"}'
    return (
        "#include <stdint.h>\n"
        + array("aotc_plan_data", ".aotc.plan", plan, const)
        + array("aotc_weights_data", ".aotc.weights", weights, "const ")
        + array("aotc_cubins_data", ".aotc.cubins", cubins, "const ")
        + f'const char aotc_manifest_data[] = "{manifest.decode().replace(chr(34), chr(92) + chr(34))}";\n'
        + f"const uint64_t aotc_manifest_size = {len(manifest)};\n"
        + f"const unsigned char aotc_weights_header[64] = {{{','.join(map(str, header))}}};\n"
        + 'const char aotc_version[] = "test";\n'
    )


def build_model(folder: Path, name: str, plan: ExecutionPlan, objects: list[Path], flavour: str) -> Path:
    """The plan as a .so that exports aotc_model."""
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    (work / "blobs.c").write_text(blob_source(write_plan(plan), PADDED_WEIGHTS, CUBINS if plan.cubins else b""))
    (work / "stubs.c").write_text(stub_source(plan))
    made = folder / f"{name}.so"
    parts = [str(work / "blobs.c"), str(work / "stubs.c"), *map(str, objects)]
    run_tool(
        [*compiler(flavour), *STRICT, *FLAVOURS[flavour], "-fPIC", "-shared", "-fvisibility=hidden", *parts, "-lpthread", "-o", str(made)]
    )
    return made


def build_all(folder: Path, flavour: str) -> Path:
    """Every model and the driver, in a folder of the flavour's name; returns the driver, beside which the models lie."""
    folder = folder / flavour
    objects = compile_objects(folder / "objects", [*SOURCES, HERE / "kernels.c"], flavour)
    for name, make in MODELS.items():
        build_model(folder, name, make(), objects, flavour)
    build_fake_cuda(folder, flavour)
    driver = folder / "driver"
    sources = sorted(str(path) for path in HERE.glob("case*.c"))
    run_tool(
        [
            *compiler(flavour),
            *STRICT,
            *FLAVOURS[flavour],
            str(HERE / "driver.c"),
            *sources,
            "-rdynamic",
            "-lpthread",
            "-ldl",
            "-lm",
            "-o",
            str(driver),
        ]
    )
    return driver


def build_fake_cuda(folder: Path, flavour: str) -> Path:
    for name, options in {"fake_cuda_old.so": ["-DOLD_DRIVER"], "fake_cuda.so": []}.items():
        library = [*options, "-fPIC", "-shared", "-fvisibility=hidden", str(HERE / "fake_cuda.c"), "-lpthread", "-o", str(folder / name)]
        run_tool([*compiler(flavour), *STRICT, *FLAVOURS[flavour], *library])
    return folder / "fake_cuda.so"


def build_fuzzer(folder: Path, flavour: str, name: str) -> Path:
    """A program that holds the runtime with a model's plan in writable memory and kernels that touch nothing."""
    plan = MODELS[name]()
    objects = compile_objects(folder / flavour / "objects", SOURCES, flavour)
    folder = folder / f"fuzz-{name}"
    folder.mkdir()
    (folder / "blobs.c").write_text(blob_source(write_plan(plan), PADDED_WEIGHTS, CUBINS if plan.cubins else b"", writable=True))
    kernels = "".join(f"int32_t {k.symbol}({', '.join(['void *'] * k.buffers + ['int32_t'] * (k.dims + 2))});\n" for k in plan.kernels)
    empty = "".join(
        f"int32_t {k.symbol}({', '.join(f'void *b{i}' for i in range(k.buffers))}{''.join(f', int32_t d{i}' for i in range(k.dims + 2))}) "
        f"{{ {' '.join(f'(void)b{i};' for i in range(k.buffers))} {' '.join(f'(void)d{i};' for i in range(k.dims + 2))} return 0; }}\n"
        for k in plan.kernels
    )
    (folder / "empty.c").write_text("#include <stdint.h>\n" + kernels + empty)
    (folder / "stubs.c").write_text(stub_source(plan))
    build_fake_cuda(folder, flavour)
    made = folder / "fuzzer"
    parts = [str(folder / name) for name in ("blobs.c", "stubs.c", "empty.c")]
    run_tool(
        [*compiler(flavour), *STRICT, *FLAVOURS[flavour], str(HERE / "fuzz.c"), *parts, *map(str, objects), "-lpthread", "-o", str(made)]
    )
    return made
