"""The text form in files: ``model.aotc``, with the data of its arrays in ``model.npz`` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.expr import Module
from aotc.ir.parser import OperatorEntry, parse_module
from aotc.ir.printer import array_hash, module_text


def write(module: Module, path: str | Path) -> None:
    """Writes ``module`` to ``path``, and its large arrays, if any, to the .npz file of the same name."""
    text, arrays = module_text(module)
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    if arrays:
        np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]


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
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InvalidModel(f"cannot read {path}: {error}") from error
    for name, array in arrays.items():
        if array_hash(array) != name:
            raise InvalidModel(f"{path}: the array {name} is not what its name says: the file was changed")
    return arrays
