"""``aotc run``: runs a built file once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from aotc.cli.common import AsJson, BuiltFile, console, print_json, shape_text
from aotc.cli.tensors import (
    ChannelsOption,
    CropOption,
    DataOption,
    LayoutOption,
    MeanOption,
    Preprocessing,
    SeedOption,
    ShapeOption,
    StdOption,
    load_feeds,
)
from aotc.errors import InvalidOption
from aotc.ir.types import bits_of


def run(
    file: BuiltFile,
    data: DataOption = None,
    shape: ShapeOption = None,
    seed: SeedOption = 0,
    mean: MeanOption = "0",
    std: StdOption = "1",
    layout: LayoutOption = "nchw",
    channels: ChannelsOption = "rgb",
    crop: CropOption = 1.0,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write outputs to a .npz, or the only output to a .npy.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Show the largest values of each output and where they are.")] = 5,
    threads: Annotated[int | None, typer.Option("--threads", "-j", min=1, help="Threads; all processors by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a built file once and show its outputs.

    Example: `aotc run model.so --data cat.jpg --mean 127 --std 128 --crop 0.875`
    """
    import aotc

    model = aotc.load(file, num_threads=threads)
    feeds = load_feeds(model.inputs, data, shape, seed, Preprocessing(mean, std, layout, channels, crop))
    results = model.run(feeds)
    if output is not None:
        save(output, results)
    facts = {name: _facts(array, top) for name, array in results.items()}
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def save(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Arrays by name as .npz, or one array as .npy; of types that numpy lacks, their bits. Raises InvalidOption."""
    suffix = Path(path).suffix
    if suffix == ".npy" and len(arrays) != 1:
        raise InvalidOption(f"--output {path!r}: a .npy file holds one array, the model has {len(arrays)} outputs; write a .npz")
    if suffix not in (".npy", ".npz"):
        raise InvalidOption(f"--output {path!r} is neither .npy nor .npz")
    try:
        if suffix == ".npy":
            np.save(path, bits_of(next(iter(arrays.values()))))
        else:
            np.savez(path, **{name: bits_of(array) for name, array in arrays.items()})  # type: ignore[arg-type]
    except OSError as error:
        raise InvalidOption(f"--output {path!r} cannot be written: {error.strerror}") from error


def _facts(array: np.ndarray, top: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size:
        values = array.astype(np.float64)
        facts |= {"min": float(values.min()), "max": float(values.max()), "mean": float(values.mean())}
        largest = np.argsort(-values, axis=None, kind="stable")[:top]
        facts["top"] = [{"index": [int(i) for i in np.unravel_index(k, array.shape)], "value": float(values.flat[k])} for k in largest]
    return facts


def _print(facts: dict[str, dict[str, Any]]) -> None:
    table = Table()
    for heading in ("output", "type", "min", "max", "mean", "largest at"):
        table.add_column(heading)
    for name, fact in facts.items():
        numbers = [f"{fact[key]:.5g}" if key in fact else "-" for key in ("min", "max", "mean")]
        largest = "\n".join(f"{entry['index']}: {entry['value']:.5g}" for entry in fact.get("top", []))
        table.add_row(name, f"{fact['dtype']} {shape_text(fact['shape'])}", *numbers, largest)
    console.print(table, highlight=False)
