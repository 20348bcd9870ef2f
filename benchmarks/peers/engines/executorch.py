"""ExecuTorch with all that XNNPACK takes delegated to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.engine import Engine, Run


class ExecuTorch(Engine):
    name, title, venv, packages = "executorch", "ExecuTorch (XNNPACK)", "executorch", ("executorch",)
    modules = ("torch", "executorch.extension.pybindings.portable_lib")
    runtime = tuple(f"executorch/lib/libexecutorch{part}.so" for part in ("", "_backend_xnnpack", "_kernels_optimized"))
    artefacts = ("model.pte",)
    needs_torch = True

    def build(self) -> dict[str, Any]:
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        torch.set_grad_enabled(False)
        lowered = to_edge_transform_and_lower(torch.export.load(self.job.exported), partitioner=[XnnpackPartitioner()])
        (self.job.folder / "model.pte").write_bytes(lowered.to_executorch().buffer)
        return {}

    def load(self) -> Run:
        import torch
        from executorch.extension.pybindings.portable_lib import _load_for_executorch, _unsafe_reset_threadpool

        _unsafe_reset_threadpool(self.job.threads)
        program = _load_for_executorch(str(self.job.folder / "model.pte"))

        def run(x: np.ndarray) -> np.ndarray:
            result: np.ndarray = program.forward([torch.from_numpy(x)])[0].numpy()
            return result

        return run
