"""IREE for this processor, with and without its pass that makes convolutions channels-last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.engine import Engine, Run


class Iree(Engine):
    name, title, venv, packages = "iree", "IREE", "iree", ("iree-base-compiler",)
    modules = ("iree.runtime",)
    runtime = ("iree/_runtime_libs/_runtime.*.so",)
    artefacts = ("model.vmfb",)
    flags: ClassVar[tuple[str, ...]] = ()

    def build(self) -> dict[str, Any]:
        programs, text = Path(sys.executable).parent, self.job.folder / "model.mlir"
        subprocess.run([str(programs / "iree-import-onnx"), str(self.job.onnx), "-o", str(text)], check=True)
        command = [str(programs / "iree-compile"), str(text), "-o", str(self.job.folder / "model.vmfb"), "--iree-opt-level=O3"]
        command += ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
        command += ["--iree-llvmcpu-stack-allocation-limit=131072"]  # attention needs 37056, the default is 32768
        subprocess.run([*command, *self.flags], check=True)
        text.unlink()
        return {}

    def load(self) -> Run:
        import iree.runtime as runtime

        if self.job.threads > 1:
            runtime.flags.parse_flags(f"--task_topology_group_count={self.job.threads}")
        config = runtime.Config("local-sync" if self.job.threads == 1 else "local-task")
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.mmap(config.vm_instance, str(self.job.folder / "model.vmfb")))
        module = next(module for name, module in context.modules.items() if name != "hal")
        names = [name for name in module.vm_module.function_names if not name.startswith("__") and not name.endswith("$async")]
        call = module[names[0]]
        return lambda x: np.asarray(call(x))


class IreeChannelsLast(Iree):
    name, title = "iree-nhwc", "IREE, channels last"
    flags = ("--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))",)
