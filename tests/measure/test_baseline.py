"""``aotc bench --save`` and ``--against``: what is compared, what is refused, what the exit code says; and exact counts of instructions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aotc
from aotc.cross import qemu
from aotc.errors import BuildError
from aotc.measure import instructions
from aotc.measure.baseline import compare
from aotc.packaging.toolchain import ZigToolchain
from tests.e2e import small
from tests.measure.test_profile import command

ROWS, DEPTH, COLUMNS = 8, 64, 64


def product(depth: int = DEPTH) -> onnx.ModelProto:
    weights = np.random.default_rng(0).standard_normal((depth, COLUMNS), dtype=np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return small.model([node], {"x": ("float32", ["n", depth])}, {"y": ("float32", ["n", COLUMNS])}, {"w": weights})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline")
    aotc.compile(product(), output=path / "model.so", jobs=0)
    aotc.compile(product(32), output=path / "other.so", jobs=0)
    command("bench", path / "model.so", "--shape", f"x:{ROWS}x{DEPTH}", "--seconds", 0.1, "--save", path / "base.json")
    return path


def bench(folder: Path, *more: object, shape: str = f"x:{ROWS}x{DEPTH}", code: int = 0) -> str:
    return command("bench", folder / "model.so", "--shape", shape, "--seconds", 0.1, *more, code=code)


def faster_baseline(folder: Path, factor: float) -> Path:
    """The baseline as a machine would have measured it on which runs take ``factor`` times as long beside the loop."""
    found = json.loads((folder / "base.json").read_text())
    for result in found["results"]:
        result["rounds"] = [[seconds * factor, rate] for seconds, rate in result["rounds"]]
    path = folder / f"base-{factor}.json"
    path.write_text(json.dumps(found))
    return path


def test_the_exit_code_tells_what_changed(folder: Path) -> None:
    facts = json.loads(bench(folder, "--against", folder / "base.json", "--json"))
    (change,) = facts["changes"]
    assert change["low"] <= change["change"] <= change["high"] and facts["results"][0]["cost"] > 0
    assert "--fail 10% allows" in bench(folder, "--against", faster_baseline(folder, 0.001), "--fail", "10%", code=7)
    assert "95 % interval" in bench(folder, "--against", faster_baseline(folder, 1000), "--fail", "10%")
    bench(folder, "--against", faster_baseline(folder, 0.001))  # without --fail it only tells


def test_other_models_and_options_are_refused(folder: Path) -> None:
    base = folder / "base.json"
    assert "the shapes of the inputs" in bench(folder, "--against", base, shape=f"x:4x{DEPTH}", code=2)
    assert "the number of threads" in bench(folder, "--against", base, "--threads", "2", code=2)
    assert "the data of the inputs" in bench(folder, "--against", base, "--seed", 3, code=2)
    other = command("bench", folder / "other.so", "--shape", f"x:{ROWS}x32", "--seconds", 0.1, "--against", base, code=2)
    assert "the model (" in " ".join(other.split())
    assert "--fail needs --against" in bench(folder, "--fail", "10%", code=2)
    assert "percentage such as 10%" in bench(folder, "--against", base, "--fail", "0.1", code=2)
    (folder / "broken.json").write_text("{}")
    assert "not a baseline" in bench(folder, "--against", folder / "broken.json", code=2)
    assert "--save" in bench(folder, "--against", folder / "nowhere.json", code=2)


def test_weights_may_change_and_structure_may_not(folder: Path, tmp_path: Path) -> None:
    trained = product()
    for tensor in trained.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 2, tensor.name))
    aotc.compile(trained, output=tmp_path / "trained.so", jobs=0)
    command("bench", tmp_path / "trained.so", "--shape", f"x:{ROWS}x{DEPTH}", "--seconds", 0.1, "--against", folder / "base.json")


def test_a_steady_difference_is_found_in_noise() -> None:
    random = np.random.default_rng(5)

    def measured(seconds: float, threads: int = 1) -> dict[str, Any]:
        busy = 1 + (random.random((60, 2)) < 0.4) * random.random((60, 2)) * 3  # other processes slow 40 % of all turns by up to 4 times
        clock = 1 + 0.1 * np.sin(np.arange(60) / 9)  # and the clock changes for both
        rounds = [[seconds * a * c, 1e11 / b / c] for (a, b), c in zip(busy, clock)]
        return {"measure": "time", "threads": [threads], "results": [{"threads": threads, "rounds": rounds}]}

    (same,) = compare(measured(2.0), measured(2.0), "base.json")
    (slower,) = compare(measured(2.0), measured(2.5), "base.json")
    assert not same.exceeds(0.1)
    assert slower.exceeds(0.1) and 0.15 < slower.change < 0.35 and not slower.busy
    (several,) = compare(measured(2.0, 2), measured(2.5, 2), "base.json")
    assert several.exceeds(0.1) and several.busy  # which of the two it is cannot be said


MIX = r"""
int main(void) {
    static float data[64];
    __asm__ volatile(
        "mov x8, #141\n mov w0, #0x5eed\n mov x1, #0\n svc #0\n"
        "fmla v0.4s, v1.4s, v2.4s\n fmla v0.4s, v1.4s, v2.s[1]\n fmls v3.2d, v1.2d, v2.2d\n fmla v0.8h, v1.8h, v2.h[3]\n fmlal v0.4s, v1.4h, v2.4h\n"
        "sdot v4.4s, v5.16b, v6.16b\n udot v4.4s, v5.16b, v6.4b[2]\n smmla v4.4s, v5.16b, v6.16b\n bfdot v4.4s, v5.8h, v6.8h\n"
        "ldr q7, [%0]\n ldp q7, q8, [%0]\n ld1 {v7.4s, v8.4s}, [%0]\n"
        "str q7, [%0]\n st1 {v7.4s}, [%0]\n"
        "fadd v9.4s, v9.4s, v9.4s\n fmul v9.4s, v9.4s, v9.4s\n fmadd s9, s9, s9, s9\n mla v9.4s, v9.4s, v9.4s\n zip1 v9.4s, v9.4s, v9.4s\n"
        "fmax v9.4s, v9.4s, v9.4s\n fcvtl v9.4s, v9.4h\n"
        "ldr x9, [%0]\n ldrsw x9, [%0]\n ldp x9, x10, [%0]\n ldrb w9, [%0]\n"
        "str x9, [%0]\n stp x9, x10, [%0]\n strb w9, [%0]\n"
        "add x9, x9, #1\n mul x9, x9, x9\n lsl x9, x9, #3\n cmp x9, x10\n"
        "b 1f\n 1: cbz xzr, 2f\n 2:\n"
        "mov x8, #141\n mov w0, #0x5eed\n mov x1, #1\n svc #0\n"
        : : "r"(data) : "x0", "x1", "x8", "x9", "x10", "v0", "v3", "v4", "v7", "v8", "v9", "memory", "cc");
    return 0;
}
"""


def test_plugin_counts_each_class(tmp_path: Path) -> None:
    """Against instructions that are written down here, under an assembler's own names."""
    if packages := qemu.missing():
        pytest.skip(f"no emulation of Arm: apt-get install {' '.join(packages)}")
    (tmp_path / "mix.c").write_text(MIX)
    program = tmp_path / "mix"
    options = ["-O1", "-mcpu=generic+fullfp16+fp16fml+i8mm+bf16+dotprod"]
    ZigToolchain("aarch64-linux-gnu", (2, 27)).build_program([tmp_path / "mix.c"], program, options)
    log = tmp_path / "log"
    run = [
        "qemu-aarch64",
        "-cpu",
        "max",
        "-L",
        str(qemu.SYSROOT),
        "-plugin",
        str(instructions.plugin()),
        "-d",
        "plugin",
        "-D",
        str(log),
        str(program),
    ]
    subprocess.run(run, check=True, capture_output=True)
    before, after = instructions.marks(log.read_text())
    found = {name: after[name] - before[name] for name in after}
    assert found == {
        "total": 5 + 4 + 3 + 2 + 7 + 4 + 3 + 4 + 2 + 4, "fma": 5, "dot": 4, "vector_load": 3, "vector_store": 2, "vector": 7,
        "load": 4, "store": 3, "integer": 4 + 3, "branch": 2 + 1, "other": 0,
    }  # fmt: skip


def test_instructions_of_arm_files_are_exact(tmp_path: Path) -> None:
    if packages := qemu.missing():
        pytest.skip(f"no emulation of Arm: apt-get install {' '.join(packages)}")
    aotc.compile(product(), target="jetson-orin", device="cpu", output=tmp_path / "arm.so", jobs=0)
    run = ("bench", tmp_path / "arm.so", "--shape", f"x:{ROWS}x{DEPTH}")
    command(*run, "--save", tmp_path / "counts.json")
    facts = json.loads(command(*run, "--against", tmp_path / "counts.json", "--fail", "0.1%", "--json"))
    counted = facts["instructions"]
    assert facts["cpu"] == "neoverse-n1" and facts["measure"] == "instructions"
    assert ROWS * DEPTH * COLUMNS / 4 <= counted["fma"] <= ROWS * DEPTH * COLUMNS / 4 * 1.25  # four multiply-adds an instruction
    assert sum(number for name, number in counted.items() if name != "total") == counted["total"]
    fewer = json.loads((tmp_path / "counts.json").read_text())
    fewer["instructions"]["total"] = int(counted["total"] * 0.95)
    (tmp_path / "fewer.json").write_text(json.dumps(fewer))
    assert "total: +5." in command(*run, "--against", tmp_path / "fewer.json", "--fail", "3%", code=7)
    assert "one thread" in command(*run, "--threads", "2", code=2)


@pytest.mark.parametrize("program", ["qemu-x86_64", "valgrind"])
def test_instructions_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt-get install {program.replace('qemu-x86_64', 'qemu-user')}")
    aotc.compile(product(), target="x86-64-v3", output=tmp_path / "model.so", jobs=0)
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: found(name) if name == program else None)
    feeds = {"x": np.ones((ROWS, DEPTH), np.float32)}
    counts = instructions.count(tmp_path / "model.so", feeds)
    assert counts.counter == program
    needed = ROWS * DEPTH * COLUMNS / 8
    assert needed <= counts.classes["total"]
    assert program == "valgrind" or needed <= counts.classes["fma"] <= needed * 1.25
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match="apt-get install qemu-user"):
        instructions.count(tmp_path / "model.so", feeds)
