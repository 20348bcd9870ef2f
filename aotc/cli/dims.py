"""Input shapes as they are written on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aotc.cli.common import one_per_name
from aotc.errors import InvalidOption
from aotc.ir.dims import Dim, symbol

# a number, or a name with optional bounds; names have no x, which separates dims, unless dims are separated by commas
_DIM = re.compile(r"(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)(=(?P<lower>\d+)\.\.(?P<upper>\d*))?")


def parse_inputs(entries: Sequence[str] | None) -> dict[str, tuple[Dim, ...]] | None:
    """``["image:b=1..32x3x224x224"]`` as what ``aotc.compile`` takes, None for no entries.

    Dims are separated by ``x``, or by commas where a name has an x in it. A name stands for one dim in all inputs; its
    bounds may be given at any of its places. Raises InvalidOption.
    """
    if not entries:
        return None
    shapes = {name: _split(name, text) for name, text in one_per_name(entries, ":", "--input").items()}
    bounds: dict[str, tuple[int, int | None]] = {}
    for tokens in shapes.values():
        for token in tokens:
            if token["lower"] is not None:
                _add_bound(bounds, token)
    return {name: tuple(_dim(token, bounds) for token in tokens) for name, tokens in shapes.items()}


def _split(name: str, text: str) -> list[dict[str, str | None]]:
    tokens = []
    for part in re.split(r"," if "," in text else r"x", text) if text else []:
        match = _DIM.fullmatch(part.strip())
        if match is None:
            raise InvalidOption(
                f"--input {name}:{text}: {part!r} is not a dim; expected a number, a name, or a name with bounds as in b=1..32 (separate by commas where a name has an x)"
            )
        tokens.append(match.groupdict())
    return tokens


def _add_bound(bounds: dict[str, tuple[int, int | None]], token: dict[str, str | None]) -> None:
    name, lower, upper = str(token["name"]), int(token["lower"] or 0), int(token["upper"]) if token["upper"] else None
    if upper is not None and upper < lower:
        raise InvalidOption(f"--input: the bounds {lower}..{upper} of {name!r} hold no number")
    if bounds.setdefault(name, (lower, upper)) != (lower, upper):
        raise InvalidOption(f"--input: the dim {name!r} has two different bounds")


def _dim(token: dict[str, str | None], bounds: dict[str, tuple[int, int | None]]) -> Dim:
    if token["number"] is not None:
        return int(token["number"])
    name = str(token["name"])
    return symbol(name, *bounds.get(name, (0, None)))


def parse_versions(entries: Sequence[str] | None) -> list[dict[str, tuple[int, ...]]]:
    """``["image:1x3x224x224,1x3x640x640"]`` as one dict of shapes by input for each size. Raises InvalidOption."""
    listed: dict[str, list[tuple[int, ...]]] = {}
    for name, text in one_per_name(entries or [], ":", "--shapes").items():
        if not re.fullmatch(r"\d+(x\d+)*(,\d+(x\d+)*)*", text):
            raise InvalidOption(f"--shapes {name}:{text}: expected sizes of numbers, as in {name}:1x3x224x224,1x3x640x640")
        listed[name] = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    counts = {len(shapes) for shapes in listed.values()}
    if len(counts) > 1:
        raise InvalidOption(
            f"--shapes: each input needs as many sizes as the others, not {', '.join(str(count) for count in sorted(counts))}"
        )
    return [{name: shapes[i] for name, shapes in listed.items()} for i in range(counts.pop() if counts else 0)]
