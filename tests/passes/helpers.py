"""What the tests of passes share: modules as text, and comparison by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.dims import evaluate
from aotc.ir.equal import first_difference
from aotc.ir.expr import Call, Function, Module
from aotc.ir.parser import parse_module
from aotc.ir.printer import array_hash, module_text
from aotc.ir.types import TensorType, flatten
from aotc.ir.verify import verify
from aotc.ir.visitor import calls_of, post_order
from aotc.ops.interpret import interpret
from aotc.passes.options import Options

Pass = Callable[[Module, Options], Module]


def module(text: str, weights: Mapping[str, np.ndarray] | None = None) -> Module:
    """The module whose entry point is ``(%x: float32[2]) { ... }``, after lines that declare symbols, if any."""
    weights = weights or {}
    params = [f"param ${name}: {a.dtype}[{', '.join(map(str, a.shape))}] = {_data(a)}" for name, a in weights.items()]
    symbols, _, function = text.strip().rpartition("\n(") if text.strip().startswith("symbol") else ("", "", text.strip()[1:])
    head, _, body = function.partition(" {\n")
    source = "\n".join(["aotc 1", symbols, *params, f"entry @main({head} outputs() {{\n{body}\n"])
    parsed = parse_module(source, ops.ALL, {array_hash(a): a for a in weights.values()})
    names = tuple(f"y{i}" for i in range(len(flatten(parsed.main.body.type))))
    return Module(parsed.functions, {"main": names}, {})


def _data(array: np.ndarray) -> str:
    return f"#{array_hash(array)}"


def check(run: Pass, before: Module, after: Module | None, options: Options | None = None, tolerance: float = 1e-5) -> Module:
    """``run`` turns ``before`` into ``after`` (``None``: the very same object), leaves ``after`` alone, and keeps the value."""
    options = options or Options()
    verify(before)
    result = run(before, options)
    verify(result)
    if after is None:
        assert result is before, module_text(result)[0]
        return result
    difference = first_difference(result, after, origins=False)
    assert difference is None, f"{difference}\n{module_text(result)[0]}"
    assert run(result, options) is result, "a second run changes something again"
    agree(before, result, tolerance)
    return result


def agree(first: Module, second: Module, tolerance: float = 1e-5, sizes: Mapping[str, int] | None = None, seed: int = 0) -> None:
    """Two modules give the same answer on random inputs."""
    inputs = random_inputs(first.main, sizes or {name: 3 + i for i, name in enumerate(first.symbols)}, seed)
    with np.errstate(all="ignore"):
        expected, actual = interpret(first.main, inputs), interpret(second.main, inputs)
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(np.isnan(one), np.isnan(other)) if one.dtype.kind == "f" else True
        wide_one, wide_other = np.nan_to_num(one.astype("float64")), np.nan_to_num(other.astype("float64"))
        assert np.abs(wide_one - wide_other).max(initial=0) <= tolerance * max(np.abs(wide_one).max(initial=0), 1e-6)


def random_inputs(function: Function, sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for param in function.params:
        assert isinstance(param.type, TensorType)
        shape = [evaluate(dim, sizes) for dim in param.type.shape]
        dtype = np.dtype(param.type.dtype)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 3, shape)
        found.append(np.asarray(values).astype(dtype))
    return found


def operators(found: Module) -> list[str]:
    """The operators in order, those in fused functions too."""
    names: list[str] = []
    for node in calls_of(found.main.body):
        names.append(node.op.name)
    return names


def fused(found: Module) -> list[str]:
    """The names of the fused functions called, in order."""
    return [node.op.name for node in post_order(found.main.body) if isinstance(node, Call) and isinstance(node.op, Function)]


def weight(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
