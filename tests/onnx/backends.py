"""The backends that the node tests run on, by target."""

from __future__ import annotations

from onnx.backend.base import Backend

from aotc.onnx_backend import AotcBackend

BACKENDS: dict[str, type[Backend]] = {"host": AotcBackend}
