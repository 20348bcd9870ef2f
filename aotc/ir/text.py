"""The text form in files: ``model.aotc``, with the data of its arrays in ``model.npz`` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.expr import Module
from aotc.ir.parser import OperatorEntry, parse_module
from aotc.ir.printer import array_hash, module_text
from aotc.ir.types import PLAIN, SMALL, bits_of, storage_dtype


def write(module: Module, path: str | Path) -> None:
    """Writes ``module`` to ``path``, and its large arrays, if any, to the .npz file of the same name."""
    text, arrays = module_text(module)
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    if arrays:
        np.savez(path.with_suffix(".npz"), **{_key(name, array): bits_of(array) for name, array in arrays.items()})  # type: ignore[arg-type]


def _key(name: str, array: np.ndarray) -> str:
    """Where an array lies in the file, with the dtype where numpy's format lacks it."""
    return name if str(array.dtype) in PLAIN else f"{name}.{array.dtype}"


def read(path: str | Path, operators: Mapping[str, OperatorEntry]) -> Module:
    """The module that ``write`` wrote. Raises InvalidModel for text that does not parse and for data that changed."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModel(f"cannot read {path}: {error}") from error
    sidecar = path.with_suffix(".npz")
    return parse_module(text, operators, _read_arrays(sidecar) if sidecar.exists() else {}, str(path))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(_named(name, file[name]) for name in file.files)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"cannot read {path}: {error}") from error
    for name, array in arrays.items():
        if array_hash(array) != name:
            raise InvalidModel(f"{path}: the array {name} is not what its name says: the file was changed")
    return arrays


def _named(key: str, data: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, dtype = key.partition(".")
    if dtype not in SMALL:
        return key, data
    if str(data.dtype) != storage_dtype(dtype):
        raise ValueError(f"the array {key} is of {data.dtype}")
    return name, data.view(dtype)
