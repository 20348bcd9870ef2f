"""The compiler from end to end: read this file first.

    source model -> Module -> passes -> kernels -> execution plan -> one .so

Each step is one call into the package that owns it; ``docs/architecture.md`` has the map.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aotc import targets
from aotc.cache_dir import cache_beside
from aotc.entry_points import EntryPoint, import_entry_points, with_states, with_versions
from aotc.errors import BuildError, InvalidOption
from aotc.frontends import import_model
from aotc.ir.digest import model_digest
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Function, Module
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.build import compile_functions
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.in_place import InPlace, choose_in_place
from aotc.lowering.joined import choose_joined
from aotc.lowering.planner import Planned, make_plan
from aotc.lowering.tuned import read_tuning, selections
from aotc.lowering.views import needs_kernel
from aotc.ops.custom import CustomOperator
from aotc.packaging.link import Linked, Parts, link
from aotc.packaging.manifest import TargetInfo, make_manifest
from aotc.packaging.operator_source import compile_sources, is_source
from aotc.packaging.planfile import write_plan
from aotc.packaging.stubs import stub_source
from aotc.packaging.weights_file import weights_path, write_weights
from aotc.passes.choose_winograd import winograd_growth
from aotc.passes.pipeline import optimise
from aotc.targets import Target
from aotc.version import __version__

PRECISIONS = ("fp32",)
DEVICES = ("auto", "cpu")

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how many of its parts are done, and how many there are."""


@dataclass(frozen=True)
class BuildReport:
    """What a build made. Sizes are bytes; ``arena_size`` and ``arena_lower_bound`` are ``None`` where they depend on the
    shapes of the inputs; ``weights_file`` is the file of weights beside the output, where they are too large for it. ``kernels_tuned`` are those whose choices come from a tuning file.
    ``winograd_growth`` has, by layer, by how much Winograd convolution makes its weights larger. ``seconds`` has the time of each
    stage; ``notes`` are what the user should know."""

    output: Path
    target: Target
    linked: Linked
    arena_size: int | None
    arena_lower_bound: int | None
    weights_size: int
    steps: int
    kernels_built: int
    kernels_cached: int
    seconds: Mapping[str, float]
    notes: tuple[str, ...] = field(default=())
    weights_file: Path | None = None
    kernels_tuned: int = 0
    winograd_growth: Mapping[str, int] = field(default_factory=dict)


def compile(
    model: Any,
    target: str | Target = "host",
    output: str | os.PathLike[str] = "model.so",
    inputs: Mapping[str, Sequence[Dim]] | None = None,
    *,
    args: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    precision: str = "fp32",
    device: str = "auto",
    jobs: int | None = None,
    metadata: Mapping[str, str] | None = None,
    compiler: str | None = None,
    operators: Sequence[CustomOperator] = (),
    states: Mapping[str, str] | None = None,
    versions: Sequence[Mapping[str, Sequence[int]]] = (),
    tuning: str | os.PathLike[str] | None = None,
    winograd: bool = True,
    progress: Progress | None = None,
) -> BuildReport:
    """Compile ``model`` into the shared library ``output``.

    ``model`` is the path of an ONNX file or of a saved ``torch.export`` program, an ``onnx.ModelProto``, an
    ``ExportedProgram``, a ``torch.nn.Module`` (with example ``args``, and ``dynamic_shapes`` as ``torch.export`` takes
    them), or a Module. ``inputs`` fixes or bounds the dims of inputs by name. ``jobs`` is the number of processes that
    build kernels, by default one a core; 0 builds them in this process, best for many small models one after another. It does
    not change the output. ``compiler`` names a gcc to link with instead of
    the ziglang wheel. ``operators`` are the user's own operators.

    ``model`` may also be several models by name: each becomes an entry point of the file, and they share weights and states;
    one that needs ``args`` or ``inputs`` of its own is an ``aotc.EntryPoint``. ``states`` makes inputs states of the session:
    each key is the name of an input, each value that of the output which is its next value. Buffers that a torch module
    changes are states by themselves. ``versions`` are shapes of inputs, by name, for which the file gets a specialised version
    beside the general one; it runs where the inputs have exactly these shapes, and shares the weights.

    ``tuning`` is a file that ``aotc tune`` wrote: kernels are then as it found them to be fastest. No such file is read unless it
    is named here, since the output depends on it. ``winograd=False`` forbids Winograd convolutions, whose weights are larger and
    whose results differ a little from those of direct sums: then the file has no weights but the model's own.

    Raises InvalidModel, UnsupportedModel, InvalidOption or BuildError; then nothing is written.
    """
    clock = _Clock(progress)
    chosen = targets.get(target) if isinstance(target, str) else target
    _check_options(precision, device)
    database = {} if tuning is None else read_tuning(tuning)
    output = Path(output)
    with cache_beside(output):
        module = clock("import", lambda: imported(model, EntryPoint(model, args, dynamic_shapes, inputs), states or {}, operators))
        identity = model_digest(module)
        module = with_versions(module, versions)
        module = clock("optimise", lambda: optimise(module, chosen, () if winograd else ("choose_winograd",)))
        functions, in_place = primitive_functions(module), choose_in_place(module)
        count, tuned = _KernelCount(clock.progress), selections(database, functions, chosen)
        kernels = clock("kernels", lambda: compile_kernels(functions, chosen, jobs, count, in_place, tuned))
        planned = clock("plan", lambda: make_plan(module, kernels, in_place))
        linked = clock(
            "link",
            lambda: package(planned, kernels, chosen, output, {**module.metadata, **(metadata or {})}, precision, compiler, identity),
        )
    entry = planned.plan.entry_points[0]
    distinct = len({id(kernel) for kernel in kernels.values()})  # equal functions share one
    return BuildReport(
        output, chosen, linked, entry.arena_size, entry.arena_lower_bound, planned.weights_size, len(entry.steps),
        count.built, distinct - count.built, clock.seconds, (*_notes(chosen, device), *_tuning_notes(tuning, tuned)),
        weights_path(output) if linked.weights_beside else None, len({id(kernels[function]) for function in tuned}),
        winograd_growth(module),
    )  # fmt: skip


def imported(model: Any, alone: EntryPoint, states: Mapping[str, str], operators: Sequence[CustomOperator]) -> Module:
    """The Module of one model, or of several by name."""
    if not isinstance(model, Mapping):
        return with_states(import_model(model, alone.inputs, alone.args, alone.dynamic_shapes, operators), states)
    if alone.args is not None or alone.dynamic_shapes is not None or alone.inputs:
        raise InvalidOption(
            "args, dynamic_shapes and inputs belong to one model: give each entry point its own as aotc.EntryPoint(model, args=...)"
        )
    return with_states(import_entry_points(model, operators), states)


def primitive_functions(module: Module) -> list[Function]:
    """The fused functions of a module that need a kernel, each once, in the order in which they run."""
    nodes = [node for function in all_functions(module) for node in post_order(function.body)]
    wholes = choose_joined(module).wholes
    return list(dict.fromkeys(cast("Function", cast("Call", node).op) for node in nodes if needs_kernel(node) and node not in wholes))


def compile_kernels(
    functions: Sequence[Function], target: Target, jobs: int | None, progress: Callable[[int, int, str], None], in_place: InPlace,
    tuned: Mapping[Function, Selection] | None = None,
) -> dict[Function, CompiledFunction]:  # fmt: skip
    """Machine code of all fused functions: by TVM, with what schedules shall choose in ``tuned``, or by the C compiler for users'
    operators that are written in C."""
    written = [function for function in functions if is_source(function)]
    lowered = compile_functions([f for f in functions if f not in written], target, jobs, progress, in_place, tuned)
    return lowered | compile_sources(written, target)


def package(
    planned: Planned, kernels: Mapping[Function, CompiledFunction], target: Target, output: Path,
    metadata: Mapping[str, str], precision: str, compiler: str | None, identity: str = "",
) -> Linked:  # fmt: skip
    """The plan, its weights and its kernels as one file; weights too large for that as a second one beside it."""
    plan_bytes = write_plan(planned.plan)
    with _work_folder(output) as folder:
        weights = write_weights(Path(folder) / "weights", planned.weights)
        manifest = make_manifest(
            planned.plan, plan_bytes, weights, _target_info(target), aotc_version=__version__, precision=precision, metadata=metadata, model_digest=identity
        )  # fmt: skip
        objects = list(dict.fromkeys(kernel.object_code for function in kernels.values() for kernel in function.kernels))
        return link(Parts(objects, stub_source(planned.plan), plan_bytes, manifest, weights.path), output, compiler=compiler)


def _work_folder(output: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder beside the output, on the same disk."""
    folder = output.absolute().parent
    try:
        return tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=folder)
    except OSError as error:
        raise BuildError(f"cannot write to the folder {folder}: {error.strerror}; make it, free space, or choose another output") from error


def _target_info(target: Target) -> TargetInfo:
    return TargetInfo(target.name, target.triple, target.mcpu, target.features, target.glibc, target.jetpack)


def _check_options(precision: str, device: str) -> None:
    if precision not in PRECISIONS:
        raise InvalidOption(f"the precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    if device not in DEVICES:
        raise InvalidOption(f"the device {device!r} is not one of {', '.join(DEVICES)}")


def _notes(target: Target, device: str) -> tuple[str, ...]:
    if device == "auto" and target.jetpack is not None:
        return (
            f"{target.name}: this version of aotc builds CPU kernels only; the GPU stays unused (--device cpu says so without this note)",
        )
    return ()


def _tuning_notes(path: str | os.PathLike[str] | None, tuned: Mapping[Function, Selection]) -> tuple[str, ...]:
    if path is None or tuned:
        return ()
    return (f"{path} has nothing better for this model on this target: all kernels are the untuned ones (`aotc tune` measures them)",)


class _Clock:
    """Times the stages and tells ``progress`` of them."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress or (lambda stage, done, total: None)
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        self.progress(stage, 0, 1)
        result = work()
        self.progress(stage, 1, 1)
        self.seconds[stage] = time.perf_counter() - begin
        return result


class _KernelCount:
    """Passes the progress of the kernels on and counts those that were not in the cache."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.built = progress, 0

    def __call__(self, done: int, total: int, label: str) -> None:
        self.built += label != "cached"
        self.progress("kernels", done, total)
