"""Imports a torch function, runs it with the operators' references and compares with what torch computes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aotc.frontends.torch import import_torch
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


Row = tuple[Callable[..., Any], tuple[Any, ...]]


class Table(torch.nn.Module):
    """Many functions as one module, each on its own arguments: one export serves them all."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        super().__init__()
        self.rows = dict(rows)

    def forward(self, *args: Any) -> dict[str, Any]:
        rest = iter(args)
        return {name: function(*(next(rest).clone() for _ in own)) for name, (function, own) in self.rows.items()}


@dataclass
class Checked:
    """What came out of ``check_table``: both sides' values by row."""

    module: Module
    got: dict[str, list[np.ndarray]]
    want: dict[str, list[Any]]

    def row(self, name: str, rtol: float = 1e-5) -> None:
        compare(self.got[name], self.want[name], rtol)


def check_table(rows: Mapping[str, Row]) -> Checked:
    table, args = Table(rows), tuple(arg for _, own in rows.values() for arg in own)
    imported = import_torch(table, args)
    results = iter(interpret(imported.main, [arg.numpy() for arg in args]))
    with torch.no_grad():
        want = {name: torch.utils._pytree.tree_leaves(value) for name, value in table(*args).items()}
    return Checked(imported, {name: [next(results) for _ in leaves] for name, leaves in want.items()}, want)


def check(model: Any, args: Sequence[Any], dynamic_shapes: Any = None, others: Sequence[Sequence[Any]] = (), rtol: float = 1e-5) -> Module:
    """The imported module, after it agreed with torch on ``args`` and on the ``others``.

    ``rtol`` is the largest difference allowed, as a fraction of the largest value.
    """
    module = model if isinstance(model, torch.nn.Module) else Wrapped(model)
    module.eval()
    if dynamic_shapes is not None and isinstance(module, Wrapped):
        dynamic_shapes = {"args": tuple(dynamic_shapes)}
    imported = import_torch(module, tuple(args), dynamic_shapes)
    for given in (args, *others):
        arrays = [arg.detach().numpy() for arg in torch.utils._pytree.tree_leaves(given) if isinstance(arg, torch.Tensor)]
        with torch.no_grad():
            want = [leaf for leaf in torch.utils._pytree.tree_leaves(module(*_copies(given))) if leaf is not None]
        compare(interpret(imported.main, arrays), want, rtol)
    return imported


def _copies(args: Sequence[Any]) -> list[Any]:
    return [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]


def compare(got: Sequence[np.ndarray], want: Sequence[Any], rtol: float) -> None:
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        expected = theirs.numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
        assert mine.shape == expected.shape and mine.dtype == expected.dtype, (
            f"{mine.dtype}{mine.shape}, not {expected.dtype}{expected.shape}"
        )
        finite = expected[np.isfinite(expected)].astype("float64")
        scale = float(np.abs(finite).max()) if finite.size else 1.0
        np.testing.assert_allclose(mine.astype("float64"), expected.astype("float64"), rtol=0, atol=max(rtol * scale, 1e-30))


def operators(module: Module) -> list[str]:
    """The names of the operators that a module calls, in order."""
    return [call.op.name for call in calls_of(module.main.body)]  # type: ignore[union-attr]
