"""Whether a built file will load and run on a board: what it needs beside what the board and its JetPack have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from aotc import targets
from aotc.errors import BuildError
from aotc.ir.dims import Dim, evaluate
from aotc.ir.types import TensorType
from aotc.lowering.cuda.cubin import ptx_isa, toolkit
from aotc.lowering.cuda.nvrtc import release_for
from aotc.lowering.plan import EntryPoint, ExecutionPlan, StepKind
from aotc.packaging.elf_check import check_output
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import PackagedModel
from aotc.targets.base import CUDA_PTX, JETPACK_CUDA, Target
from aotc.targets.boards import BOARDS, Board

USABLE = 0.75
"""The share of a board's memory that a model may take: the rest is the system's, the driver's and the app's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: ``right`` is ``None`` where nothing here can tell."""

    what: str
    right: bool | None
    text: str


def findings(model: PackagedModel, board: Board, jetpack: str | None) -> list[Finding]:
    """All that was checked, in the order in which a board would trip over it. Raises InvalidOption for a JetPack that the board has
    not."""
    target = targets.get(board.target, jetpack)
    plan, built_for = read_plan(model.plan), model.manifest.target
    found = [_processor(built_for.triple, target.triple)]
    if not found[0].right:
        return found
    missing = sorted(set(built_for.features) - set(target.features))
    told = f"it may use {', '.join(missing)}, which the board's cores lack: build it with --target {board.target}"
    found.append(Finding("instructions", not missing, told if missing else f"built for {built_for.mcpu}"))
    found.append(_libraries(model, target))
    if plan.cubins:
        found += [*_gpu(model, plan, board, str(target.jetpack)), Finding("steps", True, shares(plan))]
    return [*found, *_memory(model, plan, board)]


def _processor(built_for: str, board: str) -> Finding:
    right = built_for == board
    return Finding("processor", right, f"built for {built_for}" + ("" if right else f", the board is {board}: build it for the board"))


def _libraries(model: PackagedModel, target: Target) -> Finding:
    glibc = target.glibc
    try:
        check_output(model.path, glibc)
    except BuildError as error:
        cure = f": build it with --target {target.name} --jetpack {target.jetpack}" if model.elf.newest_glibc > glibc else ""
        return Finding("libraries", False, f"{error}{cure}")
    needed = ".".join(map(str, model.elf.newest_glibc))
    return Finding("libraries", True, f"needs glibc {needed}, the board has {glibc[0]}.{glibc[1]}; needs {', '.join(model.elf.needed)}")


def _gpu(model: PackagedModel, plan: ExecutionPlan, board: Board, jetpack: str) -> Iterator[Finding]:
    """Machine code of a GPU runs on exactly its own compute capability; PTX on that and newer ones, if the driver reads it."""
    held = gpu_code(plan)
    codes = [(cubin, code) for cubin, code in zip(plan.cubins, model.cubins(plan), strict=True)]
    made = {toolkit(code) for cubin, code in codes if cubin.sm == board.sm and not cubin.ptx}
    ptx = {ptx_isa(code) for cubin, code in codes if cubin.sm <= board.sm and cubin.ptx}
    if made:
        yield Finding("GPU code", True, f"it holds {held}, the board has sm_{board.sm}")
        yield _driver(max(made), board, jetpack)
    elif ptx:
        yield Finding(
            "GPU code", True, f"it holds {held}, of which the driver makes code for the board's sm_{board.sm} when a session begins"
        )
        yield _ptx_driver(max(ptx), board, jetpack)
    else:
        yield Finding("GPU code", False, f"it holds {held}, the board has sm_{board.sm}: build it with --sm {board.sm}")


def gpu_code(plan: ExecutionPlan) -> str:
    """What a file for a GPU holds: ``code for sm_72, sm_87 and PTX for sm_72 and newer``."""
    exact = sorted({cubin.sm for cubin in plan.cubins if not cubin.ptx})
    ptx = sorted({cubin.sm for cubin in plan.cubins if cubin.ptx})
    return f"code for {', '.join(f'sm_{sm}' for sm in exact)}" + "".join(f" and PTX for sm_{sm} and newer" for sm in ptx)


def _ptx_driver(isa: tuple[int, int], board: Board, jetpack: str) -> Finding:
    newest = CUDA_PTX[JETPACK_CUDA[jetpack]]
    text = f"PTX {isa[0]}.{isa[1]}; the driver of JetPack {jetpack} reads PTX up to {newest[0]}.{newest[1]}"
    return Finding("driver", isa <= newest, text if isa <= newest else f"{text}: build it with --sm {board.sm}")


def _driver(made: tuple[int, int], board: Board, jetpack: str) -> Finding:
    """A driver takes the code of all compilers of its own major version, and of older ones (CUDA Compatibility, minor version
    compatibility)."""
    driver = JETPACK_CUDA[jetpack]
    text = f"made by CUDA {made[0]}.{made[1]}; JetPack {jetpack} has a driver of CUDA {driver[0]}.{driver[1]}"
    if made[0] <= driver[0]:
        return Finding("driver", True, text)
    if release_for(board.sm, driver).major <= driver[0]:
        return Finding("driver", False, f"{text}: build it with --target {board.target} --jetpack {jetpack}")
    proof = "copy the file and aotc_runtime.py there and run it once"
    return Finding("driver", None, f"{text}; no compiler of that release can be had for this computer, so only the board can tell: {proof}")


def shares(plan: ExecutionPlan) -> str:
    """How many steps each processor runs, of a file for a GPU."""
    kinds = [step.kind for entry in plan.visible_entry_points for step in entry.steps]
    alone = ", which runs it all where no such GPU is found" if any(entry.fallback is not None for entry in plan.entry_points) else ""
    return f"{kinds.count(StepKind.LAUNCH)} launches are the GPU's, {kinds.count(StepKind.KERNEL)} kernels the CPU's{alone}"


def board_notes(model: PackagedModel, target: Target) -> tuple[str, ...]:
    """What the user of a file just built should know of the boards that its target stands for: what fails or cannot be proved there,
    each said once with the boards that it is true of."""
    said: dict[str, list[str]] = {}
    for board in BOARDS:
        if board.target == target.name:
            for finding in findings(model, board, target.jetpack):
                if not finding.right:
                    said.setdefault(finding.text, []).append(board.name)
    return tuple(f"{', '.join(names)}: {text}" for text, names in said.items())


def _memory(model: PackagedModel, plan: ExecutionPlan, board: Board) -> Iterator[Finding]:
    """Weights, inputs, outputs and what is alive at once, at the upper bounds of the model's dims."""
    weights, room = model.manifest.weights_size, int(board.memory_bytes * USABLE)
    most = weights + max((_entry_bytes(entry) for entry in plan.entry_points), default=0)
    what = f"weights, inputs, outputs and working memory take {most >> 20} MiB of the {board.memory_bytes >> 20} MiB that the board has"
    if any(symbol.upper is None for entry in plan.entry_points for symbol in entry.symbols):
        what += " for the smallest inputs, and more for larger ones: give the dims bounds to have the most"
    told = what if most <= room else f"{what}, and at most {room >> 20} MiB are free on it: use a smaller model or batch"
    yield Finding("memory", most <= room, told)


def _entry_bytes(entry: EntryPoint) -> int:
    """Bytes beside the weights. Dims without an upper bound count at their lower one."""
    values = {symbol.name: symbol.lower if symbol.upper is None else symbol.upper for symbol in entry.symbols}

    def size(dim: Dim) -> int:
        return evaluate(dim, values)

    border = sum(size(type_.size) * type_.itemsize for type_ in (TensorType(t.shape, t.dtype) for t in (*entry.inputs, *entry.outputs)))
    changes: dict[int, int] = {}
    for buffer in entry.buffers:
        changes[buffer.first_step] = changes.get(buffer.first_step, 0) + size(buffer.size)
        changes[buffer.last_step + 1] = changes.get(buffer.last_step + 1, 0) - size(buffer.size)
    return border + max(accumulate(changes[step] for step in sorted(changes)), default=0)
