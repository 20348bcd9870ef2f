"""Calibration: the float network runs over sample data and gathers statistics; observers make scales of them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from aotc import targets
from aotc.cache_dir import cache_dir, write_atomically
from aotc.compiler import compile as compile_model
from aotc.errors import InvalidOption
from aotc.ir.expr import Constant, Module, Parameter
from aotc.ir.printer import module_text
from aotc.ir.visitor import post_order
from aotc.quantisation.observers import observe, scale_and_zero
from aotc.quantisation.recipe import FLOAT, LayerRecipe, Recipe, ValueRecipe
from aotc.quantisation.statistics import Statistics, with_counters
from aotc.quantisation.structure import Network

Feeds = Mapping[str, np.ndarray]
"""One batch: an array for each input by name."""
Progress = Callable[[str, int, int], None]


class Running:
    """A module built for this machine and opened; the file is gone when this is."""

    def __init__(self, module: Module, threads: int | None = None) -> None:
        from aotc.runtime.loader import load

        self.folder = tempfile.TemporaryDirectory(prefix="aotc-int8-")
        output = Path(self.folder.name) / "model.so"
        compile_model(module, targets.get("host"), output)
        self.model = load(output) if threads is None else load(output, num_threads=threads)

    def __call__(self, feeds: Feeds) -> dict[str, np.ndarray]:
        return dict(self.model.run(dict(feeds)))


def calibrate(network: Network, batches: Iterable[Feeds], progress: Progress, identity: str = "", total: int = 0) -> Statistics:
    """Statistics of ``network`` over ``batches``, which are read once, one at a time. ``identity`` says which data they are, for the cache:
    without one nothing is kept. Raises InvalidOption where there are none, or where they do not fit the inputs."""
    kept = cache_dir("calibration") / f"{_key(network, identity)}.npz" if identity else None
    if kept is not None and kept.exists():
        with np.load(kept) as arrays:
            return Statistics.from_arrays(arrays)
    counters = with_counters(network)
    found = Statistics()
    progress("calibrate", 0, total)
    run = Running(counters.module)
    for number, feeds in enumerate(batches):
        found.add(run(feeds), counters)
        progress("calibrate", number + 1, max(total, number + 1))
    if not found.samples:
        raise InvalidOption("the calibration data are empty: give at least one batch; some dozens of typical ones are usual")
    if kept is not None:
        buffer = BytesIO()
        np.savez(buffer, **found.as_arrays())  # type: ignore[arg-type]  # numpy's own annotation
        write_atomically(kept, buffer.getvalue())
    return found


def make_recipe(
    network: Network, statistics: Statistics, observer: str = "auto", equalised: Mapping[str, tuple[float, ...]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Recipe:  # fmt: skip
    """All layers int8, with the ranges that the observer named finds; ``equalised`` is what was done to the network before."""
    values = {}
    for name in network.names:
        used, range_ = observe(observer, statistics.histogram(name))
        values[name] = ValueRecipe(*scale_and_zero(range_), observer=used)
    layers = {layer.name: LayerRecipe() for layer in network.layers}
    layers |= {name: LayerRecipe(FLOAT, reason) for name, reason in network.left.items()}
    return Recipe(values, layers, equalised or {}, {"observer": observer, **(facts or {})})


def _key(network: Network, identity: str) -> str:
    """Names the statistics of one network, weights included, over some data."""
    digest = hashlib.sha256(f"{identity}\n{module_text(network.module)[0]}".encode())
    for node in post_order(network.module.main.body):
        if isinstance(node, (Constant, Parameter)):
            digest.update(np.ascontiguousarray(node.data).tobytes())
    return digest.hexdigest()[:32]
