"""aotc as an ONNX backend, the interface of ``onnx.backend.base``: every output comes from a file that aotc built.

import aotc.onnx_backend as backend
outputs = backend.run_model(onnx.load("model.onnx"), [image])

from onnx.backend.test import BackendTest                     # ONNX's own conformance tests
globals().update(BackendTest(backend.AotcBackend, __name__).test_cases)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from aotc.compiler import compile
from aotc.errors import AotcError, InvalidOption
from aotc.frontends import import_onnx
from aotc.runtime.loader import Model, load


class AotcRep(BackendRep):  # type: ignore[misc]
    """A built and opened file. The file itself is gone: it stays mapped for as long as this object lives."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph_outputs = list(model.graph.output)
        with tempfile.TemporaryDirectory(prefix="aotc-backend-") as folder:
            output = Path(folder) / "model.so"
            compile(model, output=output, jobs=0)
            self.model: Model = load(output, num_threads=1)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, in the model's order, of ``inputs``: a sequence in the model's order or a mapping by name. Raises
        RuntimeFailure."""
        outputs = self.model.run(named_inputs([info.name for info in self.model.inputs], inputs))
        return with_sequences(self.graph_outputs, outputs)


def with_sequences(declared: Sequence[onnx.ValueInfoProto], outputs: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
    """The outputs of a model as it declares them: a list for a sequence, whose items the file gives out as name[0], name[1], ..."""
    return tuple(outputs[value.name] if value.name in outputs else _items(value.name, outputs) for value in declared)


def _items(name: str, outputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [outputs[key] for i in range(len(outputs)) if (key := f"{name}[{i}]") in outputs]


def named_inputs(names: Sequence[str], inputs: Any) -> dict[str, np.ndarray]:
    """Arrays by name, of anything that ``BackendRep.run`` takes. Raises InvalidOption for too few or too many."""
    if hasattr(inputs, "keys"):
        return dict(inputs)
    arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if len(arrays) != len(names):
        raise InvalidOption(f"the model has {len(names)} inputs ({', '.join(names) or 'none'}), got {len(arrays)} arrays")
    return dict(zip(names, arrays))


class AotcBackend(Backend):  # type: ignore[misc]
    """Builds for the machine it runs on."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether aotc can import ``model`` and ``device`` is there."""
        if not cls.supports_device(device):
            return False
        try:
            import_onnx(model)
        except AotcError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> AotcRep:
        """Builds ``model``. Raises what ``aotc.compile`` raises."""
        cls._check(device)
        return AotcRep(model)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        """The outputs of one node on ``inputs``, which fix the shapes. ``opset_version``: of the default domain, by default the
        newest that this onnx knows."""
        cls._check(device)
        names = [name for name in node.input if name]
        arrays = named_inputs(names, inputs)
        values = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.shape(array))
            for name, array in arrays.items()
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        opset = onnx.helper.make_opsetid(node.domain, kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", values, results), opset_imports=[opset])
        return AotcRep(model).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, ValueError):
            return False

    @classmethod
    def _check(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise InvalidOption(f"the device {device!r} is not supported; expected 'CPU'")


is_compatible = AotcBackend.is_compatible
prepare = AotcBackend.prepare
run_model = AotcBackend.run_model
run_node = AotcBackend.run_node
supports_device = AotcBackend.supports_device
