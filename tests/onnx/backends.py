"""The backends that the node tests run on, by target."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

import aotc
from aotc.onnx_backend import AotcBackend, named_inputs, with_sequences
from aotc.packaging.reader import read_packaged
from tests.cuda.software import host_with_gpu, software_gpu
from tests.e2e.emulate import emulate


class EmulatedRep(BackendRep):
    """A file for 64-bit Arm; each run is one of the board's own runner under qemu."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph_outputs = list(model.graph.output)
        self.folder = tempfile.TemporaryDirectory(prefix="aotc-emulated-")
        self.file = Path(self.folder.name) / "model.so"
        aotc.compile(model, target="aarch64", output=self.file, jobs=0)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = [info.name for info in read_packaged(self.file).manifest.entry_points[0].inputs]
        outputs = emulate(self.file, list(named_inputs(names, inputs).values()), Path(self.folder.name))
        return with_sequences(self.graph_outputs, outputs)


class EmulatedBackend(AotcBackend):
    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        return EmulatedRep(model)


class SoftwareGpuRep(BackendRep):
    """A file with code for a GPU, run by the software CUDA driver with its checks on."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph_outputs = list(model.graph.output)
        self.folder = tempfile.TemporaryDirectory(prefix="aotc-cuda-")
        self.report = aotc.compile(model, host_with_gpu(), Path(self.folder.name) / "model.so", device="cuda", jobs=0)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        with software_gpu(self.report.cuda_kernels, Path(self.folder.name)):
            opened = aotc.load(self.report.output)
            outputs = opened.run(named_inputs([info.name for info in opened.inputs], inputs))
        return with_sequences(self.graph_outputs, outputs)


class SoftwareGpuBackend(AotcBackend):
    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        return SoftwareGpuRep(model)


BACKENDS: dict[str, type[Backend]] = {"host": AotcBackend, "aarch64": EmulatedBackend, "cuda": SoftwareGpuBackend}
