"""Stock TVM: Relax's ONNX frontend and ``tvm.compile``'s default pipeline for this processor, without tuning."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.peers.engine import Engine, Run


class Tvm(Engine):
    name, title, packages = "tvm", "TVM, untuned", ("apache-tvm",)
    modules = ("tvm", "tvm.relax")
    runtime = ("tvm/lib/libtvm_runtime.so", "tvm/lib/libtvm_runtime_extra.so", "tvm_ffi/lib/libtvm_ffi.so")
    artefacts = ("model.so",)

    def build(self) -> dict[str, Any]:
        import onnx
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": os.cpu_count() or 1})
        compiled = tvm.compile(from_onnx(onnx.load(self.job.onnx)), target=target)
        compiled.export_library(str(self.job.folder / "model.so"))
        return {}

    def load(self) -> Run:
        import tvm
        from tvm import relax

        machine = relax.VirtualMachine(tvm.runtime.load_module(str(self.job.folder / "model.so")), tvm.cpu())

        def run(x: np.ndarray) -> np.ndarray:
            result = machine["main"](tvm.runtime.tensor(x))
            array: np.ndarray = (result if hasattr(result, "numpy") else result[0]).numpy()
            return array

        return run
