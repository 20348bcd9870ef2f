"""Small models and kernels to tune, and boards that misbehave."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from aotc import ops, targets
from aotc.ir.expr import Function, Module, Parameter, Var, call
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction, CompiledKernel
from aotc.tuning.candidates import Layer

HOST = targets.get("host")


def two_layers(size: int = 14) -> Module:
    """Two pointwise convolutions of different shapes, each with a choice of tiles, and something without a choice."""
    rng = np.random.default_rng(3)
    x = Var("x", TensorType((1, 16, size, size), "float32"))
    first = Parameter("first", rng.standard_normal((32, 16, 1, 1), dtype=np.float32))
    second = Parameter("second", rng.standard_normal((16, 32, 1, 1), dtype=np.float32))
    y = ops.relu(ops.conv(x, first, origin="/first"))
    z = ops.sigmoid(ops.conv(y, second, origin="/second"))
    return Module({"main": Function((x,), z)}, {"main": ("z",)})


def many_layers(count: int = 24) -> Module:
    """Pointwise convolutions one after the other, no two of one shape: a session that lasts."""
    rng = np.random.default_rng(4)
    x = y = Var("x", TensorType((1, 16, 14, 14), "float32"))
    for number in range(count):
        weights = rng.standard_normal((32 + 16 * number, y.type.shape[1], 1, 1), dtype=np.float32)
        y = ops.relu(ops.conv(y, Parameter(f"w{number}", weights), origin=f"/{number}"))
    return Module({"main": Function((x,), y)}, {"main": ("y",)})


def written_in_c(*bodies: str) -> tuple[Layer, list[CompiledFunction]]:
    """Kernels ``y = f(x)`` over 1024 floats, of C statements over ``x``, ``y`` and the index ``i``."""
    x = Var("x", TensorType((1024,), "float32"))
    function = Function((x,), ops.relu(x), "by_hand", primitive=True)
    layer = Layer("key", "/by_hand", "relu", call(function, (Var("given", x.type),)), 1, {}, 0)
    return layer, [_kernel(body) for body in bodies]


_COUNT = iter(range(1_000_000))


def _kernel(body: str) -> CompiledFunction:
    symbol = f"by_hand_{next(_COUNT)}"
    code = (
        f"int {symbol}(const float *restrict x, float *restrict y, int begin, int end) {{\n"
        f"    for (int i = 0; i < 1024; i++) {{ {body} }}\n    return end - begin == 1 ? 0 : 1;\n}}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.c", Path(folder) / "kernel.o"
        source.write_text(code)
        options = ["-O1", "-fPIC", "-fno-stack-protector", "-fno-sanitize=all", "-fno-builtin", "-g0", "-c"]
        subprocess.run([sys.executable, "-m", "ziglang", "cc", *options, str(source), "-o", str(made)], check=True)
        return CompiledFunction((CompiledKernel(symbol, made.read_bytes(), (("input", 0), ("output", 0)), 1),))
