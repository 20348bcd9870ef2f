"""A small model written by hand, so that packaging and loaders are tested without the compiler.

scores[b, j] = exp(sum_i image[b, i] * weight[i, j] + bias[j]),   image float32 [b, 4], 1 <= b <= 8;   labels = ids
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aotc.ir.dims import symbol
from aotc.lowering.plan import EntryPoint, ExecutionPlan, Kernel, Step, StepKind, Storage, Symbol, TensorSpec, Value
from aotc.packaging.link import Linked, Parts, link
from aotc.packaging.manifest import TargetInfo, make_manifest
from aotc.packaging.planfile import write_plan
from aotc.packaging.stubs import stub_source
from aotc.packaging.toolchain import compile_all, toolchain
from aotc.packaging.weights_file import write_weights

HOST = TargetInfo("host", f"{platform.machine()}-linux-gnu", "generic", (), (2, 27))
NANO = TargetInfo("jetson-nano", "aarch64-linux-gnu", "cortex-a57", ("neon",), (2, 27), "4.6")
XAVIER = TargetInfo("jetson-xavier", "aarch64-linux-gnu", "carmel", ("neon", "fullfp16", "lse"), (2, 31), "5.1")
ORIN = TargetInfo("jetson-orin", "aarch64-linux-gnu", "cortex-a78ae", ("neon", "fullfp16", "lse", "dotprod"), (2, 35), "6.2")
THOR = TargetInfo("jetson-thor", "aarch64-linux-gnu", "neoverse-v3ae", ("neon", "fullfp16", "lse", "dotprod", "sve2"), (2, 39), "7.0")
BOARDS = (NANO, XAVIER, ORIN, THOR)

KERNEL = """
#include <math.h>
#include <stdint.h>
int32_t affine_exp(void *image, void *weight, void *bias, void *scores, int32_t begin, int32_t end);
int32_t affine_exp(void *image, void *weight, void *bias, void *scores, int32_t begin, int32_t end) {
    for (int32_t row = begin; row < end; row++)
        for (int j = 0; j < 3; j++) {
            float sum = ((float *)bias)[j];
            for (int i = 0; i < 4; i++) sum += ((float *)image)[4 * row + i] * ((float *)weight)[3 * i + j];
            ((float *)scores)[3 * row + j] = expf(sum);
        }
    return 0;
}
"""

WEIGHT = (np.arange(12, dtype=np.float32).reshape(4, 3) - 5) / 8
BIAS = np.array([0.5, -0.25, 0.0], np.float32)


def plan(source: str = "classifier/fc") -> ExecutionPlan:
    b = symbol("b", 1, 8)
    values = (
        Value("float32", (b, 4), Storage.INPUT, 0),
        Value("float32", (4, 3), Storage.WEIGHT, 0, 0),
        Value("float32", (3,), Storage.WEIGHT, 0, 64),
        Value("float32", (b, 3), Storage.OUTPUT, 0),
        Value("int64", (2,), Storage.INPUT, 1),
        Value("int64", (2,), Storage.OUTPUT, 1),
    )
    steps = (
        Step(StepKind.KERNEL, (0, 1, 2, 3), 1, tasks=b, source=source, label="dense, exp", flops=24 * b),
        Step(StepKind.COPY, (4, 5), 1, source="labels", label="copy"),
    )
    entry = EntryPoint(
        name="main",
        inputs=(TensorSpec("image", "float32", (b, 4)), TensorSpec("ids", "int64", (2,))),
        outputs=(TensorSpec("scores", "float32", (b, 3)), TensorSpec("labels", "int64", (2,))),
        values=values,
        buffers=(),
        steps=steps,
        arena_size=None,
        arena_lower_bound=None,
        symbols=(Symbol("b", 1, 8, 0, 0),),
    )
    return ExecutionPlan((entry,), (Kernel("affine_exp", 4, 0),))


def weights_blob(weight: np.ndarray = WEIGHT, bias: np.ndarray = BIAS) -> bytes:
    return weight.tobytes().ljust(64, b"\0") + bias.tobytes()


def expected(image: np.ndarray, weight: np.ndarray = WEIGHT, bias: np.ndarray = BIAS) -> np.ndarray:
    return np.exp(image @ weight + bias)


def kernel_object(target: TargetInfo, folder: Path, source: str = KERNEL) -> bytes:
    path = folder / "kernel.c"
    path.write_text(source)
    return compile_all(toolchain(target.triple, target.glibc), [path], [])[0].read_bytes()


def build_sample(
    output: Path,
    target: TargetInfo = HOST,
    *,
    weights: bytes | None = None,
    kernel: bytes | None = None,
    the_plan: ExecutionPlan | None = None,
    metadata: Mapping[str, str] | None = None,
    compiler: str | None = None,
    work: Path | None = None,
) -> Linked:
    work = work or output.parent
    blob = work / "sample-weights.bin"
    written = write_weights(blob, [(0, np.frombuffer(weights_blob() if weights is None else weights, np.uint8))])
    the_plan = the_plan or plan()
    plan_bytes = write_plan(the_plan)
    manifest = make_manifest(the_plan, plan_bytes, written, target, aotc_version="0.0.test", metadata=metadata or {"labels": "a,b,ä"})
    objects = [kernel if kernel is not None else kernel_object(target, work)]
    return link(Parts(objects, stub_source(the_plan), plan_bytes, manifest, blob), output, compiler=compiler)
