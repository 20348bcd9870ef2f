"""CUDA schedules: numbers through the software driver, instructions and registers from the cubins."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aotc import ops, targets
from aotc.errors import BuildError
from aotc.ir.expr import Expr, Var
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from aotc.lowering.cuda import nvrtc
from aotc.lowering.cuda.cubin import architecture, figures
from aotc.lowering.cuda.kernel import lower_function
from aotc.targets import Target
from aotc.targets.base import Gpu
from benchmarks.gpu_kernels import PAGE
from tests.cuda.machine_code import instructions
from tests.cuda.shapes import ShapeCase, cases
from tests.cuda.shapes_run import lowered, outcome
from tests.lowering.harness import function_of

SHARE = 30
"""One of so many cases runs here; ``python -m tests.cuda run`` runs them all."""


@pytest.mark.parametrize("case", cases()[::SHARE], ids=lambda case: case.name)
def test_a_share_of_the_shapes(case: ShapeCase) -> None:
    assert outcome(case, lowered(case), orders=("random:5",)) == ""


def test_all_shapes_have_passed() -> None:
    result = json.loads((Path(__file__).parent / "shapes.json").read_text())
    assert not result["failed"]
    assert set(result["passed"]) == {case.name for case in cases()}, "run python -m tests.cuda run"
    assert len(result["passed"]) >= 300


def _var(name: str, *shape: int, dtype: str = "float16") -> Var:
    return Var(name, TensorType(shape, dtype))


def _kernels(body: Expr, *params: Var, target: Target) -> list[CudaKernel]:
    made = lower_function(function_of(body, *params), target)
    assert isinstance(made, CompiledFunction)
    return [kernel for kernel in made.kernels if isinstance(kernel, CudaKernel)]


def _conv_in_blocks(channels: int, size: int, outputs: int, kernel: int, stride: int, target: Target) -> CudaKernel:
    x, w = _var("x", 1, channels // 8, size, size, 8), _var("w", outputs // 8, channels // 8, kernel, kernel, 8, 8)
    pad = kernel // 2
    conv = ops.conv(x, w, strides=(stride,) * 2, padding=(pad,) * 4, dilation=(1, 1), channel_block=8, out_channels=outputs)
    return _kernels(ops.relu(conv), x, w, target=target)[0]


def _matmul(rows: int, depth: int, columns: int, target: Target) -> CudaKernel:
    a, b = _var("a", rows, depth), _var("b", depth, columns)
    return _kernels(ops.matmul(a, b), a, b, target=target)[0]


def _check(kernel: CudaKernel, target: Target, instruction: str = "HMMA") -> None:
    """Tensor cores at work, asynchronous copies where there are such, no spills."""
    gpu = target.gpu
    assert gpu is not None
    for sm, cubin in kernel.cubins:
        assert architecture(cubin) == sm
        found = instructions(cubin)
        assert found[instruction] > 0, f"{kernel.symbol} for sm_{sm} multiplies without tensor cores"
        assert (found["LDGSTS"] > 0) == (sm >= 80)
        (kernel_figures,) = figures(cubin)
        assert kernel_figures.local_bytes == 0
        assert kernel_figures.registers * kernel.block[0] <= gpu.registers
        assert kernel_figures.shared_bytes + kernel.shared_bytes <= gpu.shared_bytes + 1024  # what the system takes of it
        occupancy = kernel_figures.occupancy(sm, kernel.block[0], kernel.shared_bytes)
        assert occupancy is not None and 0 < occupancy <= 1


@pytest.mark.parametrize("board", ["jetson-xavier", "jetson-orin", "jetson-thor"])
def test_halves_run_on_tensor_cores(board: str) -> None:
    target = targets.get(board)
    for conv in ((64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (128, 56, 128, 3, 2), (512, 7, 512, 3, 1), (8, 12, 16, 3, 1), (16, 5, 8, 1, 1)):
        _check(_conv_in_blocks(*conv, target=target), target)
    for product in ((128, 384, 1536), (128, 1536, 384), (16, 64, 16), (33, 48, 40), (4, 512, 64)):
        _check(_matmul(*product, target=target), target)


@pytest.mark.parametrize("board", ["jetson-xavier", "jetson-orin", "jetson-thor"])
def test_bytes_run_on_tensor_cores(board: str) -> None:
    """With everything behind them in the same kernel."""
    target = targets.get(board)
    scale, zero = _var("s", 1, 3, 1, 1, 16, dtype="float32"), _var("z", dtype="uint8")
    for left, right in (("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")):
        for rows, depth, columns in ((128, 384, 1536), (33, 48, 40), (16, 64, 16)):
            a, b, s = _var("a", rows, depth, dtype=left), _var("b", depth, columns, dtype=right), _var("s", columns, dtype="float32")
            kernels = _kernels(ops.requantise(ops.integer_matmul(a, b), s, zero, dtype="uint8"), a, b, s, zero, target=target)
            _check(kernels[0], target, "IMMA")
        x, w = _var("x", 1, 2, 14, 14, 16, dtype=left), _var("w", 3, 2, 3, 3, 1, 16, 16, dtype="int8")
        window = {"strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
        conv = ops.byte_conv(x, w, out_channels=48, in_channels=32, pad_value=3, **window)
        _check(_kernels(ops.requantise(conv, scale, zero, dtype="uint8"), x, w, scale, zero, target=target)[0], target, "IMMA")


def test_networks_take_few_launches() -> None:
    """By the page that ``python -m benchmarks.gpu_kernels`` writes: a launch costs as much as a small kernel."""
    most = {"ResNet-50": 60, "MiniLM-L6": 50}
    found = re.findall(r"^## ([\w-]+).*: (jetson-\w+), (fp32|fp16)\n\n(\d+) launches, .*; (\d+) bytes of spills", PAGE.read_text(), re.M)
    assert len(found) == 2 * 3 * 2
    for network, board, precision, launches, spilled in found:
        assert int(launches) <= most[network] and spilled == "0", (
            f"{network} on {board} in {precision}: {launches} launches, {spilled} bytes spilled"
        )


def test_hot_products_of_networks_run_on_tensor_cores() -> None:
    """By the same page: every convolution and product of more than one row that takes 1% of a network in halves or more."""
    checked = 0
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        if ", fp16\n" not in section:
            continue
        for function, instructions_ in re.findall(r"^\| (\S+ \S+) \|.*\| ([A-Z ]*) \| [\d.]+ \|$", section, re.M):
            if function.startswith(("conv", "matmul", "dense")) and not re.search(r" 1x\d+$", function):
                assert "HMMA" in instructions_, f"{function}: {section[:60]}"
                assert ("LDGSTS" in instructions_) != ("jetson-xavier" in section), f"{function}: {section[:60]}"
                checked += 1
    assert checked >= 60


def test_boards_without_tensor_cores_multiply_halves_too() -> None:
    kernel = _matmul(64, 64, 64, targets.get("jetson-nano"))
    assert [sm for sm, _ in kernel.cubins] == [53] and not instructions(kernel.cubins[0][1])


def test_one_source_for_several_gpus() -> None:
    board = targets.get("jetson-orin")
    target = replace(board, gpu=replace(board.gpu, sm=(72, 87)))  # type: ignore[type-var]
    kernel = _matmul(64, 64, 64, target)
    assert [sm for sm, _ in kernel.cubins] == [72, 87] == [architecture(cubin) for _, cubin in kernel.cubins]
    assert all(instructions(cubin)["HMMA"] for _, cubin in kernel.cubins)


def test_what_was_built_before_changes_nothing() -> None:
    boards = [targets.get(name) for name in ("jetson-orin", "jetson-nano", "jetson-orin")]
    first, _, again = (_matmul(64, 64, 64, board) for board in boards)
    assert first == again


def test_the_compiler_follows_the_driver() -> None:
    found = {(sm, cuda): nvrtc.release_for(sm, cuda).version for sm, cuda in [(53, (10, 2)), (72, (11, 4)), (87, (11, 4)), (87, (12, 6)), (87, (13, 2)), (110, (13, 0))]}  # fmt: skip
    assert list(found.values()) == ["11.8", "11.8", "11.8", "12.6", "13.0", "13.0"]
    with pytest.raises(BuildError, match="no NVRTC makes code for sm_30"):
        nvrtc.release_for(30, (12, 6))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    nvrtc._load.cache_clear()
    with pytest.raises(BuildError, match=r"pip install 'nvidia-cuda-nvrtc==13\.0\.88' \(or aotc\[jetson-thor\]\)"):
        nvrtc.cubin("", "nothing", 110, (13, 0))
    nvrtc._load.cache_clear()


def test_errors_of_the_compiler_are_told() -> None:
    with pytest.raises(BuildError, match=r"NVRTC 12\.6 fails on the kernel broken for sm_87: broken\.cu\(1\): error"):
        nvrtc.cubin('extern "C" __global__ void broken( {', "broken", 87, (12, 6))


def test_capabilities_are_those_of_all() -> None:
    gpu = Gpu((72, 87), (12, 6), 8, 96 << 10, 64 << 10, 100.0, 1.0)
    assert not gpu.async_copy and "bfloat16" not in gpu.tensor_types and "float16" in gpu.tensor_types
