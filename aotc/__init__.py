"""aotc compiles PyTorch and ONNX networks ahead of time into one shared library for x86-64 and NVIDIA Jetson boards.

import aotc
aotc.compile("model.onnx", target="host", output="model.so")
outputs = aotc.load("model.so").run({"image": image})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aotc.errors import AotcError, BuildError, InvalidModel, InvalidOption, RuntimeFailure, UnsupportedModel
from aotc.version import __version__

if TYPE_CHECKING:
    from aotc.compiler import BuildReport, compile
    from aotc.entry_points import EntryPoint
    from aotc.frontends import import_onnx, import_torch
    from aotc.ir.types import TensorType
    from aotc.ops.custom import CustomOperator
    from aotc.quantisation import Int8Options
    from aotc.runtime import load
    from aotc.targets import Target

# Loaded on first use: a program that only loads built files needs neither onnx nor the compiler.
_LAZY = {
    "BuildReport": "aotc.compiler",
    "compile": "aotc.compiler",
    "CustomOperator": "aotc.ops.custom",
    "EntryPoint": "aotc.entry_points",
    "Int8Options": "aotc.quantisation",
    "TensorType": "aotc.ir.types",
    "import_onnx": "aotc.frontends",
    "import_torch": "aotc.frontends",
    "load": "aotc.runtime",
    "Target": "aotc.targets",
}

__all__ = [
    "AotcError", "BuildError", "BuildReport", "CustomOperator", "EntryPoint", "Int8Options", "InvalidModel", "InvalidOption", "RuntimeFailure", "Target", "TensorType",
    "UnsupportedModel", "__version__", "compile", "import_onnx", "import_torch", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'aotc' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
