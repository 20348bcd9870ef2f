"""Builds one network, runs the file and compares with PyTorch."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aotc
from aotc.comparison import Difference, difference
from tests.models.case import Case, Inputs

FIGURE = 1e-4
"""Agreement as aotc.comparison defines it."""
SPREAD = 1e-3
"""An output whose values differ by less than this fraction of the largest one shows nothing."""


class Disagreement(Exception):
    """The file's numbers are not PyTorch's; the text says by how much."""


def measure(case: Case, via: str, jobs: int | None = None) -> dict[str, Any]:
    """The row of the table: what was built and run, and the largest differences. Raises what goes wrong."""
    torch.manual_seed(0)
    module = case.make().eval()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="aotc-models-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = Path(folder) / "model.so"
        report = _build(case, module, via, output, jobs)
        seconds = time.perf_counter() - begin
        model = aotc.load(output)
        batches = list(case.batches) if case.dynamic else [1]
        found = [each for batch in batches for each in _compare(model, module, case.inputs(batch), batch)]
        worst = max(found, key=lambda each: each.largest)
        for each in found:
            if each.exceeds(FIGURE):
                raise Disagreement(f"{each.name}: largest {each.largest:.1e}, L2 {each.l2:.1e} {each.note}".rstrip())
    return {
        "largest": float(f"{worst.largest:.1e}"),
        "l2": float(f"{max(each.l2 for each in found):.1e}"),
        "batches": batches if any("batch" in axes.values() for axes in case.dynamic.values()) else [],
        "parameters": sum(p.numel() for p in module.parameters()),
        "kernels": report.kernels_built + report.kernels_cached,
        "seconds": round(seconds),
    }


def _build(case: Case, module: torch.nn.Module, via: str, output: Path, jobs: int | None) -> aotc.BuildReport:
    inputs = case.inputs(case.example_batch())
    if via == "torch":
        return aotc.compile(module, "host", output, args=tuple(inputs.values()), dynamic_shapes=case.dynamic_shapes() or None, jobs=jobs)
    path = output.with_suffix(".onnx")
    with torch.no_grad():
        torch.onnx.export(
            module, tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=True, verbose=False, external_data=False,
            dynamic_shapes=case.dynamic_shapes(),
        )  # fmt: skip
    return aotc.compile(path, "host", output, jobs=jobs)


def _compare(model: Any, module: torch.nn.Module, inputs: Inputs, batch: int) -> list[Difference]:
    with torch.no_grad():
        expected = [leaf for leaf in torch.utils._pytree.tree_leaves(module(**inputs)) if leaf is not None]
    results = model.run({name: tensor.numpy() for name, tensor in inputs.items()})
    if len(results) != len(expected):
        raise Disagreement(f"{len(results)} outputs, PyTorch has {len(expected)}")
    return [_difference(f"{name} at batch {batch}", mine, theirs.numpy()) for (name, mine), theirs in zip(results.items(), expected)]


def _difference(name: str, mine: np.ndarray, theirs: np.ndarray) -> Difference:
    values = theirs[np.isfinite(theirs)].astype("float64") if theirs.dtype.kind == "f" else theirs.astype("float64")
    if values.size > 1 and np.ptp(values) <= SPREAD * np.abs(values).max():
        raise Disagreement(f"{name}: PyTorch's own values are all nearly {values.flat[0]:g}, which shows nothing")
    return difference(name, mine, theirs)
