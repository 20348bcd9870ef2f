"""The node tests that come with the onnx package, run through the importer and the reference interpreter."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from aotc.errors import UnsupportedModel
from aotc.frontends.onnx import import_onnx
from aotc.ir.types import SMALL
from aotc.ops.interpret import interpret


@dataclass(frozen=True)
class NodeCase:
    """Inputs and outputs are arrays; anything that is no tensor stays as it is."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any]

    @property
    def has_tensors_only(self) -> bool:
        return all(isinstance(each, np.ndarray) for each in self.inputs + self.outputs)


@functools.cache
def cases() -> dict[str, NodeCase]:
    """All node tests with their first data set, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return {case.name: _case(case) for case in found if case.model is not None and case.data_sets}


def _case(case: Any) -> NodeCase:
    inputs, outputs = case.data_sets[0]
    return NodeCase(case.name, case.model, [_array(each) for each in inputs], [_array(each) for each in outputs])


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.generic, np.ndarray)) else value


def frozen(case: NodeCase, kept: int) -> onnx.ModelProto:
    """The model with all inputs but the first ``kept`` as initialisers: axes and shapes are known then, as in real models."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value, array in list(zip(case.model.graph.input, case.inputs, strict=True))[kept:]:
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    names = [value.name for value in case.model.graph.input][:kept]
    del model.graph.input[:]
    model.graph.input.extend(value for value in case.model.graph.input if value.name in names)
    return model


def run(case: NodeCase) -> list[np.ndarray]:
    """The outputs by our own means. Where a value must be known at build time, inputs become initialisers."""
    arrays = {value.name: array for value, array in zip(case.model.graph.input, case.inputs, strict=True)}
    for kept in dict.fromkeys((len(case.inputs), 1, 0)):
        model = frozen(case, kept)
        try:
            module = import_onnx(model, {value.name: arrays[value.name].shape for value in model.graph.input})
        except UnsupportedModel as error:
            if "known only at run time" in str(error) and kept:
                continue
            raise
        return interpret(module.main, [arrays[param.name] for param in module.main.params])
    raise AssertionError("a value is unknown though all inputs are constants")


def assert_close(results: Sequence[np.ndarray], case: NodeCase) -> None:
    """The tolerances of onnx's own backend tests; float16 has a step of 1e-3, bfloat16 one of 2**-7."""
    for result, expected in zip(results, case.outputs, strict=True):
        assert result.shape == expected.shape, f"shape {result.shape}, expected {expected.shape}"
        assert result.dtype == expected.dtype, f"dtype {result.dtype}, expected {expected.dtype}"
        tolerance = (1e-2, 2e-3) if result.dtype == np.float16 else (1e-3, 1e-6)
        if str(result.dtype) == "bfloat16":
            tolerance = (2**-6, 1e-6)
        if str(result.dtype) in SMALL:
            result, expected = result.astype("float32"), expected.astype("float32")
        np.testing.assert_allclose(result, expected, rtol=tolerance[0], atol=tolerance[1])
