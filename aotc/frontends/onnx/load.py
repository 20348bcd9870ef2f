"""Reads an ONNX file, and refuses what is no sound model before anything is built from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from aotc.errors import InvalidModel, UnsupportedModel

OPSETS_SINCE = 3  # the version of the file format from which a model must say which operator sets it uses
MIN_OPSET = 7
MAX_FILE = (1 << 31) - 1  # bytes; the limit of protobuf
DEFAULT_DOMAINS = ("", "ai.onnx")


def load_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model and the folder for its external data (None where it was not read from a file)."""
    if isinstance(source, onnx.ModelProto):
        return _checked(source, "the model"), None
    if isinstance(source, bytes):
        return _checked(_parsed(source, "the model"), "the model"), None
    path = Path(source)
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise InvalidModel(f"{path} has {size} bytes, more than an ONNX file can have; keep weights as external data")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidModel(f"cannot read {path}: {error.strerror}") from error
    return _checked(_parsed(data, str(path)), str(path)), path.absolute().parent


def _parsed(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise InvalidModel(f"{what} is empty; expected an ONNX model")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModel(f"{what} is not an ONNX model, or is cut short: {error}") from error
    return model


def _checked(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModel(f"{what} holds no graph; expected an ONNX model")
    if not model.graph.output:
        raise InvalidModel(f"{what} has a graph without outputs")
    if model.ir_version >= OPSETS_SINCE and not model.opset_import:
        raise InvalidModel(f"{what} does not say which operator sets it uses (opset_import); is the file complete?")
    opsets = opsets_of(model.opset_import)
    opset = opsets.get("", 0)
    for domain, version in opsets.items():
        if not 0 < version < 1 << 31:
            raise InvalidModel(f"{what} imports version {version} of the operators of {domain or 'ai.onnx'!r}")
    newest = onnx.defs.onnx_opset_version()
    if "" in opsets and opset < MIN_OPSET and any(_changed_since(node, opset) for node in model.graph.node):
        raise UnsupportedModel(
            f"{what} is written in opset {opset}; aotc reads {MIN_OPSET} to {newest}. onnx.version_converter.convert_version can raise it"
        )
    if opset > newest:
        raise UnsupportedModel(f"{what} is written in opset {opset}; aotc with onnx {onnx.__version__} reads {MIN_OPSET} to {newest}")
    return model


def opsets_of(imports: Any) -> dict[str, int]:
    """Opset versions by domain; the default domain is ''. A model without imports means opset 1 of it, as ONNX says."""
    opsets = {"" if entry.domain in DEFAULT_DOMAINS else entry.domain: int(entry.version) for entry in imports}
    return opsets if opsets else {"": 1}


def _changed_since(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node's operator meant something else in ``opset`` than it does in the oldest that is read here."""
    try:
        schemas = [onnx.defs.get_schema(node.op_type, version, node.domain) for version in (opset, MIN_OPSET)]
    except onnx.defs.SchemaError:
        return True
    return bool(node.domain == "" and schemas[0].since_version != schemas[1].since_version)
