"""Draws an execution plan with Graphviz."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.lowering.plan import EntryPoint, ExecutionPlan, Step

FORMATS = (".svg", ".png", ".pdf", ".dot")


def write_graph(plan: ExecutionPlan, path: Path) -> None:
    """Steps as boxes, tensors as edges, one cluster an entry point. Raises InvalidOption where Graphviz is missing."""
    if path.suffix not in FORMATS:
        raise InvalidOption(f"--graph {str(path)!r}: expected a name that ends in {', '.join(FORMATS)}")
    source = dot_text(plan)
    try:
        if path.suffix == ".dot":
            path.write_text(source)
            return
        program = shutil.which("dot")
        if program is None:
            raise InvalidOption("--graph needs the program `dot` of Graphviz: run apt-get install graphviz, or write a .dot file")
        subprocess.run([program, f"-T{path.suffix[1:]}", "-o", str(path)], input=source, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InvalidOption(f"--graph {str(path)!r} cannot be written: {getattr(error, 'stderr', None) or error}") from error


def dot_text(plan: ExecutionPlan) -> str:
    """The graph in Graphviz's language. Weights and scratch memory are left out."""
    lines = ["digraph plan {", '  node [shape=box, style="rounded,filled", fillcolor="#eef3fa", fontname="sans-serif", fontsize=10];']
    lines += ['  edge [fontname="sans-serif", fontsize=8, color="#666666"];']
    for index, entry in enumerate(plan.entry_points):
        lines += _entry_lines(index, entry)
    return "\n".join([*lines, "}"]) + "\n"


def _entry_lines(index: int, entry: EntryPoint) -> list[str]:
    lines = [f"  subgraph cluster_{index} {{", f"    label={_quote(entry.name)};"]
    for kind, specs in (("in", entry.inputs), ("out", entry.outputs)):
        for number, spec in enumerate(specs):
            text = f"{spec.name}\n{spec.dtype}[{', '.join(map(str, spec.shape))}]"
            lines.append(f'    e{index}_{kind}{number} [label={_quote(text)}, fillcolor="#e6f4e6"];')
    writer: dict[tuple[str, int], str] = {("INPUT", number): f"e{index}_in{number}" for number in range(len(entry.inputs))}
    for number, step in enumerate(entry.steps):
        node = f"e{index}_s{number}"
        lines.append(f"    {node} [label={_quote(_title(step))}];")
        first_output = len(step.arguments) - step.outputs
        for argument in step.arguments[:first_output]:
            value = entry.values[argument]
            source = writer.get((value.storage.name, value.index))
            if source is not None and value.storage.name != "WEIGHT":
                shape = ", ".join(map(str, value.shape))
                lines.append(f"    {source} -> {node} [label={_quote(f'{value.dtype}[{shape}]')}];")
        for argument in step.arguments[first_output:]:
            value = entry.values[argument]
            writer[value.storage.name, value.index] = node
            if value.storage.name == "OUTPUT":
                lines.append(f"    {node} -> e{index}_out{value.index};")
    return [*lines, "  }"]


def _title(step: Step) -> str:
    return "\n".join(part for part in (step.label or step.kind.name.lower(), step.source) if part)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
