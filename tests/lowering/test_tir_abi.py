"""Object code with a plain C signature, and what it may hold."""

from __future__ import annotations

import io
import os
import re

import numpy as np
import pytest
import tvm
from elftools.elf.elffile import ELFFile
from tvm import s_tir, te
from tvm.script import tirx as T

from aotc import ops, targets
from aotc.errors import BuildError
from aotc.ir.dims import symbol
from aotc.lowering.kernel import check_sizes, lower_function
from aotc.lowering.object_file import ALLOWED_SYMBOLS, check_symbols, outside_symbols, strip
from aotc.lowering.scope import DimScope
from aotc.lowering.tir_abi import compile_function
from tests.lowering.harness import Runner, function_of, run, var

HOST = targets.get("host")


def test_a_composite_dim_is_one_variable() -> None:
    scope, b = DimScope(), symbol("b", 1, 8)
    product = scope.expr((b + 1) * 4)
    assert scope.expr(4 * b + 4) is product
    assert scope.dims == (4 * b + 4,)
    assert scope.dim(product * 2 + scope.expr(b)) == 9 * b + 8
    assert scope.dim((product + 7) // 8) == (4 * b + 11) // 8
    with pytest.raises(OverflowError):
        scope.expr(2**31)


def test_dims_and_tasks_follow_the_shape() -> None:
    b = symbol("b", 1)
    x, y = var("x", "float32", b, 3, 2 * b), var("y", "float32", 2 * b)
    function = function_of(ops.add(x, y), x, y)
    lowered = lower_function(function, HOST)
    assert {str(dim) for kernel in lowered.kernels for dim in kernel.dims} <= {"b", "2*b"}
    for size in (1, 2, 9):
        data, other = np.random.rand(size, 3, 2 * size).astype(np.float32), np.random.rand(2 * size).astype(np.float32)
        (result,) = Runner(function, lowered)(data, other, symbols={"b": size}, workers=3)
        np.testing.assert_array_equal(result, data + other)


def test_loop_nests_become_kernels_and_what_passes_between_them_scratch() -> None:
    func = _two_stages(256)
    compiled = compile_function(func, 1, DimScope(), HOST, "stages", 0)
    assert [(k.symbol, k.operands, k.outputs, k.tasks) for k in compiled.kernels] == [
        ("stages_0", (("input", 0), ("scratch", 0)), 1, 4),
        ("stages_1", (("scratch", 0), ("output", 0)), 1, 4),
    ]
    assert [str(tensor) for tensor in compiled.scratch] == ["float32[4, 256]"]


def test_a_local_buffer_too_large_for_the_stack_becomes_scratch() -> None:
    small, large = (compile_function(_row_buffer(size), 1, DimScope(), HOST, "rows", 0) for size in (64, 512))
    assert [kernel.operands for kernel in small.kernels] == [(("input", 0), ("output", 0))]
    assert not small.scratch
    assert [str(tensor) for tensor in large.scratch] == ["float32[4, 512]"]
    assert all(not outside_symbols(kernel.object_code) for kernel in (*small.kernels, *large.kernels))


def test_a_nested_parallel_loop_is_refused() -> None:
    func = _two_stages(16)
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    sch.parallel(sch.get_loops(sch.get_sblock("second"))[1])
    with pytest.raises(BuildError, match="__TVMBackendParallelLaunch"):
        compile_function(sch.mod["main"], 1, DimScope(), HOST, "nested", 0)


def _stages(size: int) -> s_tir.Schedule:
    x = te.placeholder((4, size), name="x")
    first = te.compute((4, size), lambda i, j: x[i, j] + x[i, size - 1 - j], name="first")
    second = te.compute((4, size), lambda i, j: first[i, j] * first[i, size - 1 - j], name="second")
    return s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, second])}))


def _two_stages(size: int) -> tvm.tirx.PrimFunc:
    sch = _stages(size)
    for name in ("first", "second"):
        sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
    return sch.mod["main"]


def _row_buffer(size: int) -> tvm.tirx.PrimFunc:
    sch = _stages(size)
    row = sch.get_loops(sch.get_sblock("second"))[0]
    sch.parallel(row)
    sch.compute_at(sch.get_sblock("first"), row)
    return sch.mod["main"]


def test_objects_are_lean_and_need_little() -> None:
    x, w = var("x", "float32", 1, 1, 9, 9, 8), var("w", "float32", 1, 1, 3, 3, 8, 8)
    body = ops.sin(ops.conv(x, w, padding=(1, 1, 1, 1), channel_block=8, out_channels=8))
    for name in ("host", "jetson-nano"):
        for kernel in lower_function(function_of(body, x, w), targets.get(name)).kernels:
            elf = ELFFile(io.BytesIO(kernel.object_code))
            sections = [section.name for section in elf.iter_sections()]
            assert not [section for section in sections if "debug" in section or "tvm" in section]
            symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
            assert [s.name for s in symbols if s["st_info"]["bind"] == "STB_GLOBAL" and s["st_shndx"] != "SHN_UNDEF"] == [kernel.symbol]
            assert outside_symbols(kernel.object_code) == ["sinf"]
            assert strip(kernel.object_code) == kernel.object_code


def test_foreign_symbols_are_named() -> None:
    x = var("x", "float32", 8)
    (kernel,) = lower_function(function_of(ops.sin(x), x), HOST).kernels
    foreign = kernel.object_code.replace(b"\0sinf\0", b"\0xinf\0")
    with pytest.raises(BuildError, match="kernel k needs xinf"):
        check_symbols(foreign, "k")
    assert not [name for name in ALLOWED_SYMBOLS if "tvm" in name.lower()]


def test_building_for_one_target_leaves_the_next_alone() -> None:
    """TVM's passes may rewrite their input."""
    x, w = var("x", "float32", 7, 12), var("w", "float32", 3, 12, 8)
    function = function_of(ops.relu(ops.packed_dense(x, w, units=20)), x, w)
    alone = lower_function(function, targets.get("jetson-orin"))
    lower_function(function, targets.get("x86-64-v3"))
    assert lower_function(function, targets.get("jetson-orin")) == alone


def test_multiply_adds_are_contracted(tmp_path: os.PathLike[str]) -> None:
    """One rounding, not two, and no other liberty: sums keep their order."""
    a = np.float32(1 + 2.0**-12)
    x, y, z = (var(name, "float32", 8) for name in "xyz")
    (result,) = run(ops.add(ops.multiply(x, y), z), [x, y, z], np.full(8, a), np.full(8, a), np.full(8, -np.float32(a * a)))
    exact = np.float64(a) * np.float64(a) - np.float64(np.float32(a * a))
    np.testing.assert_array_equal(result, np.full(8, exact, np.float32))
    (result,) = run(ops.subtract(ops.add(x, y), x), [x, y], np.full(8, 1e8, np.float32), np.full(8, 1, np.float32))
    np.testing.assert_array_equal(result, np.zeros(8, np.float32))


def test_tensors_beyond_int32_are_refused() -> None:
    x = var("x", "float32", 2**16, 2**15)
    with pytest.raises(BuildError, match=re.escape("float32[65536, 32768] has 2^31 elements or more")):
        check_sizes(function_of(ops.relu(x), x))


def test_tensorize_works() -> None:
    """With the wrong apache-tvm-ffi it ends the process."""

    @T.prim_func(s_tir=True)
    def description(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:
        with T.sblock("root"):
            T.reads(a[0:4])
            T.writes(b[0:4])
            for i in range(4):
                with T.sblock("body"):
                    v = T.axis.spatial(4, i)
                    b[v] = a[v]

    s_tir.TensorIntrin.register("aotc_test_copy", description, description, override=True)
    x = te.placeholder((4,), name="x")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, te.compute((4,), lambda i: x[i], name="y")])}))
    sch.tensorize(sch.get_loops(sch.get_sblock("y"))[0], "aotc_test_copy")
    assert "y_o" in sch.mod["main"].script()
