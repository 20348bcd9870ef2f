"""Dims inside a kernel: each distinct symbolic dim expression is one int32 variable, whose value the session hands over."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from aotc.ir.dims import Dim, DimExpr, floordiv, maximum, minimum, mod

INT32_MAX = 2**31 - 1


class DimScope:
    """Maps dims to tirx int32 expressions and back for one kernel.

    ``(b + 1) * 4`` becomes one variable, not arithmetic over ``b``: the session has computed its value already, once per
    shape. The order in which variables are made is the order of the kernel's dims.
    """

    def __init__(self) -> None:
        self._vars: dict[DimExpr, tirx.Var] = {}

    def expr(self, dim: Dim) -> Any:
        """``dim`` as a tirx int32 expression: a constant or a variable. Raises OverflowError for a constant beyond int32."""
        if not isinstance(dim, DimExpr):
            if not -INT32_MAX <= dim <= INT32_MAX:
                raise OverflowError(f"kernels index with int32: {dim} does not fit")
            return tirx.IntImm("int32", int(dim))
        if dim not in self._vars:
            self._vars[dim] = tirx.Var(f"d{len(self._vars)}", "int32")
        return self._vars[dim]

    @property
    def vars(self) -> tuple[tirx.Var, ...]:
        return tuple(self._vars.values())

    @property
    def dims(self) -> tuple[Dim, ...]:
        """What each of ``vars`` stands for."""
        return tuple(self._vars)

    def dim(self, expr: Any) -> Dim:
        """The dim that an expression over this scope's variables is. Raises ValueError for anything else."""
        if isinstance(expr, int):
            return expr
        if isinstance(expr, tirx.IntImm):
            return int(expr.value)
        if isinstance(expr, tirx.Var):
            for dim, var in self._vars.items():
                if var.same_as(expr):
                    return dim
        if isinstance(expr, tirx.Add):
            return self.dim(expr.a) + self.dim(expr.b)
        if isinstance(expr, tirx.Sub):
            return self.dim(expr.a) - self.dim(expr.b)
        if isinstance(expr, tirx.Mul):
            return self.dim(expr.a) * self.dim(expr.b)
        for kind, operation in _OPERATIONS.items():
            if isinstance(expr, kind):
                return operation(self.dim(expr.a), self.dim(expr.b))
        raise ValueError(f"{expr} is not an expression over the kernel's dims")


_OPERATIONS = {tirx.FloorDiv: floordiv, tirx.FloorMod: mod, tirx.Min: minimum, tirx.Max: maximum}
