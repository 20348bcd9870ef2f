"""``aotc inspect``: what is in a built file, read without loading it, for any target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from aotc.cli.common import AsJson, BuiltFile, bytes_text, console, print_json, shape_text, version_text
from aotc.cli.cuda_kernels import kernel_facts, print_kernels
from aotc.cli.plan_graph import write_graph
from aotc.lowering.plan import DEVICE_STEPS, DYNAMIC, Memory, StepKind
from aotc.packaging.board_check import gpu_code
from aotc.packaging.weights_file import weights_path

if TYPE_CHECKING:
    from aotc.lowering.plan import EntryPoint, ExecutionPlan, Step
    from aotc.packaging.reader import PackagedModel


def inspect(
    file: BuiltFile,
    steps: Annotated[bool, typer.Option("--steps", help="Also show a table of all steps.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Also show what each CUDA kernel takes of a GPU.")] = False,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="FILE", help="Draw steps and tensors with Graphviz: .svg, .png, .pdf or .dot.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show inputs, outputs, memory, sizes and needs of a built file.

    Example: `aotc inspect model.so --steps --graph model.svg`
    """
    from aotc.packaging.planfile import read_plan
    from aotc.packaging.reader import read_packaged

    model = read_packaged(file)
    plan = read_plan(model.plan)
    if graph is not None:
        write_graph(plan, Path(graph))
    if as_json:
        print_json(facts(model, plan))
        return
    _print_file(model, plan)
    for state in plan.states:
        first = "zeros" if state.initial is None else "values in the file"
        console.print(f"state {state.name}: {state.dtype} {shape_text(list(state.shape))}, begins as {first}", highlight=False)
    for entry in plan.visible_entry_points:
        _print_entry(entry, model)
        if steps:
            _print_steps(entry, plan)
    if kernels:
        print_kernels(kernel_facts(model, plan))


def facts(model: PackagedModel, plan: ExecutionPlan) -> dict[str, Any]:
    """Everything that ``inspect`` knows as plain data. Sizes are bytes; a dim or size that depends on inputs is a text."""
    manifest = dataclasses.asdict(model.manifest)
    for entry, planned in zip(manifest["entry_points"], plan.visible_entry_points, strict=True):
        entry["steps"] = step_facts(planned, plan)
        entry |= gpu_facts(planned)
    return {
        "file": str(model.path),
        "machine": model.info.machine,
        **{key: value for key, value in manifest.items() if key != "metadata"},
        "sizes": dataclasses.asdict(model.sizes),
        "cuda_kernels": kernel_facts(model, plan),
        "needed": list(model.elf.needed),
        "glibc_needed": version_text(model.elf.newest_glibc),
        "exported": list(model.elf.exported),
        "metadata": dict(model.manifest.metadata),
    }


def step_facts(entry: EntryPoint, plan: ExecutionPlan) -> list[dict[str, Any]]:
    """One dict a step: where it came from, what it runs, its output types, its work."""
    found = []
    for number, step in enumerate(entry.steps):
        outputs = [entry.values[value] for value in step.arguments[len(step.arguments) - step.outputs :]]
        found.append(
            {
                "number": number,
                "kind": step.kind.name.lower(),
                "source": step.source,
                "operators": step.label,
                "kernel": _kernel(step, plan),
                "device": processor(step),
                "outputs": [f"{value.dtype}[{', '.join(map(str, value.shape))}]" for value in outputs],
                "flops": _dim(step.flops),
                "tasks": _dim(step.tasks),
                "control": control_text(step, entry),
            }
        )
    return found


def processor(step: Step) -> str:
    """Who runs a step: ``cpu``, ``cuda``, or for a crossing from whom it goes to whom."""
    match step.kind:
        case StepKind.TO_DEVICE:
            return "cpu > cuda"
        case StepKind.TO_HOST:
            return "cuda > cpu"
        case StepKind.DELIVER:
            return "cuda > cpu" if step.target else "cpu"
    return "cuda" if step.kind in DEVICE_STEPS else "cpu"


def working_memory(arena: int | None, lower_bound: int | None, gpu: dict[str, Any]) -> str:
    """The arenas of both processors, with what no plan can go below where there is only the CPU's."""
    if gpu:
        parts = (gpu["device_arena"], "on the GPU"), (gpu["shared_arena"], "that both processors see"), (arena, "of the CPU's")
        return ", ".join(f"{bytes_text(size)} {where}" for size, where in parts)
    return bytes_text(arena) + ("" if arena is None else f"; no plan can do with less than {bytes_text(lower_bound)}")


def gpu_facts(entry: EntryPoint) -> dict[str, Any]:
    """What of an entry point is the GPU's: its launches, its arena, the arena that CPU and GPU see, crossings, and whether another
    entry point stands in where there is no GPU. Empty for one of the CPU."""
    kinds = [step.kind for step in entry.steps]
    if StepKind.LAUNCH not in kinds:
        return {}
    arenas = {
        memory.name.lower(): entry.arena(memory) if entry.arena_size is not None else None for memory in (Memory.DEVICE, Memory.SHARED)
    }
    return {
        "launches": kinds.count(StepKind.LAUNCH),
        "crossings": sum(kind in (StepKind.TO_DEVICE, StepKind.TO_HOST) for kind in kinds),
        "device_arena": arenas["device"],
        "shared_arena": arenas["shared"],
        "runs_without_gpu": entry.fallback is not None,
    }


def _kernel(step: Step, plan: ExecutionPlan) -> str:
    if step.kind is StepKind.LAUNCH:
        return plan.cuda_kernels[step.kernel].symbol
    return plan.kernels[step.kernel].symbol if step.kind is StepKind.KERNEL else ""


def control_text(step: Step, entry: EntryPoint) -> str:
    """What a step that runs no kernel does with sizes or the order of steps; empty for a kernel or a copy."""
    dims = [str(dim) for dim in step.dims]
    match step.kind.name:
        case "SHAPE":
            return f"{entry.symbols[step.target].name} = {f'element {dims[0]} of its argument' if step.arguments else dims[0]}"
        case "CHECK":
            return f"{dims[0]} must be {dims[1]}"
        case "BRANCH":
            return f"to {step.target} unless {'its argument' if step.arguments else ' < '.join(dims)}"
        case "JUMP":
            return f"to {step.target}"
    return ""


def _dim(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _print_file(model: PackagedModel, plan: ExecutionPlan) -> None:
    manifest, sizes = model.manifest, model.sizes
    target = manifest.target
    table = Table(show_header=False, box=None, pad_edge=False)
    jetpack = f", JetPack {target.jetpack}" if target.jetpack else ""
    table.add_row("built for", f"{target.name} ({target.triple}, {target.mcpu}{jetpack}), {manifest.precision}")
    if manifest.sm:
        table.add_row("GPU", f"CUDA {gpu_code(plan)}")
    table.add_row("built by", f"aotc {manifest.aotc_version}, ABI version {manifest.abi_version}")
    table.add_row(
        "needs",
        f"{', '.join(model.elf.needed)}; glibc {version_text(model.elf.newest_glibc)} or newer (the target has {version_text(target.glibc)})",
    )
    kinds = {
        "weights": sizes.weights,
        "kernels": sizes.kernels,
        **({"GPU code": sizes.cubins} if manifest.sm else {}),
        "runtime": sizes.runtime,
        "plan": sizes.plan,
        "manifest": sizes.manifest,
        "other": sizes.other,
    }
    if sizes.weights_beside:
        table.add_row("beside it", f"{weights_path(model.path).name} with weights of {bytes_text(sizes.weights_beside)}")
    table.add_row("size", f"{bytes_text(sizes.file)}: " + ", ".join(f"{name} {bytes_text(size)}" for name, size in kinds.items()))
    for key, value in manifest.metadata.items():
        table.add_row(key, value)
    console.print(f"[bold]{model.path}[/]", highlight=False)
    console.print(table, highlight=False)


def _print_entry(entry: EntryPoint, model: PackagedModel) -> None:
    table = Table(title=f"Entry point {entry.name}: {len(entry.steps)} steps", title_justify="left")
    for heading in ("", "name", "type", "shape"):
        table.add_column(heading)
    for kind, specs in (("input", entry.inputs), ("output", entry.outputs)):
        for spec in specs:
            table.add_row(kind, spec.name, spec.dtype, shape_text([_dim(dim) for dim in spec.shape]))
    console.print(table, highlight=False)
    for symbol in entry.symbols:
        upper = "any" if symbol.upper is None else str(symbol.upper)
        origin = ", computed by the model" if symbol.input == DYNAMIC else ""
        console.print(f"{symbol.name}: from {symbol.lower} to {upper}{origin}", highlight=False)
    gpu = gpu_facts(entry)
    console.print(f"working memory {working_memory(entry.arena_size, entry.arena_lower_bound, gpu)}", highlight=False)
    if gpu:
        stands_in = "; the CPU stands in where there is none" if gpu["runs_without_gpu"] else ""
        console.print(f"GPU: {gpu['launches']} launches, {gpu['crossings']} crossings{stands_in}", highlight=False)


def _operators(step: dict[str, Any]) -> str:
    return f"{step['kind']}: {step['control']}" if step["control"] else step["operators"] or step["kind"]


def _print_steps(entry: EntryPoint, plan: ExecutionPlan) -> None:
    table = Table()
    for heading in ("#", "on", "name", "operators", "outputs", "MFLOP", "tasks"):
        table.add_column(heading, justify="right" if heading in ("#", "MFLOP", "tasks") else "left")
    for step in step_facts(entry, plan):
        flops = f"{step['flops'] / 1e6:.2f}" if isinstance(step["flops"], int) else step["flops"]
        table.add_row(
            str(step["number"]), step["device"], step["source"], _operators(step), "\n".join(step["outputs"]), flops, str(step["tasks"])
        )
    console.print(table, highlight=False)
