"""The C source that joins a plan's kernels to the runtime: a stub of the uniform signature for each, and their table."""

from __future__ import annotations

import re

from aotc.errors import BuildError
from aotc.lowering.plan import ExecutionPlan, Kernel

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def stub_source(plan: ExecutionPlan) -> str:
    """C text that defines ``aotc_kernels`` and ``aotc_kernel_count`` of csrc/blobs.h.

    It needs csrc/ on its include path. Raises BuildError if a kernel's name is no C identifier or stands for two kernels.
    """
    names = [kernel.symbol for kernel in plan.kernels]
    for name in names:
        if not _IDENTIFIER.match(name):
            raise BuildError(f"a kernel has the symbol {name!r}, which is no C identifier; report this")
    if len(set(names)) != len(names):
        raise BuildError(f"the symbol {next(n for n in names if names.count(n) > 1)!r} stands for two kernels; report this")
    table = ",\n".join(f"    stub{number}" for number in range(len(names))) or "    0"
    parts = ['#include "aotc_kernel.h"\n', *(_stub(number, kernel) for number, kernel in enumerate(plan.kernels))]
    parts.append(f"const aotc_kernel aotc_kernels[] = {{\n{table},\n}};\n")
    parts.append(f"const uint32_t aotc_kernel_count = {len(names)};\n")
    return "\n".join(parts)


def _stub(number: int, kernel: Kernel) -> str:
    types = ", ".join(["void *"] * kernel.buffers + ["int32_t"] * (kernel.dims + 2))
    arguments = [f"a->buffers[{i}]" for i in range(kernel.buffers)] + [f"(int32_t)a->dims[{i}]" for i in range(kernel.dims)]
    call = ", ".join([*arguments, "a->begin", "a->end"])
    return (
        f"extern int32_t {kernel.symbol}({types});\n"
        f"static int32_t stub{number}(const aotc_kernel_args *a) {{ return {kernel.symbol}({call}); }}\n"
    )
