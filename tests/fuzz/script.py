"""A graph as a program that repeats what was found with it."""

from __future__ import annotations

import base64
import textwrap

import numpy as np
import onnx

from tests.fuzz.builder import Graph

_PROGRAM = '''"""Repeats what random testing found: aotc beside ONNX Runtime on one graph."""

import base64  # noqa: F401

import aotc
import numpy as np
import onnx
import onnxruntime

model = {model}
inputs = {{
{inputs}
}}
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")
expected = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, inputs)
aotc.compile(model, output="found.so")
for (name, found), wanted in zip(aotc.load("found.so").run(inputs).items(), expected):
    print(name, "aotc:", found, "ONNX Runtime:", wanted, sep="\\n")
'''


def script(graph: Graph) -> str:
    """Python source that needs nothing of this folder."""
    inputs = "\n".join(f"    {name!r}: {_array(array)}," for name, array in graph.inputs.items())
    return _PROGRAM.format(model=_model(graph.model), inputs=inputs)


def _model(model: onnx.ModelProto) -> str:
    """As text where that reads back the same."""
    try:
        text = onnx.printer.to_text(model)
        if onnx.parser.parse_model(text) == model:
            return f'onnx.parser.parse_model("""\n{text}""")'
    except Exception:  # the text form lacks some of what a model may hold
        pass
    code = "\n".join(textwrap.wrap(base64.b64encode(model.SerializeToString()).decode(), 120))
    return f'onnx.load_from_string(base64.b64decode("""\n{code}"""))'


def _array(array: np.ndarray) -> str:
    if array.size <= 64 and (array.dtype.kind not in "fc" or np.isfinite(array).all()):
        return f"np.array({array.tolist()!r}, {str(array.dtype)!r}).reshape({array.shape})"
    return f"np.frombuffer(bytes.fromhex({array.tobytes().hex()!r}), {str(array.dtype)!r}).reshape({array.shape})"
