"""Builds of many functions: parallel, cached, the same bytes however they run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from aotc import ops, targets
from aotc.errors import BuildError
from aotc.ir.dims import floordiv, maximum, symbol
from aotc.ir.expr import Constant, Function
from aotc.ir.types import TensorType
from aotc.lowering import kernel_cache
from aotc.lowering.build import KERNELS_PER_WORKER, compile_functions
from aotc.lowering.compiled import CompiledFunction, CompiledKernel
from aotc.lowering.frames import pack_function, unpack_function
from aotc.lowering.identity import function_flops, function_key, function_label
from tests.lowering.harness import Runner, function_of, var

TARGET = targets.get("host")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOTC_CACHE_DIR", str(tmp_path))
    return tmp_path


def some_functions(sizes: Sequence[int] = (3, 5, 3)) -> list[Function]:
    functions = []
    for size in sizes:
        x = var("x", "float32", symbol("b", 1), size)
        functions.append(function_of(ops.relu(ops.add(x, x)), x))
    return functions


def test_equal_functions_are_compiled_once_and_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    functions = some_functions()
    compiled = compile_functions(functions, TARGET, progress=lambda *event: told.append(event))
    assert told == [(0, 2, "cached"), (1, 2, "add_relu"), (2, 2, "add_relu")]
    assert compiled[functions[0]] is compiled[functions[2]]
    data = np.array([[-1, 2, 3]], np.float32)
    (result,) = Runner(functions[0], compiled[functions[0]])(data, symbols={"b": 1})
    np.testing.assert_array_equal(result, [[0, 4, 6]])


def test_bytes_do_not_depend_on_workers_or_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = some_functions(range(1, 2 * KERNELS_PER_WORKER + 1))
    one = compile_functions(functions, TARGET, jobs=1)
    again = compile_functions(functions, TARGET)
    monkeypatch.setenv("AOTC_CACHE_DIR", str(cache / "other"))
    two = compile_functions(functions[::-1], TARGET, jobs=2)
    assert one == again == two
    monkeypatch.setenv("AOTC_CACHE_DIR", str(cache / "third"))
    assert compile_functions(functions, TARGET, jobs=0) == one


def test_without_workers_torch_is_neither_imported_nor_hidden_afterwards() -> None:
    code = (
        "import sys, types\n"
        "from aotc.lowering.worker import without_torch\n"
        "for before in (None, types.ModuleType('torch')):\n"
        "    if before: sys.modules['torch'] = before\n"
        "    with without_torch():\n"
        "        assert sys.modules['torch'] is None\n"
        "    assert sys.modules.get('torch') is before\n"
        "with without_torch():\n"
        "    import tvm\n"
        "assert sys.modules['torch'] is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rebuild_from_the_cache_imports_no_tvm() -> None:
    compile_functions(some_functions(), TARGET)
    code = (
        "import sys\n"
        "from aotc import ops, targets\n"
        "from aotc.ir.dims import symbol\n"
        "from aotc.ir.expr import Function, Var\n"
        "from aotc.ir.types import TensorType\n"
        "from aotc.lowering.build import compile_functions\n"
        "x = Var('input', TensorType((symbol('b', 1), 5), 'float32'))\n"
        "f = Function((x,), ops.relu(ops.add(x, x)), 'another name', primitive=True)\n"
        "told = []\n"
        "compile_functions([f], targets.get('host'), progress=lambda *event: told.append(event))\n"
        "assert told == [], told\n"
        "assert 'tvm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_damaged_entries_are_compiled_again(cache: Path) -> None:
    functions = some_functions()
    first = compile_functions(functions, TARGET)
    files = [path for path in (cache / "kernels").rglob("*") if path.is_file()]
    assert len(files) == 2
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].write_bytes(b"")
    assert compile_functions(functions, TARGET) == first
    assert all(kernel_cache.decode(path.read_bytes()) is not None for path in files)


def test_builds_at_the_same_time_share_the_cache() -> None:
    functions = some_functions()
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: compile_functions(functions, TARGET, jobs=1), range(3)))
    assert results[0] == results[1] == results[2]


def test_an_entry_reads_back_equal() -> None:
    b, s = symbol("b", 1, 32), symbol("s", 0)
    kernel = CompiledKernel("k", b"\x7fELF", (("input", 1), ("output", 0)), 1, (b * s + 1, floordiv(s, 2)), maximum(b, s), 2 * b)
    function = CompiledFunction((kernel,), (TensorType((b, 4), "float16"),))
    assert kernel_cache.decode(kernel_cache.encode(function)) == function


def test_a_failure_names_the_node() -> None:
    x = var("x", "float32", 4)
    large = Constant(np.ones(4, np.float32))
    bad = Function((x,), ops.add(x, large), "f", primitive=True, origin="layer4/conv")
    with pytest.raises(BuildError, match=r"layer4/conv: a constant float32\[4\] stands inside a fused function"):
        compile_functions([*some_functions(), bad], TARGET, jobs=2)


def test_a_deep_chain_travels_to_a_worker() -> None:
    x = var("x", "float32", 4)
    y = ops.relu(x)
    for _ in range(3000):
        y = ops.negative(y)
    function = function_of(y, x)
    arrived, target, *_ = unpack_function(pack_function(function, TARGET))
    assert function_key(arrived, target) == function_key(function, TARGET)


def test_the_key_sees_attributes_bounds_constants_and_target() -> None:
    def key(upper: int | None = 8, alpha: float = 0.1, target: str = "x86-64-v3", shift: float = 1.0) -> str:
        x = var("x", "float32", symbol("b", 1, upper))
        body = ops.leaky_relu(ops.add(x, Constant(np.array(shift, np.float32))), alpha=alpha)
        return function_key(function_of(body, x), targets.get(target))

    assert key() == key()
    assert len({key(), key(upper=9), key(upper=None), key(alpha=0.2), key(target="aarch64"), key(shift=2.0)}) == 6


def test_code_serves_every_c_library() -> None:
    x = var("x", "float32", 4)
    function = function_of(ops.relu(x), x)
    assert function_key(function, dataclasses.replace(TARGET, glibc=(2, 99))) == function_key(function, TARGET)


def test_label_and_flops() -> None:
    b = symbol("b", 1)
    x, w = var("x", "float32", b, 4, 8, 8), var("w", "float32", 6, 2, 3, 3)
    function = function_of(ops.relu(ops.conv(x, w, groups=2)), x, w)
    assert function_label(function) == "conv_relu"
    assert function_flops(function) == 2 * b * 6 * 36 * 2 * 9 + b * 6 * 36


def test_flops_of_filling_do_not_count() -> None:
    x, w = var("x", "float32", 1, 2, 8, 8, 16), var("w", "float32", 3, 2, 3, 3, 16, 16)
    conv = ops.conv(x, w, channel_block=16, in_channels=24, out_channels=40)
    assert function_flops(function_of(conv, x, w)) == 2 * 40 * 36 * 24 * 9
    d = var("d", "float32", 2, 3, 3, 16)
    depthwise = ops.conv(x, d, channel_block=16, groups=24, out_channels=24)
    assert function_flops(function_of(depthwise, x, d)) == 2 * 24 * 36 * 9
