"""What is quantised and how: the result of calibration and search, a small JSON file that people can read and change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aotc.errors import InvalidOption

FORMAT = "aotc int8 recipe 1"
INT8, FLOAT = "int8", "float32"


@dataclass(frozen=True)
class ValueRecipe:
    """A value is ``scale`` times (its integer less ``zero_point``)."""

    scale: float
    zero_point: int
    dtype: str = INT8
    observer: str = ""


@dataclass(frozen=True)
class LayerRecipe:
    """``dtype`` is int8 or float32, ``reason`` says why it is not int8. ``shift``: added to the bias of each output channel, to undo the
    mean error that rounded weights make.."""

    dtype: str = INT8
    reason: str = ""
    shift: tuple[float, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """``values`` by the name of the group, ``layers`` by that of the layer. ``equalised``: by layer, what the channels that it reads were
    divided by."""

    values: Mapping[str, ValueRecipe]
    layers: Mapping[str, LayerRecipe]
    equalised: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def is_int8(self, layer: str) -> bool:
        return self.layers[layer].dtype == INT8

    def write(self, path: str | Path) -> None:
        """As JSON with one value or layer a line."""
        parts = [f'"format": {json.dumps(FORMAT)}', f'"facts": {json.dumps(dict(self.facts))}']
        for name, table in (("values", self.values), ("layers", self.layers)):
            rows = [f"    {json.dumps(key)}: {json.dumps(_short(asdict(each)))}" for key, each in table.items()]
            parts.append(f'"{name}": {{\n' + ",\n".join(rows) + "\n  }")
        rows = [f"    {json.dumps(key)}: {json.dumps([_rounded(each) for each in row])}" for key, row in self.equalised.items()]
        parts.append('"equalised": {\n' + ",\n".join(rows) + "\n  }")
        Path(path).write_text("{\n  " + ",\n  ".join(parts) + "\n}\n")


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Raises InvalidOption for a file that is none."""
    try:
        data = json.loads(Path(path).read_text())
        if data["format"] != FORMAT:
            raise InvalidOption(f"{path} is {data['format']!r}, not {FORMAT!r}")
        layers = {name: LayerRecipe(**{**each, "shift": tuple(each.get("shift", ()))}) for name, each in data["layers"].items()}
        values = {name: ValueRecipe(**each) for name, each in data["values"].items()}
        return Recipe(values, layers, {name: tuple(row) for name, row in data["equalised"].items()}, data["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidOption(f"{path} is no int8 recipe: {type(error).__name__}: {error}; `aotc quantize` writes one") from error


def _short(fields: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in fields.items() if value not in ("", ())}
    return {key: [_rounded(each) for each in value] if isinstance(value, tuple) else value for key, value in shown.items()}


def _rounded(value: float) -> float:
    """As many digits as float32 needs."""
    return float(f"{value:.9g}")
