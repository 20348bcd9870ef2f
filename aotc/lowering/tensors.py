"""The tensor expressions of a fused function, operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import te, tirx

from aotc.errors import BuildError
from aotc.ir.expr import Call, Constant, Expr, Function, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import post_order
from aotc.lowering.custom import expression_tensors
from aotc.lowering.ops import EXPRESSIONS
from aotc.lowering.scope import DimScope
from aotc.ops.custom import CustomOpDef

QUANTISED = ("quantise", "dequantise", "requantise")
PRODUCTS = ("dequantise", "multiply")


@dataclass(frozen=True, slots=True)
class TensorGraph:
    """A fused function as tensor expressions. ``results`` has the tensors of each node of its body; the outputs are those of
    the body itself, but for copies where one is an input or comes twice."""

    inputs: tuple[te.Tensor, ...]
    outputs: tuple[te.Tensor, ...]
    results: dict[Expr, list[te.Tensor]]
    scope: DimScope

    def prim_func(self, with_dims: bool = False) -> tirx.PrimFunc:
        """Unscheduled TIR over the inputs, then the outputs: one block per stage.

        ``with_dims`` adds all variables of the scope as parameters: TVM's checks of a schedule ask for that where a dim is
        no buffer's extent.
        """
        func = te.create_prim_func([*self.inputs, *self.outputs, *self.scope.vars])
        return func if with_dims else without_dims(func)


def without_dims(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function over its buffers alone."""
    params = [param for param in func.params if tirx.is_buffer_var(param)]
    return tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)


def tensor_graph(function: Function, scope: DimScope) -> TensorGraph:
    """Raises BuildError for what a fused function must not hold."""
    values: dict[Expr, list[te.Tensor]] = {}
    for number, param in enumerate(function.params):
        if not isinstance(param.type, TensorType):
            raise BuildError(f"{where(function)}: the parameter {param.name} of a fused function must be a tensor, not {param.type}")
        shape = tuple(scope.expr(dim) for dim in param.type.shape)
        values[param] = [te.placeholder(shape, param.type.dtype, name=f"p{number}")]
    exact = _is_exact(function)
    for expr in post_order(function.body):
        if expr not in values:
            values[expr] = _tensors(expr, values, scope, function)
            if exact and isinstance(expr, Call) and expr.op.name in PRODUCTS:
                values[expr] = [_rounded(tensor) for tensor in values[expr]]
    inputs = [values[param][0] for param in function.params]
    return TensorGraph(tuple(inputs), tuple(_distinct(values[function.body], inputs)), values, scope)


def _is_exact(function: Function) -> bool:
    """Whether integers come out of floats or go into them: then every machine gives the same ones."""
    return any(isinstance(node, Call) and node.op.name in QUANTISED for node in post_order(function.body))


def where(function: Function) -> str:
    """What errors call a fused function."""
    return function.origin or function.name or "fused function"


def _tensors(expr: Expr, values: dict[Expr, list[te.Tensor]], scope: DimScope, function: Function) -> list[te.Tensor]:
    if isinstance(expr, Tuple):
        return [tensor for field in expr.fields for tensor in values[field]]
    if isinstance(expr, TupleGetItem):
        return [values[expr.value][expr.index]]
    if isinstance(expr, (Constant, Parameter)):
        return [_scalar(expr, function)]
    if not isinstance(expr, Call) or isinstance(expr.op, (Var, Function)):
        raise BuildError(f"{where(function)}: a fused function holds calls of operators only, not {type(expr).__name__}")
    if isinstance(expr.op, CustomOpDef):
        return expression_tensors(expr.op, expr, [tensor for arg in expr.args for tensor in values[arg]], scope)
    if expr.op.name not in EXPRESSIONS:
        raise BuildError(f"{expr.origin or where(function)}: the operator {expr.op.name} has no tensor expression")
    inputs = [tensor for arg in expr.args for tensor in values[arg]]
    results = list(flatten(expr.type))
    tensors = list(EXPRESSIONS[expr.op.name](expr.attrs, inputs, results, scope))
    for tensor, result in zip(tensors, results, strict=True):
        if str(tensor.dtype) != result.dtype or len(tensor.shape) != result.rank:
            raise BuildError(
                f"{expr.origin or where(function)}: the expression of {expr.op.name} gives {tensor.dtype} of rank {len(tensor.shape)}, not {result}"
            )
    return tensors


def _rounded(product: te.Tensor) -> te.Tensor:
    """The same where it is no float; else as a value of its own: compilers would make one operation of it and a sum, and others
    another one, which rounds otherwise."""
    dtype = str(product.dtype)
    if dtype != "float32":
        return product
    return te.compute(product.shape, lambda *i: tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", product(*i)), name="rounded")


def _scalar(expr: Constant | Parameter, function: Function) -> te.Tensor:
    data = expr.data
    if data.size != 1:
        raise BuildError(
            f"{where(function)}: a constant {expr.type} stands inside a fused function; only single elements may, the rest are parameters"
        )
    value = data.reshape(()).item()
    return te.compute(data.shape, lambda *_: tirx.const(value, str(data.dtype)), name="constant")


def _distinct(outputs: Sequence[te.Tensor], inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Outputs that are computed, each its own: copies of those that are inputs, or that come twice or feed others."""
    seen: list[te.Tensor] = list(inputs)
    result = []
    for output in outputs:
        if any(output.same_as(other) for other in seen):
            source = output
            output = te.compute(source.shape, lambda *i, source=source: source(*i), name="copy")
        seen.append(output)
        result.append(output)
    return result
