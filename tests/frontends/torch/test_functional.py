"""In-place operators: read directly where no alias can see the write, else left to torch's functionalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aotc.frontends.torch.functional import functional_form
from aotc.frontends.torch.program import decomposed, exported_program
from tests.frontends.torch.check import Wrapped, check

torch.manual_seed(0)
X = torch.randn(2, 3)


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu_().mul_(x).sigmoid_()


def written_name_used_later(x: torch.Tensor) -> Any:
    y = x * 2
    z = y.relu_()
    return z + 1, y


def flattened_view_written(x: torch.Tensor) -> Any:
    y = x * 2
    y.view(-1).relu_()
    return y


def base_written_view_used(x: torch.Tensor) -> Any:
    y = x * 2
    view = y.t()
    y.relu_()
    return view


def view_used_before_only(x: torch.Tensor) -> Any:
    y = x * 2
    total = y.t().sum(1)
    y.relu_()
    return y, total


def identity_that_aliases(x: torch.Tensor) -> Any:
    y = x * 2
    same = torch.nn.functional.dropout(y, 0.5, training=False)
    same.neg_()
    return y


def both_names_written(x: torch.Tensor) -> Any:
    y = x * 2
    z = y.relu_()
    z.add_(1)
    return y


def argument_written(x: torch.Tensor) -> Any:
    return x.add_(1) * 2


def narrower_result(x: torch.Tensor) -> Any:
    y = torch.zeros(2, 3, dtype=torch.float16)
    return y.copy_(x), torch.ones(3).fill_(4)


DIRECT: list[Callable[..., Any]] = [chain, view_used_before_only, narrower_result]
LEFT: list[Callable[..., Any]] = [
    flattened_view_written,
    base_written_view_used,
    identity_that_aliases,
    argument_written,
]


@pytest.mark.parametrize("function", [*DIRECT, *LEFT, written_name_used_later, both_names_written], ids=lambda function: function.__name__)
def test_values(function: Callable[..., Any]) -> None:
    check(function, (X,), rtol=1e-3 if function is narrower_result else 1e-6)


@pytest.mark.parametrize("function", [*DIRECT, *LEFT], ids=lambda function: function.__name__)
def test_way(function: Callable[..., Any]) -> None:
    program = exported_program(Wrapped(function), (X,), None, None)
    assert (decomposed(program) is program) == (function in DIRECT)


def test_functional_forms() -> None:
    aten = torch.ops.aten
    assert functional_form(aten.relu_.default) is aten.relu.default
    assert functional_form(aten.add_.Tensor) is aten.add.Tensor
    assert functional_form(aten.relu.default) is None and functional_form(aten.__lshift__.Scalar) is None
