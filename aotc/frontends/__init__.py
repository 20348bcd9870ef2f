"""Source models to Modules. ``import_model`` looks at what it is given and calls the frontend that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from aotc.errors import InvalidOption
from aotc.ir.dims import Dim
from aotc.ir.expr import Module
from aotc.ops.custom import CustomOperator


def import_model(
    model: Any,
    inputs: Mapping[str, Sequence[Dim]] | None = None,
    args: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    operators: Sequence[CustomOperator] = (),
) -> Module:
    """The Module of anything that ``aotc.compile`` takes; see there. Raises InvalidOption for anything else."""
    if isinstance(model, Module):
        return model
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if path.endswith(".pt2"):
            return import_torch(path, inputs=inputs, operators=operators)
        return import_onnx(path, inputs, operators)
    if type(model).__module__.partition(".")[0] == "onnx":
        return import_onnx(model, inputs, operators)
    if hasattr(model, "graph_module") or callable(getattr(model, "forward", None)):
        return import_torch(model, args, dynamic_shapes, inputs=inputs, operators=operators)
    raise InvalidOption(
        f"a model is the path of an .onnx or .pt2 file, a torch module or exported program, an onnx.ModelProto or an aotc Module; got {type(model).__name__}"
    )


def import_onnx(model: Any, inputs: Mapping[str, Sequence[Dim]] | None = None, operators: Sequence[CustomOperator] = ()) -> Module:
    """The Module of an ONNX file or ``onnx.ModelProto``; see ``aotc.frontends.onnx``."""
    from aotc.frontends import onnx

    return onnx.import_onnx(model, inputs, operators)


def import_torch(
    model: Any,
    args: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    inputs: Mapping[str, Sequence[Dim]] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Module:
    """The Module of a torch module, an ``ExportedProgram`` or a .pt2 file; see ``aotc.frontends.torch``. torch is an extra
    of the package: imported here and not before."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InvalidOption("torch is not installed: run pip install 'aotc[torch]', or give an ONNX file") from error
    from aotc.frontends import torch as frontend

    return frontend.import_torch(model, args, dynamic_shapes, inputs=inputs, operators=operators)
