"""Others' answers: ONNX Runtime's, and those of ONNX's reference evaluator in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator


def onnxruntime_outputs(model: Path | onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int = 1) -> dict[str, np.ndarray]:
    """The outputs of an ONNX file or model by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def exact_outputs(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of an ONNX file by name, computed in double precision and rounded to float32: what float32 is compared with where a
    network's own rounding is as large as what it may differ by."""
    model = onnx.load(path)
    _double(model.graph)
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    results = ReferenceEvaluator(model).run(None, wide)
    narrow = [value.astype(np.float32) if value.dtype == np.float64 else value for value in results]
    return dict(zip((output.name for output in model.graph.output), narrow, strict=True))


def _double(graph: GraphProto) -> None:
    """Makes all float32 of a graph and of those within it float64."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.type == AttributeProto.TENSOR)):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for attribute in attributes:
        if attribute.type == AttributeProto.GRAPH:
            _double(attribute.g)
        elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
