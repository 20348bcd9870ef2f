"""Kernels as TVM's dlight schedules them: what the driver's headers have to understand besides our own schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import te
from tvm.s_tir import dlight, pipeline
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods
from tvm_ffi.structural import structural_walk

from tests.cuda.cases import Case

GPU = {"kind": "cuda", "arch": "sm_87", "max_num_threads": 1024, "thread_warp_size": 32, "max_shared_memory_per_block": 49152}
TARGET = Target(GPU, host=Target({"kind": "llvm"}))
TAGS = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"]
RULES = [
    dlight.gpu.Matmul(),
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Transpose(),
    dlight.gpu.Fallback(),
]


def case(
    name: str, tensors: Sequence[Any], reference: Callable[..., np.ndarray], *, tolerance: float = 1e-5, rules: Sequence[Any] = ()
) -> list[Case]:
    """The kernels of one tensor expression (its inputs, then its output); only of those that become one kernel."""
    module = tvm.IRModule({name: te.create_prim_func(list(tensors)).with_attr("global_symbol", name)})
    with TARGET:
        module = dlight.ApplyDefaultSchedule(*RULES)(module)
    lower, _, finalize_device = pipeline.default_s_tir_pipeline()
    _, devices = split_host_device_mods(lower(tvm.tirx.transform.BindTarget(TARGET)(module)))
    ((device_target, device_module),) = devices.items()
    device_module = finalize_device()(device_module)
    ((variable, function),) = device_module.functions.items()
    symbol = variable.name_hint
    extents, shared = _launch(function)
    source = tvm.get_global_func("target.build.cuda")(device_module, device_target).inspect_source("cuda")
    shapes = [(tuple(map(int, tensor.shape)), np.dtype(_dtype(str(tensor.dtype)))) for tensor in tensors]

    def inputs() -> list[np.ndarray]:
        random = np.random.default_rng(0)
        return [random.uniform(0.1, 1, shape).astype(dtype) for shape, dtype in shapes[:-1]]

    def right(*arrays: np.ndarray) -> list[np.ndarray]:
        return [reference(*[array.astype(np.float64) for array in arrays])]

    outputs = [np.zeros(*shapes[-1])]
    # TVM sorts parameters by name
    names = [f"{tensor.op.name}_ptr" for tensor in tensors[:-1]]
    order = tuple(names.index(param.name) if param.name in names else len(names) for param in function.params)
    grid, block = (tuple(extents.get(tag, 1) for tag in TAGS[i : i + 3]) for i in (0, 3))
    return Case(source, symbol, grid, block, inputs, outputs, right, order, shared, tolerance)


def _dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if "bfloat16" in name else name.removeprefix("T.")


def _launch(function: tvm.tirx.PrimFunc) -> tuple[dict[str, int], int]:
    """Extents by thread tag, and bytes of dynamic shared memory."""
    extents: dict[str, int] = {}
    shared = 0

    def attribute(node: Any) -> None:
        if node.attr_key == "thread_extent":
            extents[node.node.thread_tag] = int(node.value)

    def allocation(node: Any) -> None:
        nonlocal shared
        if node.buffer.scope() == "shared.dyn":
            shared += int(np.prod([int(extent) for extent in node.buffer.shape])) * np.dtype(_dtype(str(node.buffer.dtype))).itemsize

    structural_walk(function.body, [(tvm.tirx.AttrStmt, attribute), (tvm.tirx.AllocBuffer, allocation)])
    return extents, shared
