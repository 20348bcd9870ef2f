"""The operators of calibration: their references against numpy and PyTorch, their kernels against the references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import aotc
from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Function, Module, Var
from aotc.ir.types import tensor
from aotc.ops.calibration import HALF, bin_edges

RNG = np.random.default_rng(0)
SPECIAL = np.float32([0.0, -0.0, 1e-30, -1e-30, 2.0**-20, 3e38, -3e38, np.nan, np.inf, -np.inf])


def values(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-3, 3, shape)).astype("float32")


@pytest.mark.parametrize("shape", [(2, 5, 300), (1, 1, 7), (301, 3, 1), (0, 4, 2)])
def test_counts_ranges_and_channels(shape: tuple[int, int, int]) -> None:
    x = values(*shape)
    counts, ranges, sums, largest = ops.observe.reference(None, x)
    begins, _ = bin_edges()
    edges = np.append(begins, np.inf)
    want = [np.histogram(np.abs(x[sign]), edges)[0] for sign in (~np.signbit(x), np.signbit(x))]
    np.testing.assert_array_equal(counts.sum(axis=0), np.concatenate(want))
    assert (ranges[:, 0].min(), ranges[:, 1].max()) == (x.min(initial=np.inf), x.max(initial=-np.inf))
    np.testing.assert_allclose(sums.sum(axis=0), x.sum(axis=(0, 2)), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(largest.max(axis=0), np.abs(x).max(axis=(0, 2), initial=0))


def test_types() -> None:
    n = symbol("n", 1)
    assert [str(t) for t in ops.observe(Var("x", tensor("float32", n, 3, 4))).type.fields] == [  # type: ignore[union-attr]
        f"int32[4, {2 * HALF}]", "float32[4, 2]", "float32[4, 3]", "float32[4, 3]",
    ]  # fmt: skip
    with pytest.raises(InvalidModel, match="outer, channels, inner"):
        ops.observe(Var("x", tensor("float32", 3)))


def test_rounding_is_pytorchs_where_the_switch_is_on() -> None:
    x = values(1000)
    for scale, zero in ((0.1, -3), (2.0, 127), (0.01, 0)):
        want = torch.fake_quantize_per_tensor_affine(torch.from_numpy(x), scale, zero, -128, 127).numpy()
        args = (x, np.float32(scale), np.int8(zero))
        found = ops.fake_quantise.reference(None, *args, np.float32(1))
        assert (np.abs(found - want) <= scale * 1.001).all() and (found == want).mean() > 0.999  # PyTorch multiplies by 1 / scale
        np.testing.assert_array_equal(ops.fake_quantise.reference(None, *args, np.float32(0)), x)


def test_kernels(tmp_path: Path) -> None:
    n, k = symbol("n", 1), symbol("k", 1)
    x, switch = Var("x", tensor("float32", n, 5, k)), Var("s", tensor("float32"))
    scale, zero = Var("scale", tensor("float32")), Var("zero", tensor("int8"))
    counted = Module({"main": Function((x,), ops.observe(x), "main")}, {"main": ("c", "r", "s", "l")})
    rounded = Module({"main": Function((x, scale, zero, switch), ops.fake_quantise(x, scale, zero, switch), "main")}, {"main": ("y",)})
    for module, name in ((counted, "c.so"), (rounded, "r.so")):
        aotc.compile(module, output=tmp_path / name, jobs=0)
    count, round_ = (aotc.load(tmp_path / name, num_threads=2) for name in ("c.so", "r.so"))
    for data in (values(2, 5, 100), values(77, 5, 1), np.resize(SPECIAL, (2, 5, 1))):
        want = ops.observe.reference(None, data)
        found = list(count.run({"x": data}).values())
        for a, b in zip((found[0], found[1], found[3]), (want[0], want[1], want[3]), strict=True):
            finite = ~np.isnan(b)
            np.testing.assert_array_equal(a[finite], b[finite])
        if np.isfinite(data).all():
            np.testing.assert_allclose(found[2], want[2], rtol=1e-4, atol=1e-3)
            for on in (0, 1):
                feeds = {"x": data, "scale": np.float32(0.3), "zero": np.int8(-7), "s": np.float32(on)}
                feeds = {key: np.asarray(value) for key, value in feeds.items()}
                result = round_.run(feeds)["y"]
                np.testing.assert_array_equal(result, ops.fake_quantise.reference(None, *feeds.values()))
