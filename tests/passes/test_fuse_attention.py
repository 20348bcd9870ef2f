"""Attention found in its parts: which operators are left, and values by the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aotc.frontends.torch import import_torch
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.passes.fuse_attention import fuse_attention
from aotc.passes.options import Options
from aotc.passes.pipeline import PIPELINE, run_passes
from tests.passes.helpers import agree, check, module, operators

HEADS = "(%q: float32[2, s, 3, 8], %k: float32[2, t, 3, 8], %v: float32[2, t, 3, 4]"
SYMBOLS = "symbol s: 1..\nsymbol t: 1..\n"


def fused(before: Module) -> Module:
    after = fuse_attention(before, Options())
    agree(before, after)
    assert fuse_attention(after, Options()) is after
    return after


def attributes(found: Module) -> Any:
    (call,) = calls_of(found.main.body, ["attention"])
    return call.attrs


def test_heads_and_tokens_swapped() -> None:
    """Transposes of all operands and of the result, and factors of both operands of the scores."""
    after = fused(module(SYMBOLS + HEADS + """) {
 %a = transpose(%q) {axes=(0, 2, 1, 3)}
 %b = multiply(%a, float32[](0.5))
 %c = transpose(%k) {axes=(0, 2, 3, 1)}
 %d = multiply(%c, float32[](0.5))
 %e = matmul(%b, %d)
 %f = softmax(%e) {axis=3}
 %g = transpose(%v) {axes=(0, 2, 1, 3)}
 %h = matmul(%f, %g)
 %0 = transpose(%h) {axes=(0, 2, 1, 3)}
 return %0
}"""))  # fmt: skip
    assert operators(after) == ["attention"]
    assert attributes(after).scale == 0.25 and attributes(after).tokens_first == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("mask", "lines", "names"),
    [
        ("float32[2, 1, 1, t]", " %m = add(%e, %mask)", []),
        ("float32[s, t]", " %m = add(%mask, %e)", []),
        ("bool[2, 1, s, t]", " %m = where(%mask, %e, float32[](-1e9))", []),
        ("bool[s, t]", " %m = where(%mask, float32[](-1e9), %e)", ["logical_not"]),
    ],
)
def test_masks(mask: str, lines: str, names: list[str]) -> None:
    after = fused(module(SYMBOLS + f"""(%q: float32[2, 3, s, 8], %k: float32[2, 3, t, 8], %v: float32[2, 3, t, 4], %mask: {mask}) {{
 %c = transpose(%k) {{axes=(0, 1, 3, 2)}}
 %d = matmul(%q, %c)
 %e = divide(%d, float32[](4))
{lines}
 %f = softmax(%m) {{axis=-1}}
 %0 = matmul(%f, %v)
 return %0
}}"""))  # fmt: skip
    assert operators(after) == [*names, "attention"]
    assert attributes(after).scale == 0.25


def test_rank_three() -> None:
    after = fused(module(SYMBOLS + """(%q: float32[6, s, 8], %k: float32[6, t, 8], %v: float32[6, t, 4], %mask: float32[6, 1, t]) {
 %c = transpose(%k) {axes=(0, 2, 1)}
 %e = matmul(%q, %c)
 %m = add(%e, %mask)
 %f = softmax(%m) {axis=2}
 %0 = matmul(%f, %v)
 return %0
}"""))  # fmt: skip
    assert operators(after) == ["reshape"] * 4 + ["attention", "reshape"]


@pytest.mark.parametrize(
    "lines",
    [
        " %f = softmax(%e) {axis=2}\n %0 = matmul(%f, %v)\n return %0",
        " %f = softmax(%e) {axis=3}\n %0 = matmul(%f, %v)\n %r = (%0, %f)\n return %r",
        " %f = softmax(%e) {axis=3}\n %0 = matmul(%f, %v)\n %r = (%0, %e)\n return %r",
        " %m = add(%e, float32[2, 3, 5, 5] zeros)\n %g = multiply(%m, float32[](2))\n %f = softmax(%g) {axis=3}\n %0 = matmul(%f, %v)\n return %0",
    ],
)
def test_what_is_something_else(lines: str) -> None:
    """A softmax over rows, weights or scores that are results, a factor of the mask."""
    before = module(f"""(%q: float32[2, 3, 5, 8], %k: float32[2, 3, 8, 5], %v: float32[2, 3, 5, 4], %z: float32[5, 5]) {{
 %e = matmul(%q, %k)
{lines.replace("float32[2, 3, 5, 5] zeros", "%z")}
}}""")  # fmt: skip
    check(fuse_attention, before, None)


def test_keys_that_are_no_transpose_stay() -> None:
    check(fuse_attention, module("""(%q: float32[2, 3, 5, 8], %k: float32[2, 3, 8, 5], %v: float32[2, 3, 5, 4]) {
 %e = matmul(%q, %k)
 %f = softmax(%e) {axis=3}
 %0 = matmul(%f, %v)
 return %0
}"""), None)  # fmt: skip


class _Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = x.reshape(2, 7, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(2, 7, 32)


def test_torch() -> None:
    """torch's own attention, whose rows that see nothing are zeros."""
    imported = import_torch(_Attention(), (torch.randn(2, 7, 96), torch.rand(2, 1, 7, 7) < 0.5))
    after = run_passes(imported, PIPELINE[:-1], Options())
    assert "attention" in operators(after) and "softmax" not in operators(after)
    assert attributes(after).zero_rows
    agree(imported, after)
