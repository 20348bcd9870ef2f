"""Reductions and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fuzz.builder import FLOATS, Builder, Skip

Add = Callable[[Builder], object]
SOLID = (2, 1, 3, 4)
EPSILON = 2.0**-10


def reduction(operator: str, dtypes: Sequence[str], kind: str = "normal") -> Add:
    def add(g: Builder) -> object:
        a = g.value(dtypes, (2, 1, 3, 4, 0), kind=kind)
        axes = [axis - a.rank if g.flag() else axis for axis in range(a.rank) if g.flag()]
        if not axes:
            return g.node(operator, [a], keepdims=g.integer(0, 1), noop_with_empty_axes=g.integer(0, 1))
        return g.node(operator, [a, g.ints(*axes)], keepdims=g.integer(0, 1))

    return add


def softmax(operator: str) -> Add:
    def add(g: Builder) -> object:
        a = g.value(FLOATS, SOLID)
        return g.node(operator, [a], axis=g.integer(-a.rank, a.rank - 1))

    return add


def layer_norm(g: Builder) -> object:
    a = g.value(("float32", "float64", "float16"), SOLID, lambda v: 0 not in v.shape)
    axis = g.integer(0, a.rank - 1)
    scale, bias = (g.like(a, a.shape[axis:]) for _ in range(2))
    return g.node(
        "LayerNormalization", [a, scale, bias] if g.flag() else [a, scale], axis=axis - a.rank if g.flag() else axis, epsilon=EPSILON
    )


def rms_norm(g: Builder) -> object:
    if g.opset < 23:
        raise Skip
    a = g.value(("float32", "float64"), SOLID, lambda v: 0 not in v.shape)
    axis = g.integer(0, a.rank - 1)
    return g.node("RMSNormalization", [a, g.like(a, a.shape[axis:])], axis=axis, epsilon=EPSILON)


def batch_norm(g: Builder) -> object:
    a = g.value(("float32", "float64", "float16"), (4, 3, 2), lambda v: v.shape[1] > 0)
    c = (a.shape[1],)
    return g.node(
        "BatchNormalization", [a, g.like(a, c), g.like(a, c), g.like(a, c), g.constant(g.array(a.dtype, c, "positive"))], epsilon=EPSILON
    )


def instance_norm(g: Builder) -> object:
    a = g.value(("float32",), (4, 3), lambda v: 0 not in v.shape)
    c = (a.shape[1],)
    return g.node("InstanceNormalization", [a, g.like(a, c), g.like(a, c)], epsilon=EPSILON)


def group_norm(g: Builder) -> object:
    groups = g.choose((1, 2, 3))
    a = g.input(g.array("float32", (g.choose((1, 2)), groups * g.choose((1, 2)), *g.shape(g.choose((1, 2)), (3, 2, 5)))))
    c = (a.shape[1],) if g.opset >= 21 else (groups,)
    return g.node("GroupNormalization", [a, g.like(a, c), g.like(a, c)], num_groups=groups, epsilon=EPSILON)


def lp_norm(g: Builder) -> object:
    a = g.value(("float32", "float64"), SOLID, lambda v: 0 not in v.shape)
    return g.node("LpNormalization", [a], axis=g.integer(-a.rank, a.rank - 1), p=g.choose((2, 1)))


def lrn(g: Builder) -> object:
    a = g.value(("float32",), (4,), lambda v: 0 not in v.shape)
    return g.node("LRN", [a], size=g.choose((3, 1, 5)), alpha=0.1, beta=0.75, bias=1.0)


def mean_variance(g: Builder) -> object:
    a = g.value(("float32",), (4,), lambda v: 0 not in v.shape and v.array.size > 3)
    return g.node("MeanVarianceNormalization", [a])


OPERATORS: dict[str, Add] = {
    **{name: reduction(name, ("float32", "int64", "float64", "int32", "float16")) for name in ("ReduceSum", "ReduceMean")},
    **{name: reduction(name, ("float32", "float64", "int64", "int32", "int8", "uint8", "float16")) for name in ("ReduceMax", "ReduceMin")},
    **{name: reduction(name, ("float32", "int32")) for name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd")},
    "ReduceLogSum": reduction("ReduceLogSum", ("float32",), "positive"),
    "ReduceLogSumExp": reduction("ReduceLogSumExp", ("float32", "float64")),
    **{name: softmax(name) for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "LpNormalization": lp_norm,
    "LRN": lrn,
    "MeanVarianceNormalization": mean_variance,
}
