"""torch.cond, while_loop, scan and map, and buffers that change: from built files, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map

import aotc

BATCH = torch.export.Dim("batch", min=1, max=16)


def run_both(folder: Path, module: nn.Module, args: tuple[Any, ...], others: list[tuple[Any, ...]], dynamic: Any = None) -> None:
    """The built file and the module agree on ``args`` and on ``others``."""
    aotc.compile(module, args=args, dynamic_shapes=dynamic and (dynamic,), output=folder / "model.so", jobs=0)
    model = aotc.load(folder / "model.so", num_threads=1)
    names = [each.name for each in model.inputs]
    for given in (args, *others):
        with torch.no_grad():
            expected = module(*given)
        got = model.run({name: each.numpy() for name, each in zip(names, given, strict=True)})
        expected = expected if isinstance(expected, tuple) else (expected,)
        for right, ours in zip(expected, got.values(), strict=True):
            np.testing.assert_allclose(ours, right.numpy(), rtol=1e-5, atol=1e-6)


class Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self.linear, *args)


def test_cond(tmp_path: Path) -> None:
    """On a tensor, nested, with weights inside one branch, and on a size."""

    def forward(linear: nn.Module, x: torch.Tensor, flag: torch.Tensor) -> Any:
        inner = lambda a: torch.cond(a.sum() > 0, lambda b: b * 2, lambda b: b - 1, (a,))  # noqa: E731
        y = torch.cond(flag, linear, inner, (x,))
        return y, torch.cond(x.shape[0] > 4, lambda a: a.exp(), lambda a: a.sin(), (y,))

    others = [(torch.randn(rows, 4) + shift, torch.tensor(flag)) for rows in (2, 6) for shift in (-2, 2) for flag in (True, False)]
    run_both(tmp_path, Wrapped(forward), (torch.randn(3, 4), torch.tensor(True)), others, ({0: BATCH}, None))


def test_while_loop(tmp_path: Path) -> None:
    def forward(linear: nn.Module, x: torch.Tensor, count: torch.Tensor) -> Any:
        going = lambda i, y: i < count  # noqa: E731
        _, y = while_loop(going, lambda i, y: (i + 1, torch.tanh(linear(y)) + x), (torch.zeros((), dtype=torch.int64), x * 1))
        return y

    others = [(torch.randn(2, 4), torch.tensor(count)) for count in (0, 1, 7)]
    run_both(tmp_path, Wrapped(forward), (torch.randn(3, 4), torch.tensor(2)), others, ({0: BATCH}, None))


def test_scan_and_map(tmp_path: Path) -> None:
    def forward(linear: nn.Module, x: torch.Tensor) -> Any:
        total, rows = scan(lambda c, v: (c + v, c * v), torch.zeros(4), x, dim=0)
        last, backwards = scan(lambda c, v: (torch.tanh(linear(c + v)), c.clone()), torch.ones(4), x, dim=0, reverse=True)
        return total, rows, last, backwards, torch_map(lambda row, w: row * w, x, total)

    run_both(tmp_path, Wrapped(forward), (torch.randn(3, 4),), [(torch.randn(7, 4),)], ({0: BATCH},))


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("rows", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.mean += (x - self.mean) / self.seen
        self.rows.index_copy_(0, at, x[None])
        return self.mean * 2 + self.rows.sum(0)


def test_buffers_are_states(tmp_path: Path) -> None:
    """The session keeps them from run to run, and gives them back their first values on reset."""
    aotc.compile(RunningMean(), args=(torch.randn(4), torch.tensor([0])), output=tmp_path / "model.so", jobs=0)
    session = aotc.load(tmp_path / "model.so", num_threads=1).session()
    for _ in range(2):
        module = RunningMean()
        for step in range(5):
            x, at = torch.randn(4), torch.tensor([step % 3])
            (got,) = session.run({"x": x.numpy(), "at": at.numpy()}).values()
            np.testing.assert_allclose(got, module(x, at).numpy(), rtol=1e-5, atol=1e-6)
        session.reset()


@pytest.mark.parametrize("kind", ["cond", "scan"])
def test_what_bodies_lack_is_listed(kind: str) -> None:
    def forward(linear: nn.Module, x: torch.Tensor) -> Any:
        if kind == "cond":
            return torch.cond(x.sum() > 0, torch.special.bessel_j0, torch.clone, (x,))
        return scan(lambda c, v: (c + v, torch.special.bessel_j0(v)), torch.zeros(4, 4), x[None])[1]

    with pytest.raises(aotc.UnsupportedModel, match="bessel_j0"):
        aotc.import_torch(Wrapped(forward), (torch.randn(4, 4),))
