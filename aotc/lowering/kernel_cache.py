"""Machine code by content on disk: one file per fused function and target. Needs no TVM.

A file is the SHA-256 of the rest, then the length of a JSON description, the description, the object files, or for each CUDA
kernel its source and cubins. It is written
beside its place and renamed, so that builds which run at the same time never see half of one; a file whose digest does not
match is as good as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from aotc.cache_dir import cache_dir
from aotc.ir.dims import OPERATIONS, Dim, DimExpr, Symbol, symbol
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction, CompiledKernel, CudaKernel

_DIGEST, _LENGTH = 32, 8


def load(key: str) -> CompiledFunction | None:
    """The code kept under ``key``, or ``None`` where there is none or it is damaged."""
    try:
        data = _path(key).read_bytes()
    except OSError:
        return None
    return decode(data)


def store(key: str, function: CompiledFunction) -> None:
    """Keeps ``function`` under ``key``. A full or read-only disk is no error: the next build will compile again."""
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(encode(function))
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def encode(function: CompiledFunction) -> bytes:
    kernels = [_kernel_to_json(kernel) for kernel in function.kernels]
    scratch = [{"dtype": tensor.dtype, "shape": [dim_to_json(dim) for dim in tensor.shape]} for tensor in function.scratch]
    told = {"kernels": kernels, "scratch": scratch, "choices": function.choices, "not_on_cuda": function.not_on_cuda}
    description = json.dumps(told).encode()
    blobs = b"".join(blob for kernel in function.kernels for blob in _blobs(kernel))
    payload = len(description).to_bytes(_LENGTH, "little") + description + blobs
    return hashlib.sha256(payload).digest() + payload


def _blobs(kernel: CompiledKernel | CudaKernel) -> list[bytes]:
    if isinstance(kernel, CompiledKernel):
        return [kernel.object_code]
    ptx = [kernel.ptx[1]] if kernel.ptx else []
    return [kernel.source.encode(), *(code for _, code in kernel.cubins), *ptx]


def _kernel_to_json(kernel: CompiledKernel | CudaKernel) -> dict[str, Any]:
    common: dict[str, Any] = {
        "symbol": kernel.symbol,
        "sizes": [len(blob) for blob in _blobs(kernel)],
        "operands": kernel.operands,
        "outputs": kernel.outputs,
        "dims": [dim_to_json(dim) for dim in kernel.dims],
        "flops": dim_to_json(kernel.flops),
    }
    if isinstance(kernel, CompiledKernel):
        return {**common, "tasks": dim_to_json(kernel.tasks), "round": kernel.round}
    grid = [dim_to_json(dim) for dim in kernel.grid]
    told = {**common, "sm": [sm for sm, _ in kernel.cubins], "grid": grid, "block": kernel.block, "shared": kernel.shared_bytes}
    return {**told, "ptx": kernel.ptx[0]} if kernel.ptx else told


def _kernel_from_json(entry: dict[str, Any], blobs: list[bytes]) -> CompiledKernel | CudaKernel:
    operands = tuple((role, number) for role, number in entry["operands"])
    dims, flops = tuple(dim_from_json(dim) for dim in entry["dims"]), dim_from_json(entry["flops"])
    if "sm" not in entry:
        tasks = dim_from_json(entry["tasks"])
        return CompiledKernel(entry["symbol"], blobs[0], operands, entry["outputs"], dims, tasks, flops, entry["round"])
    grid: Any = tuple(dim_from_json(dim) for dim in entry["grid"])
    cubins = tuple(zip(entry["sm"], blobs[1:]))
    ptx = (entry["ptx"], blobs[-1]) if "ptx" in entry else None
    return CudaKernel(
        entry["symbol"], blobs[0].decode(), cubins, operands, entry["outputs"], grid, tuple(entry["block"]), dims, entry["shared"], flops,
        ptx,
    )  # fmt: skip


def decode(data: bytes) -> CompiledFunction | None:
    digest, payload = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    length = int.from_bytes(payload[:_LENGTH], "little")
    description = json.loads(payload[_LENGTH : _LENGTH + length])
    offset = _LENGTH + length
    kernels = []
    for entry in description["kernels"]:
        blobs = []
        for size in entry["sizes"]:
            blobs.append(payload[offset : offset + size])
            offset += size
        kernels.append(_kernel_from_json(entry, blobs))
    scratch = [TensorType(tuple(dim_from_json(dim) for dim in tensor["shape"]), tensor["dtype"]) for tensor in description["scratch"]]
    choices = tuple((name, tuple(options)) for name, options in description["choices"])
    return CompiledFunction(tuple(kernels), tuple(scratch), choices, description["not_on_cuda"])  # type: ignore[arg-type]


def dim_to_json(dim: Dim) -> Any:
    """An integer, or a list of [coefficient, atoms...]; an atom is [name, lower, upper] or {kind, left, right}."""
    if not isinstance(dim, DimExpr):
        return int(dim)
    return [[coefficient, *(_atom_to_json(atom) for atom in monomial)] for monomial, coefficient in dim.terms]


def _atom_to_json(atom: Any) -> Any:
    if isinstance(atom, Symbol):
        return [atom.name, atom.lower, atom.upper]
    return {"kind": atom.kind, "left": dim_to_json(atom.left), "right": dim_to_json(atom.right)}


def dim_from_json(value: Any) -> Dim:
    if isinstance(value, int):
        return value
    total: Dim = 0
    for coefficient, *atoms in value:
        term: Dim = coefficient
        for atom in atoms:
            term = term * _atom_from_json(atom)
        total = total + term
    return total


def _atom_from_json(atom: Any) -> Dim:
    if isinstance(atom, list):
        return symbol(*atom)
    return OPERATIONS[atom["kind"]](dim_from_json(atom["left"]), dim_from_json(atom["right"]))


def _path(key: str) -> Path:
    return cache_dir("kernels") / key[:2] / key[2:]
