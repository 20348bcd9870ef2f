"""Builds one sample and compares what the file computes with what torch computes."""

from __future__ import annotations

import tempfile
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import aotc
from tests.aten.samples import SAMPLES, Sample, samples
from tests.onnx.pool import reason_of


class _Module(torch.nn.Module):
    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.sample.function(*tensors)


def check(sample: Sample) -> None:
    """Raises what the build raises, and AssertionError where a result is not torch's: torch.testing's own tolerances."""
    with torch.no_grad():
        wanted = pytree.tree_leaves(sample.function(*(tensor.clone() for tensor in sample.tensors)))
    exported = torch.export.export(_Module(sample), sample.tensors)
    with tempfile.TemporaryDirectory(prefix="aotc-aten-") as folder:
        aotc.compile(exported, output=Path(folder) / "model.so", jobs=0)
        model = aotc.load(Path(folder) / "model.so", num_threads=1)
    arrays = [tensor.numpy() for tensor in sample.tensors]
    found = model.run({info.name: array for info, array in zip(model.inputs, arrays, strict=True)}).values()
    tensors = [each for each in wanted if isinstance(each, torch.Tensor)]
    for have, want in zip(found, tensors, strict=True):
        torch.testing.assert_close(torch.from_numpy(have.copy()), want, equal_nan=True)


def serve(pipe: Connection, target: str) -> None:
    """Answers each "operator number" with why that sample fails, or nothing; ``none`` where there is no such sample."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        try:
            name, number = pipe.recv().split()
        except EOFError:
            return
        pipe.send(_one(name, int(number)))


def _one(name: str, number: int) -> str:
    try:
        found = samples(name)
        if number >= len(found):
            return "none"
        check(found[number])
    except Exception as error:
        return reason_of(error)
    return ""


__all__ = ["SAMPLES", "check", "serve"]
