"""TorchInductor, by torch.compile and by AOTInductor, with frozen weights."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.peers.engine import Engine, Run


class _Inductor(Engine):
    packages = ("torch",)
    # Packed weights and loops are chosen for a number of threads: a package built for two threads and run with one reorders
    # some weights in every call.
    per_thread, needs_torch = True, True

    def torch(self) -> Any:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.job.folder / "cache")
        import torch

        torch.set_num_threads(self.job.threads)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("highest")
        return torch


def _wrapped(torch: Any, call: Any) -> Run:
    def run(x: np.ndarray) -> np.ndarray:
        result: np.ndarray = call(torch.from_numpy(x)).numpy()
        return result

    return run


class TorchCompile(_Inductor):
    """The build fills Inductor's cache on disk; loading still traces."""

    name, title = "torch-compile", "torch.compile"
    modules = ("torch", "torch._inductor.config")
    runtime = ("torch",)
    artefacts = ("model/module.pt",)

    def build(self) -> dict[str, Any]:
        self.load()(self.job.input())
        return {}

    def load(self) -> Run:
        torch = self.torch()
        import torch._inductor.config as config

        from tests.zoo.classifiers import models

        models()  # the pickled module may be one of torchvision's
        config.freezing = True
        return _wrapped(torch, torch.compile(torch.load(self.job.module, weights_only=False)))


class AotInductor(_Inductor):
    name, title = "aotinductor", "AOTInductor"
    modules = ("torch", "torch._inductor")
    runtime = tuple(f"torch/lib/{library}" for library in ("libtorch_cpu.so", "libtorch.so", "libc10.so", "libgomp*.so*"))
    artefacts = ("model.pt2",)

    def build(self) -> dict[str, Any]:
        torch = self.torch()
        import torch._inductor as inductor

        program = torch.export.load(self.job.exported)
        inductor.aoti_compile_and_package(program, package_path=str(self.job.folder / "model.pt2"), inductor_configs={"freezing": True})
        return {}

    def load(self) -> Run:
        torch = self.torch()
        import torch._inductor as inductor

        return _wrapped(torch, inductor.aoti_load_package(str(self.job.folder / "model.pt2")))
