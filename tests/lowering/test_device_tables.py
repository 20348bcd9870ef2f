"""What CUDA kernels add to a plan: code that is some, kept once, and weights in an order that gives the device one piece."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.errors import BuildError
from aotc.ir.dims import symbol
from aotc.lowering.compiled import CudaKernel
from aotc.lowering.device_tables import CudaTables, device_weights_first
from aotc.lowering.plan import EntryPoint, ExecutionPlan, State, Step, StepKind, Storage, Value
from tests.cuda import host_code

CODE = {sm: host_code.empty_cubin(sm, b"one") for sm in (72, 87)}


def kernel(name: str, *cubins: tuple[int, bytes]) -> CudaKernel:
    return CudaKernel(name, "", cubins, (("input", 0), ("output", 0)), 1, (1, 1, 1), (32, 1, 1))


def test_code_is_kept_once() -> None:
    tables = CudaTables()
    other = host_code.empty_cubin(87, b"another")
    numbers = [
        tables.kernel(each) for each in (kernel("a", (72, CODE[72]), (87, CODE[87])), kernel("b", (87, CODE[87])), kernel("c", (87, other)))
    ]
    assert numbers == [0, 1, 2] and tables.kernel(kernel("a", (87, CODE[87]))) == 0
    assert [each.cubins for each in tables.kernels.values()] == [(0, 1), (1,), (2,)]
    blob = tables.blob()
    assert [blob[each.offset : each.offset + each.size] for each in tables.records] == [CODE[72], CODE[87], other]
    assert all(each.offset % 64 == 0 for each in tables.records)


@pytest.mark.parametrize("code,problem", [
    (b"", r"the code of k for sm_87, 0 bytes, is no cubin"),
    (b"\x7fELF" + bytes(100), r"104 bytes, is no cubin"),
    (CODE[72], r"for sm_87 is for sm_72"),
])  # fmt: skip
def test_what_is_no_code_for_the_gpu(code: bytes, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        CudaTables().kernel(kernel("k", (87, code)))


def test_weights_of_the_device_come_first() -> None:
    """Arrays of 40, 8, 100 and 4 bytes; the device reads the second and, from within, the third."""
    arrays = [
        (0, np.zeros(10, np.float32)),
        (64, np.ones(2, np.float32)),
        (128, np.arange(25, dtype=np.float32)),
        (256, np.ones(1, np.float32)),
    ]
    n = symbol("n", 1, 4)
    values = (
        Value("float32", (10,), Storage.WEIGHT, 0, 0),
        Value("float32", (2,), Storage.WEIGHT, 0, 64),
        Value("float32", (5,), Storage.WEIGHT, 0, 148 + 16 * n),
        Value("float32", (5,), Storage.OUTPUT, 0),
    )
    steps = (Step(StepKind.KERNEL, (0, 3), 1), Step(StepKind.LAUNCH, (1, 2, 3), 1, 0, (1, 1, 1)))
    entry = EntryPoint("main", (), (), values, (), steps, 0, 0)
    made, moved = device_weights_first(ExecutionPlan((entry,), (), (State("s", "float32", (1,), 256),)), arrays)
    assert [(offset, array.size) for offset, array in moved] == [(0, 2), (64, 25), (192, 10), (256, 1)]
    assert [value.offset for value in made.entry_points[0].values] == [192, 0, 84 + 16 * n, 0]
    assert made.device_weights == 164 and made.states[0].initial == 256
