"""What the values of a float network are like, gathered by the network itself as it runs.

The network is built once with counters inside: each value that may become int8 is counted where it is made and then forgotten, so a run
takes hardly more memory than one without counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aotc import ops
from aotc.errors import RuntimeFailure
from aotc.ir.dims import product
from aotc.ir.expr import Call, Expr, Module, Tuple, TupleGetItem
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order, with_body
from aotc.quantisation.observers import Histogram
from aotc.quantisation.structure import Network, channel_axis

COUNTS, RANGE, SIZE, SUM, LARGEST = "counts", "range", "size", "sum", "largest"


@dataclass
class Statistics:
    """``counts``: int64[bins] of ``aotc.ops.observe`` for each group by name, ``ranges`` their least and greatest values; ``sizes``:
    how many values each layer read; ``sums`` and ``largest``: by layer, the sum and the largest magnitude of each channel that it read. ``samples`` is the number of batches."""

    counts: dict[str, np.ndarray] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    largest: dict[str, np.ndarray] = field(default_factory=dict)
    samples: int = 0

    def histogram(self, group: str) -> Histogram:
        return Histogram.of(self.counts[group], *self.ranges[group])

    def add(self, results: Mapping[str, np.ndarray], counters: Counters) -> None:
        """One run's counters. Raises RuntimeFailure for a value that is infinite or never a number."""
        for output, uses in counters.outputs.items():
            array = results[output]
            for kind, name in uses:
                if kind == COUNTS:
                    self.counts[name] = self.counts.get(name, 0) + array.sum(axis=0, dtype=np.int64)
                elif kind == RANGE:
                    self._widen(name, float(array[:, 0].min()), float(array[:, 1].max()))
                elif kind == SIZE:
                    self.sizes[name] = self.sizes.get(name, 0) + int(array.sum(dtype=np.int64))
                elif kind == SUM:
                    self.sums[name] = self.sums.get(name, 0) + array.sum(axis=0, dtype=np.float64)
                else:
                    self.largest[name] = np.maximum(self.largest.get(name, np.float32(0)), array.max(axis=0))
        self.samples += 1

    def _widen(self, name: str, low: float, high: float) -> None:
        before = self.ranges.get(name, (np.inf, -np.inf))
        self.ranges[name] = (min(before[0], low), max(before[1], high))
        if not np.isfinite(self.ranges[name]).all():
            raise RuntimeFailure(f"the calibration data make {name} infinite, or nothing but NaN: look at the data and their scaling")

    def mean(self, layer: str) -> np.ndarray | None:
        """The mean of each channel that a layer reads, float64."""
        return self.sums[layer] * len(self.sums[layer]) / max(self.sizes[layer], 1) if layer in self.sums else None

    def as_arrays(self) -> dict[str, np.ndarray]:
        """For a .npz file."""
        found = {f"{COUNTS}/{name}": array for name, array in self.counts.items()}
        found |= {f"{RANGE}/{name}": np.array(pair) for name, pair in self.ranges.items()}
        found |= {f"{SIZE}/{name}": np.array(size) for name, size in self.sizes.items()}
        found |= {f"{SUM}/{name}": array for name, array in self.sums.items()}
        found |= {f"{LARGEST}/{name}": array for name, array in self.largest.items()}
        return {**found, "samples": np.array(self.samples)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Statistics:
        """What ``as_arrays`` gave."""
        found = Statistics(samples=int(arrays["samples"]))
        for key, array in arrays.items():
            kind, _, name = key.partition("/")
            if kind == COUNTS:
                found.counts[name] = array
            elif kind == RANGE:
                found.ranges[name] = (float(array[0]), float(array[1]))
            elif kind == SIZE:
                found.sizes[name] = int(array)
            elif kind in (SUM, LARGEST):
                (found.sums if kind == SUM else found.largest)[name] = array
        return found


@dataclass(frozen=True)
class Counters:
    """``module`` has the counters as outputs before its own; ``outputs`` gives by an output's name what it is for which groups or layers."""

    module: Module
    outputs: Mapping[str, Sequence[tuple[str, str]]]


def with_counters(network: Network) -> Counters:
    """The network with counters of all roots and of what its layers read. They stand in the order of computation and before the
    network's own outputs, so that what is counted need not be kept."""
    function = network.module.main
    channels: dict[Expr, dict[int, list[str]]] = {}
    for layer in network.layers:
        if layer.weight is not None:
            value = layer.call.args[layer.data[0]]
            channels.setdefault(value, {}).setdefault(channel_axis(layer) % _tensor(value).rank, []).append(layer.name)
    counters: list[Call] = []
    outputs: dict[str, list[tuple[str, str]]] = {}
    for node in post_order(*function.params, function.body):
        group = network.roots.get(node)
        axes: dict[int | None, list[str]] = dict(channels.get(node, {}).items())
        if group is not None and not axes:
            axes[None] = []
        for number, (axis, layers) in enumerate(axes.items()):
            names = [f"~{len(counters)}.{field}" for field in range(4)]
            counters.append(_observed(node, axis))
            uses: list[list[tuple[str, str]]] = [
                [(SIZE, each) for each in layers],
                [],
                *([(kind, each) for each in layers] for kind in (SUM, LARGEST)),
            ]
            if group is not None and number == 0:
                uses[0].append((COUNTS, network.names[group]))
                uses[1].append((RANGE, network.names[group]))
            outputs |= dict(zip(names, uses, strict=True))
    own = list(function.body.fields) if isinstance(function.body, Tuple) else [function.body]
    fields = [TupleGetItem(each, i) for each in counters for i in range(4)]
    named = {"main": (*outputs, *network.module.output_names["main"])}
    return Counters(network.module.with_functions({"main": with_body(function, Tuple((*fields, *own)))}, named), outputs)


def _observed(node: Expr, axis: int | None) -> Call:
    shape = _tensor(node).shape
    view = (1, 1, product(shape)) if axis is None else (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]))
    return ops.observe(ops.reshape(node, shape=view))


def _tensor(node: Expr) -> TensorType:
    assert isinstance(node.type, TensorType)
    return node.type
