"""ONNX Runtime's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime


def onnxruntime_outputs(model: Path | onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int = 1) -> dict[str, np.ndarray]:
    """The outputs of an ONNX file or model by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
