"""The order of the passes, and what runs them.

A pass is a function ``name(module, options) -> module`` in the file of its name. It returns the very same module where
it changed nothing. To add one: its file, its line in ``PIPELINE`` and its test.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from aotc import knobs
from aotc.errors import AotcError, InvalidOption
from aotc.ir import text
from aotc.ir.expr import Module
from aotc.ir.printer import module_text
from aotc.ir.verify import verify, verify_fused
from aotc.passes.canonicalise import canonicalise
from aotc.passes.choose_signs import choose_signs
from aotc.passes.choose_winograd import choose_winograd
from aotc.passes.convert_layout import convert_layout
from aotc.passes.eliminate_common import eliminate_common
from aotc.passes.eliminate_dead import eliminate_dead
from aotc.passes.fold_batch_norm import fold_batch_norm
from aotc.passes.fold_constants import fold_constants
from aotc.passes.fuse_attention import fuse_attention
from aotc.passes.fuse_operators import fuse_operators
from aotc.passes.join_bfloats import join_bfloats
from aotc.passes.lower_precision import lower_precision
from aotc.passes.merge_products import merge_products
from aotc.passes.number_iterations import number_iterations
from aotc.passes.options import Options, Pick, first, options_for
from aotc.passes.pack_weights import pack_weights
from aotc.passes.raise_integers import raise_integers
from aotc.passes.scale_weights import scale_weights
from aotc.passes.simplify_algebra import simplify_algebra
from aotc.passes.sink_constants import sink_constants
from aotc.passes.sink_reshapes import sink_reshapes
from aotc.passes.solve_shapes import solve_shapes
from aotc.targets.base import Target

Pass = Callable[[Module, Options], Module]

PIPELINE: tuple[Pass, ...] = (
    # Before shapes are solved: the number of an iteration is then a dim like any other.
    number_iterations,
    # Shapes first: what is computed from Shape nodes becomes dims, so that later passes see static attributes.
    solve_shapes,
    # Before the rules: they ask whether an operand is a constant, and exporters compute many.
    fold_constants,
    # Weights that bodies of control flow read stand inside them from here on.
    sink_constants,
    # One form for each thing, so that every later pattern needs to know one form only.
    canonicalise,
    # Reshapes move down and meet, so that dense layers and their epilogues stand side by side.
    sink_reshapes,
    # Patterns ask whether two operands are one: x - mean(x) that was written twice must be.
    eliminate_common,
    # Raises decomposed activations and norms. It needs canonical operands, and its results must not be decomposed again.
    simplify_algebra,
    # After the algebra, which merges scales and knows batch norms in no other form.
    fold_batch_norm,
    # Weights that were rewritten are computed here once; also what the two passes above left as constant expressions.
    fold_constants,
    eliminate_common,
    # After equal operands have become one: it asks who else reads the scores.
    fuse_attention,
    # After attention, which is found by its layers.
    merge_products,
    # Last of the clean stage: only now are the projections of multi-output operators settled.
    eliminate_dead,
    # Behind all that knows operators by their float form; before precision is lowered, since it decides what is float at all.
    raise_integers,
    # The graph is clean, so an operator's operands say what it is; layouts come after, since a block's width depends on the type.
    lower_precision,
    # Kernels of bytes take one sign. Constants that this moves join others while these are still plain.
    choose_signs,
    # Layouts change types, so all that reads axes (norms, algebra) is done. Packing follows: dense layers keep plain x.
    convert_layout,
    # Weights stand as kernels read them from here on.
    scale_weights,
    # Only blocked convolutions have a Winograd form.
    choose_winograd,
    pack_weights,
    # Transforms of weights made by the two passes above become data, and the reshapes they made meet others.
    fold_constants,
    canonicalise,
    # Layout conversion may have made equal transforms of one value.
    eliminate_common,
    # Each product gets casts of its own, which are not to become one again.
    join_bfloats,
    # Nothing may rewrite operators after this: kernels are cut here.
    fuse_operators,
)

CPU_ONLY = frozenset({"choose_signs", "choose_winograd", "pack_weights"})
"""Passes whose operators and layouts are for the kernels of CPUs."""

CLEAN = PIPELINE[: PIPELINE.index(raise_integers)]
"""The passes that leave a network's numbers and layouts as its author has them."""

REQUIRED = frozenset({"number_iterations", "fuse_operators"})
"""The planner and lowering need these. Every other pass only makes the module better, and may be left out."""

PASSES: dict[str, Pass] = {run.__name__: run for run in PIPELINE}


def optimise(
    module: Module, target: Target, skip: Sequence[str] = (), check: bool = False, pick: Pick = first, precision: str = "fp32"
) -> Module:
    """The whole pipeline for ``target``, its GPU if it has one, without the passes named in ``skip``; ``check`` verifies after
    each pass; ``pick`` chooses between algorithms; ``precision`` is that of float32 values.

    Raises InvalidOption for a pass that is unknown or required.
    """
    for name in skip:
        if name not in PASSES or name in REQUIRED:
            choices = ", ".join(sorted(set(PASSES) - REQUIRED))
            raise InvalidOption(f"the pass {name!r} cannot be left out; these can: {choices}")
    left_out = frozenset(skip) | (CPU_ONLY if target.gpu is not None else frozenset())
    options = options_for(target, left_out, check or knobs.VERIFY.get(), pick)
    return run_passes(module, PIPELINE, replace(options, precision=precision))


def run_passes(module: Module, passes: Sequence[Pass], options: Options) -> Module:
    """``passes`` one after the other. An error says which pass it came from, and after which one."""
    trace = _Trace()
    before = "the import"
    if options.verify:
        _checked("verify", before, lambda: verify(module))
    trace.dump("imported", module)
    for run in passes:
        if run.__name__ in options.skip:
            continue
        begin = time.perf_counter()
        after = _checked(run.__name__, before, lambda run=run, module=module: run(module, options))  # type: ignore[misc]
        trace.passed(run.__name__, module, after, time.perf_counter() - begin)
        if options.verify:
            check = verify_fused if run is fuse_operators else verify
            _checked(f"the check after {run.__name__}", before, lambda check=check, after=after: check(after))  # type: ignore[misc]
        module, before = after, run.__name__
    return module


class _Trace:
    """Prints and writes what AOTC_DEBUG and AOTC_DUMP ask for."""

    def __init__(self) -> None:
        self.level, self.folder, self.number = knobs.DEBUG.get(), knobs.DUMP.get(), 0

    def passed(self, name: str, before: Module, after: Module, seconds: float) -> None:
        if self.level:
            unchanged = " (unchanged)" if after is before else ""
            print(f"{name}: {seconds * 1000:.1f} ms{unchanged}", file=sys.stderr)
        if self.level >= 2 and after is not before:
            print(module_text(after)[0], file=sys.stderr)
        self.dump(name, after)

    def dump(self, name: str, module: Module) -> None:
        if self.folder is not None:
            folder = Path(self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            text.write(module, folder / f"{self.number:02d}_{name}.aotc")
        self.number += 1


def _checked(name: str, before: str, work: Callable[[], Module | None]) -> Module:
    try:
        return work()  # type: ignore[return-value]
    except AotcError as error:
        raise type(error)(f"{name}, after {before}: {error}") from error
