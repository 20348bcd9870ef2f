"""ONNX exports of torch modules."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch


def export_onnx(
    module: torch.nn.Module,
    args: tuple[torch.Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic_axes: dict[str, dict[int, str]] | None = None,
    opset: int = 17,
) -> None:
    """Writes ``module`` as ONNX with the exporter that needs no further package."""
    options: dict[str, Any] = {"dynamo": False, "opset_version": opset, "dynamic_axes": dynamic_axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, args, str(path), input_names=inputs, output_names=outputs, **options)
