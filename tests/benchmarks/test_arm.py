"""Counts of Arm instructions: their kinds as an assembler knows them, a built file's counts, the limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import aotc
from aotc import ops
from aotc.cross import qemu
from aotc.ir.expr import Constant, Function, Module, Var, call
from aotc.ir.types import tensor
from aotc.measure import instructions
from benchmarks.arm import peers, report
from benchmarks.arm.blocks import Block, is_fmla, merged, profile
from benchmarks.arm.mca import OLDEST, Mca
from benchmarks.arm.work import saved_by_winograd

MULTIPLY_ADDS = (
    "fmla v0.4s, v1.4s, v2.s[3]", "fmls v0.4s, v1.4s, v2.s[0]", "fmla v31.4s, v30.4s, v29.4s", "fmls v0.4s, v1.4s, v2.4s",
)  # fmt: skip
OTHERS = (
    "fmla v0.2s, v1.2s, v2.2s", "fmla v0.2d, v1.2d, v2.d[1]", "fmla v0.2d, v1.2d, v2.2d", "fmul v0.4s, v1.4s, v2.s[3]",
    "fadd v0.4s, v1.4s, v2.4s", "fmax v0.4s, v1.4s, v2.4s", "fmadd s0, s1, s2, s3", "mla v0.4s, v1.4s, v2.4s", "ldp q0, q1, [x2], #32",
    "ldr x0, [x1]", "add x0, x1, x2", "b.ne .",
)  # fmt: skip


def _assembled(lines: list[str], folder: Path) -> list[int]:
    (folder / "code.s").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", "-c", "-o", "code.o", "code.s"]
    subprocess.run(command, cwd=folder, check=True)
    with (folder / "code.o").open("rb") as stream:
        data = ELFFile(stream).get_section_by_name(".text").data()
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def test_which_instructions_multiply_and_add_four_floats(tmp_path: Path) -> None:
    words = _assembled([*MULTIPLY_ADDS, *OTHERS], tmp_path)
    assert [is_fmla(word) for word in words] == [True] * len(MULTIPLY_ADDS) + [False] * len(OTHERS)


def test_cycles_of_a_loop_that_multiply_adds_fill(tmp_path: Path) -> None:
    """16 sums that do not depend on each other: 8 cycles on a processor with two vector pipes."""
    lines = [f"fmla v{number}.4s, v30.4s, v31.s[0]" for number in range(16)] + ["subs x0, x0, #1", "b.ne ."]
    try:
        mca = Mca()
    except aotc.errors.BuildError:
        pytest.skip(f"llvm-mca is missing: apt-get install llvm-{OLDEST}")
    block = Block(5, 0, tuple(_assembled(lines, tmp_path)))
    (loop,) = mca.loops([block])
    assert loop.cycles == pytest.approx(8, abs=0.5)
    assert loop.share == pytest.approx(1, abs=0.06)


@pytest.mark.skipif(bool(qemu.missing()), reason=f"apt-get install {' '.join(qemu.missing())}")
def test_counts_of_a_product(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((32, 48), dtype=np.float32), random.standard_normal((64, 48), dtype=np.float32)
    var = Var("x", tensor("float32", *x.shape))
    module = Module({"main": Function((var,), ops.dense(var, Constant(weight)), "main")}, {"main": ("y",)})
    aotc.compile(module, "jetson-nano", tmp_path / "model.so", device="cpu", jobs=0)
    blocks = profile(tmp_path / "model.so", "cortex-a57", {"x": x}, tmp_path)
    products = sum(4 * block.executions * block.fmlas for block in blocks)
    assert x.size * weight.shape[0] <= products < 1.2 * x.size * weight.shape[0]
    counted = instructions.count(tmp_path / "model.so", {"x": x}).classes
    assert sum(block.instructions for block in merged(blocks)) == pytest.approx(
        counted["total"], abs=10_000
    )  # the program tells the times of a second run
    assert products == 4 * counted["fma"]
    assert peers.difference(np.load(tmp_path / "y.npy"), x @ weight.T) < 1e-5


def test_products_that_winograd_saves() -> None:
    """7 x 7 outputs of tiles of 4: along each axis a tile of 4 with 6 products and one of 3 with 5."""
    x, u = Var("x", tensor("float32", 1, 2, 7, 7, 8)), Var("u", tensor("float32", 3, 36, 16, 8))
    product = ops.winograd_conv(x, u, tile=4, padding=(1, 1, 1, 1), channel_block=8, out_channels=20)
    fused = Function((x, u), product, "fused", primitive=True)
    body = call(fused, (x, u))
    module = Module({"main": Function((x, u), body, "main")}, {"main": ("y",)})
    assert saved_by_winograd(module) == 16 * 20 * (9 * 49 - 11 * 11)


def test_the_limit_is_the_greater_of_the_peers_and_the_floor() -> None:
    ours = {"millions": 100.0, "macs": 300e6, "classes": {"fma": 75_000_000}, "difference": 1e-6}
    results = {
        report.name("resnet18", "neoverse-n1", "aotc"): ours,
        report.name("resnet18", "neoverse-n1", "ncnn"): {"millions": 110.0, "difference": 1e-6},
    }
    (verdict,) = report.verdicts(results)
    assert (verdict.engine, verdict.best, verdict.measured) == ("ncnn", 110.0, True)  # the published count is not asked
    assert verdict.limit == pytest.approx(0.90 * 110)
    assert not verdict.passes
    (verdict,) = report.verdicts({key: facts | {"macs": 400e6} for key, facts in results.items()})
    assert verdict.limit == pytest.approx(125)
    assert verdict.passes
    text = "\n".join(report.section(results, ["qemu 7"]))
    assert "| resnet18 | neoverse-n1 | 100.0 | 110.0 ncnn |" in text
    assert "665.7 (p)" in text
