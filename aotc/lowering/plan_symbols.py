"""Where a plan's symbolic dims take their values from when it runs.

A symbol that is an input's dim by itself is read there. One that occurs only as ``a * s + c`` (the model takes for granted
that a dim is a multiple of 32, say) is replaced by ``(d - c) // a``, where ``d`` is the whole dim: the runtime checks that an
input's shape is what its expressions give, so a dim that is no such multiple is refused. Symbols that SHAPE steps set stand behind these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, DimExpr, Symbol, floordiv, substitute, symbol, symbols_of
from aotc.lowering import plan


def with_symbols(entry: plan.EntryPoint, dynamic: Mapping[str, Symbol]) -> plan.EntryPoint:
    """``entry`` with its symbols found in the inputs' shapes, and ``dynamic``, in which targets of SHAPE steps count. Raises InvalidModel for one that no input's shape tells."""
    found: dict[str, plan.Symbol] = {}
    solved: dict[str, Dim] = {}
    needed: dict[str, Symbol] = {}
    places = [(number, axis, dim) for number, spec in enumerate(entry.inputs) for axis, dim in enumerate(spec.shape)]
    for number, axis, dim in places:
        for name, sym in symbols_of(dim).items():
            needed.setdefault(name, sym)
            if dim == symbol(name):
                found.setdefault(name, plan.Symbol(name, sym.lower, sym.upper, number, axis))
    for number, axis, dim in places:
        linear = _linear(dim)
        if linear is not None and linear[0] not in found:
            name, scale, offset = linear
            lower, upper = needed[name].lower, needed[name].upper
            whole = plan.Symbol(name, scale * lower + offset, None if upper is None else scale * upper + offset, number, axis)
            found[name] = whole
            solved[name] = floordiv(symbol(name, whole.lower, whole.upper) - offset, scale)
    missing = sorted(set(needed) - set(found))
    if missing:
        raise InvalidModel(
            f"the dims {', '.join(missing)} appear in input shapes only inside expressions: name each one as an input's own dim (--input)"
        )
    steps = tuple(
        replace(step, target=step.target + len(found)) if step.kind is plan.StepKind.SHAPE else step for step in entry.steps
    )  # fmt: skip
    defined = tuple(plan.Symbol(sym.name, sym.lower, sym.upper, plan.DYNAMIC, 0) for sym in dynamic.values())
    return replace(_substituted(replace(entry, steps=steps), solved), symbols=(*found.values(), *defined))


def _linear(dim: Dim) -> tuple[str, int, int] | None:
    """(s, a, c) of ``a * s + c`` with a > 0; None for any other dim."""
    if not isinstance(dim, DimExpr):
        return None
    constant = sum(coefficient for monomial, coefficient in dim.terms if not monomial)
    rest = [(monomial, coefficient) for monomial, coefficient in dim.terms if monomial]
    if len(rest) != 1 or len(rest[0][0]) != 1 or not isinstance(rest[0][0][0], Symbol) or rest[0][1] <= 0:
        return None
    return rest[0][0][0].name, rest[0][1], constant


def _substituted(entry: plan.EntryPoint, solved: dict[str, Dim]) -> plan.EntryPoint:
    if not solved:
        return entry

    def dims(values: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(substitute(value, solved) for value in values)

    def one(value: Dim) -> Dim:
        return substitute(value, solved)

    return replace(
        entry,
        inputs=tuple(replace(spec, shape=dims(spec.shape)) for spec in entry.inputs),
        outputs=tuple(replace(spec, shape=dims(spec.shape)) for spec in entry.outputs),
        values=tuple(replace(value, shape=dims(value.shape), offset=one(value.offset)) for value in entry.values),
        buffers=tuple(replace(buffer, size=one(buffer.size)) for buffer in entry.buffers),
        steps=tuple(replace(step, dims=dims(step.dims), tasks=one(step.tasks), flops=one(step.flops)) for step in entry.steps),
    )
