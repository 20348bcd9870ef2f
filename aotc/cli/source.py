"""The MODEL argument: a file, or a Python function that makes the model."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotc.entry_points import EntryPoint
from aotc.errors import InvalidModel, InvalidOption


@dataclass(frozen=True)
class Source:
    """What ``aotc.compile`` takes: a path or a torch module or program, with example inputs where they belong to it."""

    model: Any
    args: tuple[Any, ...] | None = None
    dynamic_shapes: Any = None

    @property
    def is_onnx(self) -> bool:
        return isinstance(self.model, str) and not self.model.endswith(".pt2")


def load_sources(texts: Sequence[str]) -> Source:
    """One model, or several as ``name=model``: a Source whose model is a dict of entry points. Raises InvalidOption."""
    if len(texts) == 1 and (os.path.exists(texts[0]) or "=" not in texts[0]):
        return load_source(texts[0])
    models: dict[str, EntryPoint] = {}
    for text in texts:
        name, mark, model = text.partition("=")
        if not mark or not name or name in models:
            raise InvalidOption(f"MODEL {text!r}: several models are entry points: give each as name=MODEL, with names that differ")
        source = load_source(model)
        models[name] = EntryPoint(source.model, source.args, source.dynamic_shapes)
    return Source(models)


def load_source(text: str) -> Source:
    """``model.onnx``, ``model.pt2`` or ``package.module:function``. Raises InvalidModel or InvalidOption."""
    if os.path.exists(text) or ":" not in text:
        return Source(text)
    module_name, _, function_name = text.rpartition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` does, so that a script beside the user is found
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"MODEL {text!r} is neither a file nor a Python function that can be imported: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise InvalidOption(
            f"MODEL {text!r} is of {type(function).__name__}; expected a Python function without arguments that returns a model"
        )
    made = function()
    if not isinstance(made, tuple):
        return Source(made)
    if not 2 <= len(made) <= 3:
        raise InvalidModel(
            f"{text} returned a tuple of {len(made)}; expected (module, example inputs) or (module, example inputs, dynamic shapes)"
        )
    # One tensor, or one dict, is one example input: a tuple of its rows, or of its keys, would be another model.
    args = tuple(made[1]) if isinstance(made[1], (tuple, list)) else (made[1],)
    return Source(made[0], args, made[2] if len(made) == 3 else None)
