"""Products, convolutions, pools, resizing, sampling, recurrent layers, losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.builder import Builder, Skip, Value

Add = Callable[[Builder], object]


def matmul(g: Builder) -> object:
    a = g.value(("float32", "float64", "float16", "int32", "int64", "uint32"), (2, 1, 3, 4))
    n = g.choose((3, 1, 4, 5, 16, 17, 0))
    k, lead = a.shape[-1], a.shape[:-2] if a.rank > 2 and g.flag() else ()
    shape = (k,) if g.choose((False, False, False, True)) else (*(1 if g.flag() else size for size in lead), k, n)
    return g.node("MatMul", [a, g.like(a, shape)])


def gemm(g: Builder) -> object:
    a = g.value(("float32", "float64", "float16"), (2,))
    across, along = g.integer(0, 1), g.integer(0, 1)
    m, k = a.shape[::-1] if across else a.shape
    n = g.choose((3, 1, 4, 8, 17))
    b = g.like(a, (n, k) if along else (k, n))
    c = g.like(a, g.choose(((n,), (1, n), (m, 1), (m, n), ()))) if g.flag() else None
    return g.node("Gemm", [a, b, c], transA=across, transB=along, alpha=g.choose((1.0, 0.5)), beta=g.choose((1.0, 2.0)))


def einsum(g: Builder) -> object:
    equation, *ranks = g.choose(
        (("ij,jk->ik", "ij", "jk"), ("bij,bjk->bik", "bij", "bjk"), ("ij->ji", "ij"), ("ij->", "ij"), ("i,j->ij", "i", "j"), ("bij,bkj->bik", "bij", "bkj"), ("ii->i", "ii"))
    )  # fmt: skip
    sizes = {letter: g.choose((3, 1, 2, 5, 8)) for letter in "bijk"}
    dtype = g.choose(("float32", "float64", "int64"))
    return g.node("Einsum", [g.input(g.array(dtype, tuple(sizes[letter] for letter in letters))) for letters in ranks], equation=equation)


def _image(g: Builder, channels: int, dtype: str = "float32", kind: str = "normal") -> Value:
    spatial = g.choose((2, 2, 2, 1, 3))
    return g.input(g.array(dtype, (g.choose((1, 2, 3)), channels, *g.shape(spatial, (5, 8, 3, 7, 10, 1))), kind))


def _window(g: Builder, a: Value) -> dict[str, object]:
    """Kernel, strides, pads or auto_pad that leave something."""
    sizes = a.shape[2:]
    kernel = [g.choose([n for n in (3, 1, 2, 5) if n <= size] or [1]) for size in sizes]
    strides = [g.choose((1, 2, 3)) for _ in sizes]
    if g.choose((False, False, True)):
        return {"kernel_shape": kernel, "strides": strides, "auto_pad": g.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))}
    pads = [g.choose(range(min(2, k - 1) + 1)) for _ in range(2) for k in kernel]
    dilations = [g.choose((1, 1, 2)) if (k - 1) * 2 + 1 <= size else 1 for k, size in zip(kernel, sizes)]
    return {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}


def conv(g: Builder) -> object:
    groups = g.choose((1, 1, 2, 3))
    inputs, outputs = groups * g.choose((1, 2, 3, 8)), groups * g.choose((1, 2, 4, 8, 5))
    a = _image(g, inputs, g.choose(("float32", "float32", "float64", "float16")))
    window = _window(g, a)
    weight = g.like(a, (outputs, inputs // groups, *window["kernel_shape"]))  # type: ignore[misc]
    return g.node("Conv", [a, weight, g.like(a, (outputs,))] if g.flag() else [a, weight], group=groups, **window)


def conv_transpose(g: Builder) -> object:
    groups = g.choose((1, 2))
    inputs, outputs = groups * g.choose((1, 2, 3)), g.choose((1, 2, 4))
    a = _image(g, inputs)
    window = _window(g, a)
    if "auto_pad" in window:
        raise Skip
    strides = window["strides"]
    extra = [g.integer(0, stride - 1) for stride in strides]  # type: ignore[attr-defined]
    weight = g.like(a, (inputs, outputs, *window["kernel_shape"]))  # type: ignore[misc]
    bias = [g.like(a, (outputs * groups,))] if g.flag() else []
    return g.node("ConvTranspose", [a, weight, *bias], group=groups, output_padding=extra, **window)


def max_pool(g: Builder) -> object:
    a = _image(g, g.choose((1, 2, 3, 8)), g.choose(("float32", "float64", "int8", "uint8")))
    outputs = g.choose((1, 1, 2))
    if outputs == 2:  # which of equal values counts differs
        a = g.input(g.rng.permutation(a.array.size).reshape(a.shape).astype("float32"))
    return g.node("MaxPool", [a], outputs=outputs, ceil_mode=g.integer(0, 1), **_window(g, a))


def average_pool(g: Builder) -> object:
    a = _image(g, g.choose((1, 2, 3, 8)))
    window = _window(g, a)
    if g.opset < 19:
        window.pop("dilations", None)
    return g.node("AveragePool", [a], ceil_mode=g.integer(0, 1), count_include_pad=g.integer(0, 1), **window)


def lp_pool(g: Builder) -> object:
    a = _image(g, g.choose((1, 2, 3)))
    window = _window(g, a)
    window.pop("dilations", None)
    if str(window.get("auto_pad", "")).startswith("SAME") and any(k < s for k, s in zip(window["kernel_shape"], window["strides"])):
        raise Skip  # ONNX Runtime then pads by less than nothing, and so begins within the image, here alone
    return g.node("LpPool", [a], p=g.choose((2, 1, 3)), **window)


def global_pool(g: Builder) -> object:
    a = g.value(("float32", "float64"), (4, 3), lambda v: 0 not in v.shape)
    return g.node(g.choose(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), [a])


def resize(g: Builder) -> object:
    a = _image(g, g.choose((1, 2, 3)))
    spatial = a.rank - 2
    mode = g.choose(("nearest", "linear", "cubic")) if spatial == 2 else g.choose(("nearest", "linear"))
    where = g.choose(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    options = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        options["nearest_mode"] = g.choose(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"))
    if g.flag():
        sizes = [g.choose((size, 2 * size, size + 3, max(1, size // 2))) for size in a.shape[2:]]
        return g.node("Resize", [a, None, None, g.ints(*a.shape[:2], *sizes)], **options)
    scales = [1.0, 1.0, *(g.choose((2.0, 1.0, 0.5, 1.5)) for _ in range(spatial))]
    if any(int(size * scale) < 1 for size, scale in zip(a.shape, scales)):
        raise Skip
    return g.node("Resize", [a, None, g.constant(scales, "float32")], **options)


def grid_sample(g: Builder) -> object:
    n, c = g.choose((1, 2)), g.choose((1, 3))
    a = g.input(g.array("float32", (n, c, *g.shape(2, (4, 3, 7)))))
    grid = g.input(g.array("float32", (n, *g.shape(2, (3, 2, 5)), 2), g.choose(("unit", "normal"))))
    mode = g.choose(("linear", "nearest", "cubic")) if g.opset >= 20 else g.choose(("bilinear", "nearest", "bicubic"))
    padding = g.choose(("zeros", "border", "reflection"))
    return g.node("GridSample", [a, grid], mode=mode, padding_mode=padding, align_corners=g.integer(0, 1))


def recurrent(operator: str, gates: int) -> Add:
    def add(g: Builder) -> object:
        steps, batch, width, hidden = g.choose((3, 1, 5)), g.choose((1, 2, 3)), g.choose((2, 4, 8, 5)), g.choose((2, 4, 8, 3))
        direction = g.choose(("forward", "reverse", "bidirectional"))
        d = 2 if direction == "bidirectional" else 1
        x = g.input(g.array("float32", (steps, batch, width)))
        w, r = (g.constant(g.array("float32", (d, gates * hidden, n), "unit")) for n in (width, hidden))
        b = g.constant(g.array("float32", (d, 2 * gates * hidden), "unit")) if g.flag() else None
        lengths = g.input(g.rng.integers(1, steps + 1, batch).astype(np.int32)) if g.flag() else None
        state = g.input(g.array("float32", (d, batch, hidden))) if g.flag() else None
        more = {"linear_before_reset": g.integer(0, 1)} if operator == "GRU" else {}
        outputs = 3 if operator == "LSTM" else 2
        return g.node(operator, [x, w, r, b, lengths, state], outputs=outputs, hidden_size=hidden, direction=direction, **more)

    return add


def loss(g: Builder) -> object:
    n, c, tail = g.choose((3, 1, 4)), g.choose((4, 2, 5)), g.shape(g.choose((0, 1, 2)), (2, 3))
    scores = g.input(g.array("float32", (n, c, *tail)))
    labels = g.input(g.rng.integers(0, c, (n, *tail)).astype(g.choose(("int64", "int32"))))
    weight = [g.constant(g.array("float32", (c,), "positive"))] if g.flag() else []
    operator = g.choose(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))
    return g.node(operator, [scores, labels, *weight], reduction=g.choose(("mean", "sum", "none")), ignore_index=g.choose((None, 1)))


def det(g: Builder) -> object:
    n = g.choose((2, 3, 1, 4))
    return g.node("Det", [g.input(g.array("float32", (*g.shape(g.choose((0, 1)), (2, 3)), n, n)))])


def attention(g: Builder) -> object:
    """Products, a scale, a mask and a softmax, as exporters write attention."""
    b, h, s, d = g.choose((1, 2)), g.choose((1, 2)), g.choose((3, 5, 8, 1)), g.choose((4, 8, 3))
    dtype = g.choose(("float32", "float64"))
    q, k, v = (g.input(g.array(dtype, (b, h, s, d))) for _ in range(3))
    (turned,) = g.node("Transpose", [k], perm=[0, 1, 3, 2])
    (scores,) = g.node("MatMul", [q, turned])
    (scores,) = g.node("Mul", [scores, g.constant(d**-0.5, dtype)])
    (weights,) = g.node("Softmax", [scores], axis=-1)
    return g.node("MatMul", [weights, v])


def fused(g: Builder) -> object:
    """Of com.microsoft's, those that are one expression."""
    a = g.value(("float32",), (2, 3), lambda v: v.shape[-1] > 0)
    name = g.choose(("Gelu", "FastGelu", "BiasGelu", "QuickGelu"))
    inputs = [a, g.like(a, a.shape[-1:])] if name == "BiasGelu" else [a]
    return g.node(name, inputs, domain="com.microsoft")


OPERATORS: dict[str, Add] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalAveragePool, GlobalMaxPool, GlobalLpPool": global_pool,
    "Resize": resize,
    "GridSample": grid_sample,
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3),
    "RNN": recurrent("RNN", 1),
    "SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss": loss,
    "Det": det,
    "attention in parts": attention,
    "com.microsoft's Gelu family": fused,
}
