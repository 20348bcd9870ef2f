"""What the CUDA kernels of a built file take of a GPU: ``aotc inspect --kernels``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from aotc.cli.common import bytes_text, console

if TYPE_CHECKING:
    from aotc.lowering.plan import ExecutionPlan
    from aotc.packaging.reader import PackagedModel


def kernel_facts(model: PackagedModel, plan: ExecutionPlan) -> list[dict[str, Any]]:
    """One dict a kernel and GPU: registers of a thread, bytes of local memory of a thread (spilled registers, and arrays that are
    indexed at run time), shared memory of a block, and which share of the threads that a multiprocessor holds can run at once."""
    from aotc.lowering.cuda.cubin import figures

    if not plan.cuda_kernels:
        return []
    found, codes = [], model.cubins(plan)
    steps = [step for entry in plan.entry_points for step in entry.steps if step.kind.name == "LAUNCH"]
    for number, kernel in enumerate(plan.cuda_kernels):
        for cubin in (number for number in kernel.cubins if not plan.cubins[number].ptx):
            taken = next(each for each in figures(codes[cubin]) if each.symbol == kernel.symbol)
            threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
            found.append(
                {
                    "kernel": kernel.symbol,
                    "sm": plan.cubins[cubin].sm,
                    "calls": sum(step.kernel == number for step in steps),
                    "threads": threads,
                    "registers": taken.registers,
                    "local_bytes": taken.local_bytes,
                    "shared_bytes": taken.shared_bytes + kernel.shared_bytes,
                    "occupancy": taken.occupancy(plan.cubins[cubin].sm, threads, kernel.shared_bytes),
                    "code_bytes": len(codes[cubin]),
                }
            )
    return found


def print_kernels(facts: list[dict[str, Any]]) -> None:
    if not facts:
        console.print("no CUDA kernels", highlight=False)
        return
    table = Table(title="CUDA kernels", title_justify="left")
    for heading in ("kernel", "sm", "calls", "threads", "registers", "local", "shared", "occupancy", "code"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for each in facts:
        local = f"[yellow]{bytes_text(each['local_bytes'])}[/]" if each["local_bytes"] else "-"
        occupancy = "?" if each["occupancy"] is None else f"{each['occupancy']:.0%}"
        sizes = bytes_text(each["shared_bytes"]) if each["shared_bytes"] else "-"
        figures = [each["sm"], each["calls"], each["threads"], each["registers"], local, sizes, occupancy, bytes_text(each["code_bytes"])]
        table.add_row(each["kernel"], *map(str, figures))
    console.print(table, highlight=False)
