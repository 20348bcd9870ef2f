"""What was done to each layer, as plain data and as one HTML page that needs nothing beside it."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aotc.passes.weights import array_of
from aotc.quantisation.insert import dequantised, quantise_weight
from aotc.quantisation.observers import LEVELS
from aotc.quantisation.structure import Layer, multiply_adds

if TYPE_CHECKING:
    from aotc.quantisation import Quantised


def facts_of(made: Quantised) -> dict[str, Any]:
    """By layer: dtype, scales, signal to quantisation noise in dB of its weights, of the values that it reads, and of the network's result with it
    alone in int8 (where that was measured), multiply-adds of one sample, and why it is float. ``values``: the same for each group of values."""
    found = {each.layer: each for each in made.search.sensitivities} if made.search is not None else {}
    values = {name: _value_facts(made, name) for name in made.network.names if name in made.recipe.values}
    layers: list[dict[str, Any]] = []
    for layer in made.network.layers:
        how, sensitivity = made.recipe.layers[layer.name], found.get(layer.name)
        names = [made.network.names[group] for group in layer.groups if made.network.names[group] in values]
        read = [values[name]["sqnr"] for name in names]
        layers.append({
            "name": layer.name, "kind": layer.kind, "dtype": how.dtype, "reason": how.reason, "weight_sqnr": _weight_sqnr(layer),
            "value_sqnr": min((each for each in read if each is not None), default=None),
            "sensitivity_sqnr": None if sensitivity is None else sensitivity.sqnr, "drop": None if sensitivity is None else sensitivity.drop,
            "multiply_adds": multiply_adds(layer, {}), "values": names,
            "float_us": made.times[layer.name].float_us if layer.name in made.times else None,
            "int8_us": made.times[layer.name].int8_us if layer.name in made.times else None,
        })  # fmt: skip
    nothing = dict.fromkeys(("weight_sqnr", "value_sqnr", "sensitivity_sqnr", "drop", "multiply_adds", "float_us", "int8_us"))
    layers += [
        {"name": name, "kind": "", "dtype": made.recipe.layers[name].dtype, "reason": reason, **nothing, "values": []}
        for name, reason in made.network.left.items() if name in made.recipe.layers
    ]  # fmt: skip
    return {"layers": layers, "values": values, "search": _search_facts(made), "equalised": sorted(made.recipe.equalised)}


def _search_facts(made: Quantised) -> dict[str, Any] | None:
    search = made.search
    if search is None:
        return None
    fields = ("kept", "float_score", "first_score", "score", "int8_share", "runs")
    return {field: getattr(search, field) for field in fields}


def _value_facts(made: Quantised, name: str) -> dict[str, Any]:
    how = made.recipe.values[name]
    found = None
    if made.statistics is not None:
        histogram = made.statistics.histogram(name)
        low = (-128 - how.zero_point) * how.scale
        found = _decibels(histogram.power, histogram.error((low, low + (LEVELS - 1) * how.scale)))
    return {"dtype": how.dtype, "scale": how.scale, "zero_point": how.zero_point, "observer": how.observer, "sqnr": found}


def _weight_sqnr(layer: Layer) -> float | None:
    data = None if layer.weight is None else array_of(layer.call.args[layer.weight])
    if data is None:
        return None
    return _decibels(float(np.square(data).mean()), float(np.square(dequantised(quantise_weight(data, layer.axis)) - data).mean()))


def _decibels(signal: float, noise: float) -> float | None:
    return None if signal <= 0 else 10 * math.log10(signal / max(noise, signal * 1e-20))


def write_page(made: Quantised, path: str | Path) -> None:
    """The facts as HTML."""
    facts = facts_of(made)
    head = (
        "layer",
        "kind",
        "dtype",
        "weights, dB",
        "values, dB",
        "alone, dB",
        "metric lost",
        "multiply-adds",
        "float, us",
        "int8, us",
        "why float",
    )
    rows = []
    for each in facts["layers"]:
        cells = [
            each["name"],
            each["kind"],
            each["dtype"],
            *(_number(each[key], ".1f") for key in ("weight_sqnr", "value_sqnr", "sensitivity_sqnr")),
        ]
        cells += [
            _number(each["drop"], ".4f"),
            _number(each["multiply_adds"], ","),
            _number(each["float_us"], ".1f"),
            _number(each["int8_us"], ".1f"),
            each["reason"],
        ]
        rows.append((each["dtype"], cells))
    values = [
        (each["dtype"], [name, each["dtype"], f"{each['scale']:.6g}", each["zero_point"], each["observer"], _number(each["sqnr"], ".1f")])
        for name, each in facts["values"].items()
    ]
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in made.notes)
    tables = _table(head, rows) + "<h2>Values</h2>" + _table(("value", "dtype", "scale", "zero point", "observer", "dB"), values)
    Path(path).write_text(PAGE.format(notes=notes, tables=tables))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(head: tuple[str, ...], rows: list[tuple[str, list[Any]]]) -> str:
    titles = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    body = "".join(
        f'<tr class="{kind}">' + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>" for kind, cells in rows
    )
    return f"<table><tr>{titles}</tr>{body}</table>"


PAGE = """<!doctype html><meta charset="utf-8"><title>int8</title>
<style>body{{font:14px sans-serif;margin:2em}}table{{border-collapse:collapse}}td,th{{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}}
.float32{{background:#fff3cd}}</style>
<h1>What became int8</h1>{notes}{tables}
"""
