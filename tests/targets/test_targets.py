"""The targets' data against what is known of the boards, and against what LLVM knows of the CPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aotc import ops, targets
from aotc.errors import InvalidOption
from aotc.targets import host
from aotc.targets.jetson import BOARDS
from tests.lowering.harness import lower, var

# name: LLVM's CPU, features it has, features it has not, default JetPack, its glibc, L1 and L2 in KB
FACTS = {
    "jetson-nano": ("cortex-a57", "neon", "fullfp16 dotprod lse i8mm bf16 sve", "4.6", (2, 27), 32, 2048),
    "jetson-tx2": ("cortex-a57", "neon", "fullfp16 dotprod lse i8mm bf16 sve", "4.6", (2, 27), 32, 2048),
    "jetson-xavier": ("carmel", "neon fullfp16 lse", "dotprod i8mm bf16 sve", "5.1", (2, 31), 64, 2048),
    "jetson-orin": ("cortex-a78ae", "neon fullfp16 lse dotprod", "i8mm bf16 sve", "6.2", (2, 35), 64, 256),
    "jetson-thor": ("neoverse-v3ae", "neon fullfp16 lse dotprod i8mm bf16 sve sve2", "", "7.0", (2, 39), 64, 1024),
}


@pytest.mark.parametrize("name", FACTS)
def test_boards(name: str) -> None:
    mcpu, has, has_not, jetpack, glibc, l1, l2 = FACTS[name]
    target = targets.get(name)
    assert (target.mcpu, target.jetpack, target.glibc) == (mcpu, jetpack, glibc)
    assert (target.l1_bytes, target.l2_bytes) == (l1 << 10, l2 << 10)
    assert all(target.has(feature) for feature in has.split())
    assert not any(target.has(feature) for feature in has_not.split())
    assert (target.vector_bits, target.lanes("float32"), target.lanes("float16")) == (128, 4, 8)


def test_every_board_is_in_the_facts() -> None:
    assert {board.name for board in BOARDS} == set(FACTS)
    assert set(targets.NAMES) == {"host", "x86-64-v3", "aarch64", *FACTS}


def test_jetson_is_orin_and_takes_other_jetpacks() -> None:
    assert targets.get("jetson") == targets.get("jetson-orin")
    assert [targets.get("jetson", jetpack).glibc for jetpack in ("5.1", "6.1", "7.2")] == [(2, 31), (2, 35), (2, 39)]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        InvalidOption, match=r"no target 'jetson-nan'; the targets are host, x86-64-v3, aarch64, jetson-nano,.*jetson \(= jetson-orin\)"
    ):
        targets.get("jetson-nan")
    with pytest.raises(InvalidOption, match=r"jetson-nano does not run JetPack '6.2'; it can be 4.6"):
        targets.get("jetson-nano", "6.2")
    with pytest.raises(InvalidOption, match="it is no Jetson"):
        targets.get("x86-64-v3", "6.2")


@pytest.mark.parametrize(
    ("flags", "mcpu", "bits", "registers"),
    [
        ("sse4_2 avx avx2 fma f16c bmi1 bmi2 popcnt abm movbe", "x86-64-v3", 256, 16),
        (
            "sse4_2 avx avx2 fma f16c bmi1 bmi2 popcnt abm movbe avx512f avx512bw avx512dq avx512vl avx512cd avx512_vnni",
            "x86-64-v4",
            512,
            32,
        ),
        ("sse4_2 avx avx2 fma popcnt", "x86-64-v2", 128, 16),
        ("sse2", "x86-64", 128, 16),
    ],
)
def test_host_x86(flags: str, mcpu: str, bits: int, registers: int) -> None:
    target = host.detect(f"model name\t: Some CPU\nflags\t\t: fpu {flags}\n", "x86_64")
    assert (target.mcpu, target.vector_bits, target.vector_registers, target.triple) == (mcpu, bits, registers, "x86_64-linux-gnu")
    assert target.has("avx512vnni") == ("avx512_vnni" in flags)


@pytest.mark.parametrize(("vendor", "family", "rate"), [("AuthenticAMD", 25, 1), ("AuthenticAMD", 26, 2), ("GenuineIntel", 6, 2)])
def test_host_rate_of_wide_vectors(vendor: str, family: int, rate: int) -> None:
    flags = "avx avx2 fma f16c bmi1 bmi2 popcnt abm movbe sse4_2 avx512f avx512bw avx512dq avx512vl avx512cd"
    target = host.detect(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: {flags}\n", "x86_64")
    assert target.vector_bits == 512 and target.multiply_adds == rate


def test_host_arm() -> None:
    target = host.detect("Features\t: fp asimd atomics fphp asimdhp asimddp\n", "aarch64")
    assert target.features == ("neon", "fullfp16", "lse", "dotprod")


def test_host_elsewhere() -> None:
    with pytest.raises(InvalidOption, match="the host is riscv64"):
        host.detect("", "riscv64")


@pytest.mark.parametrize("name", targets.NAMES)
def test_llvm_knows_cpu_and_features(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """LLVM only warns about names that it does not know."""
    x = var("x", "float32", 64)
    lowered = lower(ops.exp(x), x, target=targets.get(name))
    assert lowered.kernels[0].object_code.startswith(b"\x7fELF")
    printed = capfd.readouterr()
    assert "not a recognized" not in printed.err + printed.out


DISASSEMBLER = shutil.which("llvm-objdump") or shutil.which("llvm-objdump-19")


@pytest.mark.skipif(DISASSEMBLER is None, reason="needs llvm-objdump (Debian package llvm-19)")
@pytest.mark.parametrize("name", ["jetson-nano", "jetson-xavier", "jetson-orin"])
def test_no_instruction_that_the_cpu_lacks(name: str, tmp_path: Path) -> None:
    """Disassembled with one CPU's features, an instruction of another shows as unknown."""
    target = targets.get(name)
    mcpu = target.mcpu.replace("a78ae", "a78")  # the same instructions; Debian's older LLVM lacks the name
    x, w, b = var("x", "float32", 1, 2, 9, 9, 8), var("w", "float32", 2, 2, 3, 3, 8, 8), var("b", "float32", 1, 2, 1, 1, 8)
    conv = ops.conv(x, w, padding=(1, 1, 1, 1), channel_block=8, out_channels=16)
    lowered = lower(ops.gelu(ops.add(conv, b)), x, w, b, target=target)
    text = ""
    for number, kernel in enumerate(lowered.kernels):
        path = tmp_path / f"{number}.o"
        path.write_bytes(kernel.object_code)
        command = [str(DISASSEMBLER), "-d", "--triple=aarch64-linux-gnu", f"--mcpu={mcpu}", str(path)]
        text += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "<unknown>" not in text
    assert len(re.findall(r"\tfmla\t", text)) > 50


@pytest.mark.skipif(DISASSEMBLER is None, reason="needs llvm-objdump (Debian package llvm-19)")
def test_the_disassembler_sees_what_a_cpu_lacks(tmp_path: Path) -> None:
    """A float16 sum compiled for Orin is unknown to Nano: the check above can fail."""
    path = tmp_path / "half.o"
    source = tmp_path / "half.s"
    source.write_text("fadd v0.8h, v1.8h, v2.8h\n")
    assembler = shutil.which("llvm-mc") or shutil.which("llvm-mc-19")
    if assembler is None:
        pytest.skip("needs llvm-mc (Debian package llvm-19)")
    subprocess.run(
        [assembler, "--triple=aarch64-linux-gnu", "--mattr=+fullfp16", "--filetype=obj", "-o", str(path), str(source)], check=True
    )
    command = [str(DISASSEMBLER), "-d", "--triple=aarch64-linux-gnu", "--mcpu=cortex-a57", str(path)]
    assert "<unknown>" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


# name: compute capability, CUDA and PTX of the default JetPack, tensor-core types, asynchronous copies, shared memory in KB
GPU_FACTS = {
    "jetson-nano": (53, (10, 2), (6, 5), "", False, 48),
    "jetson-tx2": (62, (10, 2), (6, 5), "", False, 48),
    "jetson-xavier": (72, (11, 4), (7, 4), "float16 int8 uint8", False, 96),
    "jetson-orin": (87, (12, 6), (8, 5), "float16 bfloat16 tfloat32 int8 uint8", True, 163),
    "jetson-thor": (110, (13, 0), (9, 0), "float16 bfloat16 tfloat32 int8 uint8", True, 227),
}


@pytest.mark.parametrize("name", GPU_FACTS)
def test_gpus(name: str) -> None:
    sm, cuda, ptx, tensor_types, async_copy, shared = GPU_FACTS[name]
    gpu = targets.get(name).gpu
    assert gpu is not None
    assert (gpu.sm, gpu.cuda, gpu.ptx_isa, gpu.async_copy, gpu.shared_bytes >> 10) == ((sm,), cuda, ptx, async_copy, shared)
    assert gpu.tensor_types == frozenset(tensor_types.split())


def test_the_cuda_release_follows_the_jetpack() -> None:
    gpu = targets.get("jetson-orin", "5.1").gpu
    assert gpu is not None and gpu.cuda == (11, 4)
