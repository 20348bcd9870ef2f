"""The compiler from end to end: read this file first.

    source model -> Module -> passes -> kernels -> execution plan -> one .so

Each step is one call into the package that owns it; ``docs/architecture.md`` has the map.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aotc import targets
from aotc.cache_dir import cache_beside
from aotc.entry_points import EntryPoint, import_entry_points, with_states, with_versions
from aotc.errors import BuildError, InvalidOption
from aotc.frontends import import_model
from aotc.ir.digest import model_digest
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Function, Module
from aotc.ir.visitor import all_functions, calls_of, post_order
from aotc.lowering.build import Workers, compile_functions
from aotc.lowering.compiled import CompiledFunction, CompiledKernel, CudaKernel, Selection
from aotc.lowering.cuda.cubin import figures
from aotc.lowering.cuda.nvrtc import check_compilers
from aotc.lowering.identity import function_label
from aotc.lowering.in_place import InPlace, choose_in_place
from aotc.lowering.joined import choose_joined
from aotc.lowering.placement import Placed, Placement, place_devices
from aotc.lowering.planner import Lowered, Planned, make_plan
from aotc.lowering.tuned import Algorithms, Tuned, read_tuning, selections
from aotc.lowering.views import needs_kernel
from aotc.ops.custom import CustomOperator
from aotc.packaging.board_check import board_notes
from aotc.packaging.link import Linked, Parts, link
from aotc.packaging.manifest import TargetInfo, make_manifest
from aotc.packaging.operator_cuda import check_cpu_code, compile_cuda_sources, is_cuda_source
from aotc.packaging.operator_source import compile_sources, is_source
from aotc.packaging.planfile import write_plan
from aotc.packaging.reader import read_packaged
from aotc.packaging.stubs import stub_source
from aotc.packaging.weights_file import weights_path, write_weights
from aotc.passes.choose_winograd import winograd_growth
from aotc.passes.pipeline import optimise
from aotc.targets import Target, with_rounded_factors, without_gpu
from aotc.version import __version__

if TYPE_CHECKING:
    from aotc.quantisation import Int8Options, Quantised

PRECISIONS = ("fp32", "fp16", "tf32", "int8")
DEVICES = ("auto", "cpu", "cuda")

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how many of its parts are done, and how many there are."""


@dataclass(frozen=True)
class BuildReport:
    """What a build made. Sizes are bytes; ``arena_size`` and ``arena_lower_bound`` are ``None`` where they depend on the
    shapes of the inputs; ``weights_file`` is the file of weights beside the output, where they are too large for it. ``kernels_tuned`` are those whose choices come from a tuning file.
    ``winograd_growth`` has, by layer, by how much Winograd convolution makes its weights larger. ``placement`` says of each fused
    function of a build for a GPU where it runs, and why on the CPU; ``cuda_kernels`` are those of the file. ``quantised`` says what became int8. ``seconds`` has the time of each stage; ``notes`` are what the
    user should know."""

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
    placement: Mapping[Function, Placed] = field(default_factory=dict)
    cuda_kernels: tuple[CudaKernel, ...] = ()
    quantised: Quantised | None = None


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
    calibration: Any = None,
    int8: Int8Options | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Compile ``model`` into the shared library ``output``.

    ``model`` is the path of an ONNX file or of a saved ``torch.export`` program, an ``onnx.ModelProto``, an
    ``ExportedProgram``, a ``torch.nn.Module`` (with example ``args``, and ``dynamic_shapes`` as ``torch.export`` takes
    them), or a Module. ``inputs`` fixes or bounds the dims of inputs by name. ``jobs`` is the number of processes that
    build kernels, by default one a core; 0 builds them in this process, best for many small models one after another. It does
    not change the output. ``precision`` is ``fp32``, or for a GPU ``fp16``: sums and norms are then still float32, and inputs and
    outputs keep their types; or ``tf32``: float32, but that factors of products are rounded to 11 bits. ``device`` is ``cpu``; ``cuda`` for the target's GPU with the CPU for what it cannot do; or ``auto``, which is
    ``cuda`` where the target has a GPU, with all of it for the CPU too, which runs where there is no such GPU. ``compiler``
    names a gcc to link with instead of the ziglang wheel. ``operators`` are the user's own operators.

    ``model`` may also be several models by name: each becomes an entry point of the file, and they share weights and states;
    one that needs ``args`` or ``inputs`` of its own is an ``aotc.EntryPoint``. ``states`` makes inputs states of the session:
    each key is the name of an input, each value that of the output which is its next value. Buffers that a torch module
    changes are states by themselves. ``versions`` are shapes of inputs, by name, for which the file gets a specialised version
    beside the general one; it runs where the inputs have exactly these shapes, and shares the weights.

    ``tuning`` is a file that ``aotc tune`` wrote: kernels are then as it found them to be fastest. No such file is read unless it
    is named here, since the output depends on it. ``winograd=False`` forbids Winograd convolutions, whose weights are larger and
    whose results differ a little from those of direct sums: then the file has no weights but the model's own.

    ``precision="int8"`` makes integers of convolutions and matrix products. ``calibration`` is what it learns their ranges from: a list of
    batches, each a dict of an array for each input, a function that returns an iterable of them, or the path of a recipe that
    ``aotc quantize`` wrote. ``int8`` are the options, such as ``aotc.Int8Options(max_drop="1%")``.

    Raises InvalidModel, UnsupportedModel, InvalidOption or BuildError; then nothing is written.
    """
    clock = _Clock(progress)
    chosen = targets.get(target) if isinstance(target, str) else target
    _check_options(precision, device, chosen, tuning)
    _check_calibration(precision, calibration)
    database = {} if tuning is None else read_tuning(tuning)
    output = Path(output)
    with cache_beside(output):
        module = clock("import", lambda: imported(model, EntryPoint(model, args, dynamic_shapes, inputs), states or {}, operators))
        identity, random = model_digest(module), _random_notes(module)
        quantised = clock("quantise", lambda: _quantised(module, calibration, int8, clock)) if precision == "int8" else None
        module = module if quantised is None else quantised.module
        module = with_versions(module, versions)
        used, alone, count = chosen if device != "cpu" else without_gpu(chosen), without_gpu(chosen), _KernelCount(clock.progress)
        used = with_rounded_factors(used) if precision == "tf32" else used
        skip, picked = () if winograd else ("choose_winograd",), Algorithms(database, used)
        module = clock(
            "optimise", lambda: optimise(module, used, skip, pick=picked, precision="fp32" if precision == "int8" else precision)
        )
        with Workers() as workers:
            builds = [_lower(module, used, jobs, clock, count, database, workers)]
            if device == "auto" and builds[0].uses_gpu:  # the very functions and weights, for the CPU
                builds.append(_lower(module, alone, jobs, clock, count, database, workers))
        first, *fallback = builds
        planned = clock("plan", lambda: make_plan(module, first.compiled, first.in_place, *fallback))
        kernels = [kernel for each in builds for kernel in each.compiled.values()]
        linked = clock(
            "link",
            lambda: package(planned, kernels, chosen, output, {**module.metadata, **(metadata or {})}, precision, compiler, identity),
        )
    entry = planned.plan.entry_points[0]
    distinct = len({id(kernel) for kernel in kernels})  # equal functions share one
    launched = tuple({each.symbol: each for kernel in kernels for each in kernel.kernels if isinstance(each, CudaKernel)}.values())
    notes = (
        *random, *(quantised.notes if quantised is not None else ()), *_placement_notes(first), *_spill_notes(launched), *_tuning_notes(tuning, first, len(picked.other)),
        *board_notes(read_packaged(output), chosen),
    )  # fmt: skip
    return BuildReport(
        output, chosen, linked, entry.arena_size, entry.arena_lower_bound, planned.weights_size, len(entry.steps),
        count.built, distinct - count.built, clock.seconds, notes, weights_path(output) if linked.weights_beside else None,
        len({id(first.compiled[function]) for function in first.tuned}), winograd_growth(module), first.placement,
        launched, quantised,
    )  # fmt: skip


@dataclass(frozen=True)
class _Build(Lowered):
    """A module lowered for one target: what tuning chose for its functions, and where they run."""

    tuned: Mapping[Function, Selection]
    placement: Placement

    @property
    def uses_gpu(self) -> bool:
        return any(placed.on_device for placed in self.placement.values())


def _lower(
    module: Module, target: Target, jobs: int | None, clock: _Clock, count: _KernelCount, database: Mapping[str, Tuned], workers: Workers
) -> _Build:
    """The kernels of an optimised module's functions: of the target's GPU, where it has one and it pays."""
    functions = primitive_functions(module)
    placement = place_devices(module) if target.gpu is not None else {}
    in_place = {f: index for f, index in choose_in_place(module).items() if not (f in placement and placement[f].on_device)}
    tuned = selections(database, functions, target) if target.gpu is None else {}
    kernels = clock("kernels", lambda: compile_kernels(functions, target, jobs, count, in_place, tuned, placement, workers))
    found = {f: Placed(kernels[f].on_device, placement[f].reason or kernels[f].not_on_cuda) for f in functions if f in placement}
    return _Build(module, kernels, in_place, tuned, found)


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
    tuned: Mapping[Function, Selection] | None = None, placement: Placement | None = None, workers: Workers | None = None,
) -> dict[Function, CompiledFunction]:  # fmt: skip
    """Machine code of all fused functions: by TVM, with what schedules shall choose in ``tuned``, or by the C compiler for users'
    operators that are written in C, by NVRTC for those in CUDA. Those go to the target's GPU that ``placement`` gives it."""
    alone = without_gpu(target)
    launched = [f for f in functions if placement and placement[f].on_device]
    on_cpu = [f for f in functions if f not in set(launched)]
    check_cpu_code(on_cpu)
    with contextlib.nullcontext(workers) if workers is not None else Workers() as processes:
        lowered = compile_functions([f for f in on_cpu if not is_source(f)], alone, jobs, progress, in_place, tuned, processes)
        lowered |= compile_functions([f for f in launched if not is_cuda_source(f)], target, jobs, progress, workers=processes)
    lowered |= compile_sources([f for f in on_cpu if is_source(f)], alone)
    return lowered | compile_cuda_sources([f for f in launched if is_cuda_source(f)], target)


def package(
    planned: Planned, kernels: Iterable[CompiledFunction], target: Target, output: Path,
    metadata: Mapping[str, str], precision: str, compiler: str | None, identity: str = "",
) -> Linked:  # fmt: skip
    """The plan, its weights and its kernels as one file; weights too large for that as a second one beside it."""
    plan_bytes = write_plan(planned.plan)
    with _work_folder(output) as folder:
        weights = write_weights(Path(folder) / "weights", planned.weights)
        manifest = make_manifest(
            planned.plan, plan_bytes, weights, _target_info(target), aotc_version=__version__, precision=precision, metadata=metadata, model_digest=identity
        )  # fmt: skip
        machine_code = (kernel for function in kernels for kernel in function.kernels if isinstance(kernel, CompiledKernel))
        objects = list(dict.fromkeys(kernel.object_code for kernel in machine_code))
        parts = Parts(objects, stub_source(planned.plan), plan_bytes, manifest, weights.path, planned.cubins)
        return link(parts, output, compiler=compiler)


def _work_folder(output: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder beside the output, on the same disk."""
    folder = output.absolute().parent
    try:
        return tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=folder)
    except OSError as error:
        raise BuildError(f"cannot write to the folder {folder}: {error.strerror}; make it, free space, or choose another output") from error


def _target_info(target: Target) -> TargetInfo:
    return TargetInfo(target.name, target.triple, target.mcpu, target.features, target.glibc, target.jetpack)


def _check_options(precision: str, device: str, target: Target, tuning: str | os.PathLike[str] | None) -> None:
    if precision not in PRECISIONS:
        raise InvalidOption(f"the precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    if device not in DEVICES:
        raise InvalidOption(f"the device {device!r} is not one of {', '.join(DEVICES)}")
    if device == "cuda" and target.gpu is None:
        raise InvalidOption(f"the target {target.name} has no GPU that aotc knows: build with --device cpu, or for a Jetson")
    if device == "cpu" or target.gpu is None:
        if precision not in ("fp32", "int8"):
            raise InvalidOption(
                f"CPUs compute in float32; {precision} is for the GPU of a Jetson: build with --device cuda, or with --precision fp32"
            )
        return
    if tuning is not None:
        raise InvalidOption(f"{os.fspath(tuning)} has choices for kernels of the CPU: build with --device cpu, or without --tuning")
    check_compilers(target.gpu)
    if precision == "tf32":
        with_rounded_factors(target)


def _check_calibration(precision: str, calibration: Any) -> None:
    if precision == "int8" and calibration is None:
        raise InvalidOption(
            "int8 needs calibration: some dozens of typical inputs (--calib), or the recipe that `aotc quantize` made of them"
        )
    if precision != "int8" and calibration is not None:
        raise InvalidOption(f"calibration is for --precision int8, not {precision}")


def _quantised(module: Module, calibration: Any, options: Int8Options | None, clock: _Clock) -> Quantised:
    from aotc.quantisation import quantise  # it compiles the float network itself

    return quantise(module, calibration, options, clock.progress)


def _random_notes(module: Module) -> tuple[str, ...]:
    """Whose random numbers are none to those who run the file."""
    drawn = [node for function in all_functions(module) for node in calls_of(function.body, ("random_bits",))]
    names = list(dict.fromkeys(node.origin or node.op.name for node in drawn))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more}: the random numbers are the same in every run",) if names else ()


def _placement_notes(build: _Build) -> tuple[str, ...]:
    """How many functions the CPU runs of a build for a GPU, by the reason."""
    on_cpu = [(function, placed) for function, placed in build.placement.items() if not placed.on_device]
    reasons = dict.fromkeys(placed.reason for _, placed in on_cpu)
    notes = []
    for reason in reasons:
        names = [function.origin or function_label(function) for function, placed in on_cpu if placed.reason == reason]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        notes.append(f"on the CPU of {len(build.placement)} kernels: {', '.join(names[:3])}{more}: {reason}")
    return tuple(notes)


def _spill_notes(kernels: Iterable[CudaKernel]) -> tuple[str, ...]:
    """CUDA kernels whose threads have too few registers."""
    taken = [(sm, each) for kernel in kernels for sm, cubin in kernel.cubins for each in figures(cubin) if each.local_bytes]
    return tuple(
        f"the CUDA kernel {each.symbol} keeps {each.local_bytes} bytes a thread in local memory on sm_{sm}: it spills registers, or "
        "indexes an array at run time" for sm, each in taken
    )  # fmt: skip


def _tuning_notes(path: str | os.PathLike[str] | None, build: _Build, algorithms: int) -> tuple[str, ...]:
    if path is None or build.tuned or algorithms:
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
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin
        return result


class _KernelCount:
    """Passes the progress of the kernels on and counts those that were not in the cache."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.built = progress, 0

    def __call__(self, done: int, total: int, label: str) -> None:
        self.built += label != "cached"
        self.progress("kernels", done, total)
