"""Rewriting of tirx expressions: substitution, inlining of stages, flat addresses. Shared values are computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim.expr import BinaryOpExpr, CmpExpr
from tvm_ffi import StructuralKey
from tvm_ffi.structural import structural_walk

from aotc.targets.schedules.stages import Stage

Expr = Any
Load = Callable[[tirx.Buffer, "list[Expr]"], Expr]

IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


class Rewriter:
    """Replaces variables by ``env`` and loads by what ``load`` returns; every ``Let`` gets a fresh variable.

    ``inlined`` are stages whose loads become their values. A value that is loaded again in reach of its first load is bound
    to a name there: without that, a chain of operators each used twice would double at every step.
    """

    def __init__(self, load: Load, inlined: Mapping[tirx.Buffer, Stage] | None = None) -> None:
        self.load = load
        self.inlined = inlined or {}
        self.scopes: list[_Scope] = []

    def expression(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        """``expr`` rewritten, with the bindings that it needs."""
        self.scopes.append(_Scope())
        result = self._visit(expr, env)
        return self.scopes.pop().close(result)

    def _visit(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        if isinstance(expr, tirx.Var):
            return env.get(expr, expr)
        if isinstance(expr, tvm.ir.TensorLoad):
            return self._load(expr.source, [self._visit(i, env) for i in expr.indices])
        if isinstance(expr, (BinaryOpExpr, CmpExpr, tirx.And, tirx.Or)):
            return _binary(type(expr), self._visit(expr.a, env), self._visit(expr.b, env))
        if isinstance(expr, (tirx.Not, tirx.BitwiseNot)):
            return type(expr)(self._visit(expr.a, env))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(str(expr.ty), self._visit(expr.value, env))
        if isinstance(expr, tirx.Select):
            return tirx.Select(*(self._visit(part, env) for part in (expr.condition, expr.true_value, expr.false_value)))
        if isinstance(expr, tirx.Let):
            name = tirx.Var(expr.var.name, str(expr.var.ty))
            return tirx.Let(name, self._visit(expr.value, env), self.expression(expr.body, {**env, expr.var: name}))
        if isinstance(expr, tvm.ir.Call):
            return self._call(expr, env)
        if isinstance(expr, (tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm)):
            return expr
        raise TypeError(f"{type(expr).__name__} is no expression that can be rewritten")

    def _call(self, expr: tvm.ir.Call, env: Mapping[tirx.Var, Expr]) -> Expr:
        if expr.op.same_as(IF_THEN_ELSE):
            condition = self._visit(expr.args[0], env)
            if isinstance(condition, tirx.IntImm):
                return self._visit(expr.args[1 if condition.value else 2], env)
            # Neither branch may be evaluated where the other is taken: each keeps its bindings to itself.
            return tirx.if_then_else(condition, *(self.expression(branch, env) for branch in expr.args[1:]))
        args = [self._visit(arg, env) for arg in expr.args]
        return tvm.ir.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span, expr.ty)

    def _load(self, buffer: tirx.Buffer, indices: list[Expr]) -> Expr:
        stage = self.inlined.get(buffer)
        if stage is None:
            return self.load(buffer, indices)
        key = StructuralKey([buffer, *indices])  # type: ignore[call-arg]
        for scope in reversed(self.scopes):
            if key in scope.names:
                return scope.names[key]
        which = [output.same_as(buffer) for output in stage.outputs].index(True)
        value = self._visit(stage.values[which], dict(zip((axis.var for axis in stage.axes), indices, strict=True)))
        return self.scopes[-1].bind(key, value)


class _Scope:
    """Names for values that stay in reach: the whole expression, or one branch of a condition."""

    def __init__(self) -> None:
        self.names: dict[StructuralKey, Expr] = {}
        self.bindings: list[tuple[tirx.Var, Expr]] = []

    def bind(self, key: StructuralKey, value: Expr) -> Expr:
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            self.names[key] = value
            return value
        if str(value.ty) == "bool" and not _names(value):
            self.names[key] = value  # TVM fails on a name for a truth value where it makes a vector of it; comparing again is cheap
            return value
        name = tirx.Var("t", str(value.ty))
        self.names[key] = name
        self.bindings.append((name, value))
        return name

    def close(self, body: Expr) -> Expr:
        for name, value in reversed(self.bindings):
            body = tirx.Let(name, value, body)
        return body


def _binary(kind: type, a: Expr, b: Expr) -> Expr:
    if kind is tirx.And:
        return _logical(a, b, absorbing=False) if isinstance(a, tirx.IntImm) or isinstance(b, tirx.IntImm) else tirx.And(a, b)
    if kind is tirx.Or:
        return _logical(a, b, absorbing=True) if isinstance(a, tirx.IntImm) or isinstance(b, tirx.IntImm) else tirx.Or(a, b)
    return kind(a, b)


def _logical(a: Expr, b: Expr, absorbing: bool) -> Expr:
    known, other = (a, b) if isinstance(a, tirx.IntImm) else (b, a)
    return known if bool(known.value) == absorbing else other


def substitute(expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
    return Rewriter(tirx.BufferLoad).expression(expr, env)


def flat_index(indices: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The row-major offset of an element."""
    offset: Expr = tirx.const(0, "int32")
    for position, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        offset = index if position == 0 else offset * extent + index
    return offset


def local_buffer(dtype: str, size: Expr, name: str) -> tirx.Buffer:
    """Memory for values. Truth values are bytes: TVM mixes up vectors of them in buffers that it has not flattened itself."""
    return tirx.decl_buffer([size], "uint8" if dtype == "bool" else dtype, name)


def read(buffer: tirx.Buffer, at: Expr, dtype: str) -> Expr:
    """An element of a buffer that ``local_buffer`` made for ``dtype``."""
    value = tirx.BufferLoad(buffer, [at])
    return tirx.NE(value, tirx.const(0, "uint8")) if dtype == "bool" and str(buffer.dtype) == "uint8" else value


def write(buffer: tirx.Buffer, at: Expr, value: Expr) -> tirx.Stmt:
    if str(value.ty) == "bool" and str(buffer.dtype) == "uint8":
        value = tirx.Select(value, tirx.const(1, "uint8"), tirx.const(0, "uint8"))
    return tirx.BufferStore(buffer, value, [at])


FEW_NAMES = 4
"""Named values in an expression up to which they may stay (an exp has four)."""


class Computation:
    """Values whose named parts are taken out where there are many: ``emit`` stores each in a local buffer, then uses it.

    TVM's code generator replaces names by what they stand for while it analyses what comes after: its time grows
    exponentially with the depth of named values (minutes for a mish). A load from a buffer ends that, and LLVM makes it a
    register.
    """

    def __init__(self, values: Sequence[Expr]) -> None:
        self.steps: list[tuple[tirx.Var, Expr]] = []
        hoister = _Hoister(self.steps)
        self.values = tuple(hoister.expression(value, {}) if _names(value) > FEW_NAMES else value for value in values)

    def temporaries(self, size: int) -> list[tirx.Buffer]:
        """A local buffer for each part, with room for ``size`` lanes."""
        return [local_buffer(str(var.ty), size, var.name) for var, _ in self.steps]

    def emit(self, env: Mapping[tirx.Var, Expr], buffers: Sequence[tirx.Buffer], at: Expr) -> tuple[list[tirx.Stmt], list[Expr]]:
        """The statements that compute the parts into ``buffers`` at index ``at``, and the values."""
        known = dict(env)
        statements = []
        for (var, value), buffer in zip(self.steps, buffers, strict=True):
            statements.append(write(buffer, at, substitute(value, known)))
            known[var] = read(buffer, at, str(var.ty))
        return statements, [substitute(value, known) for value in self.values]


def _names(expr: Expr) -> int:
    found: list[tirx.Var] = []
    structural_walk(expr, (tirx.Let, lambda let: found.append(let.var)))
    return len(found)


class _Hoister(Rewriter):
    """Takes named values out of an expression, but for those that only one branch of a condition needs."""

    def __init__(self, steps: list[tuple[tirx.Var, Expr]]) -> None:
        super().__init__(tirx.BufferLoad)
        self.steps, self.branches = steps, 0

    def _visit(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        if not isinstance(expr, tirx.Let) or self.branches:
            return super()._visit(expr, env)
        value = self._visit(expr.value, env)
        name = tirx.Var(expr.var.name, str(expr.var.ty))
        self.steps.append((name, value))
        return self._visit(expr.body, {**env, expr.var: name})

    def _call(self, expr: tvm.ir.Call, env: Mapping[tirx.Var, Expr]) -> Expr:
        branching = expr.op.same_as(IF_THEN_ELSE)
        self.branches += branching
        result = super()._call(expr, env)
        self.branches -= branching
        return result
