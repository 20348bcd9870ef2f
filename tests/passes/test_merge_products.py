"""Dense layers of one input as one product."""

from __future__ import annotations

from aotc.ir.verify import verify
from aotc.passes.merge_products import merge_products
from aotc.passes.options import Options
from tests.passes.helpers import agree, check, module, operators, weight

OPTIONS = Options(merge_products=True)
THREE = (
    "symbol n: 1..\n(%x: float32[n, 5, 4]) {\n %a = dense(%x, $q)\n %b = add(%a, $qb)\n %c = dense(%x, $k)\n %d = add($kb, %c)\n"
    " %e = dense(%x, $v)\n %f = add(%e, $vb)\n %g = multiply(%b, %d)\n %0 = add(%g, %f)\n return %0\n}"
)
WEIGHTS = {name: weight(6, 4) for name in "qkv"} | {f"{name}b": weight(6) for name in "qkv"}


def test_three_layers_with_biases_are_one_product() -> None:
    before = module(THREE, WEIGHTS)
    after = merge_products(before, OPTIONS)
    verify(after)
    agree(before, after)
    found = operators(after)
    assert found.count("matmul") == 1 and "dense" not in found and found.count("slice") == 3


def test_layers_of_other_shapes_or_inputs_stay() -> None:
    text = "(%x: float32[3, 4], %y: float32[3, 4]) {\n %a = dense(%x, $w)\n %b = dense(%y, $v)\n %c = dense(%x, $u)\n %d = add(%a, %b)\n %0 = concat(%d, %c) {axis=1}\n return %0\n}"
    check(merge_products, module(text, {"w": weight(6, 4), "v": weight(6, 4), "u": weight(5, 4)}), None, OPTIONS)


def test_one_row_stays() -> None:
    text = "(%x: float32[1, 4]) {\n %a = dense(%x, $w)\n %b = dense(%x, $v)\n %0 = add(%a, %b)\n return %0\n}"
    check(merge_products, module(text, {"w": weight(6, 4), "v": weight(6, 4)}), None, OPTIONS)


def test_nothing_without_the_option() -> None:
    check(merge_products, module(THREE, WEIGHTS), None, Options())
