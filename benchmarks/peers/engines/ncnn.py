"""ncnn, by its converter pnnx, with its storage and arithmetic of 16 bits switched off."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np

from benchmarks.peers.engine import SITE, Engine, Run


class Ncnn(Engine):
    name, title, venv, packages = "ncnn", "ncnn", "ncnn", ("ncnn", "pnnx")
    modules = ("ncnn",)
    runtime = ("ncnn/*.so", "ncnn.libs/*")
    artefacts = ("model.param", "model.bin")

    def build(self) -> dict[str, Any]:
        x, folder = self.job.input(), self.job.folder
        shape = f"[{','.join(map(str, x.shape))}]{ {'float32': 'f32', 'int64': 'i64'}[str(x.dtype)] }".replace(" ", "")
        names = {"ncnnparam": "model.param", "ncnnbin": "model.bin", "ncnnpy": "ncnn.py", "pnnxparam": "pnnx.param", "pnnxbin": "pnnx.bin"}
        names |= {"pnnxpy": "pnnx.py", "pnnxonnx": "pnnx.onnx"}
        # The wheel's binary: its Python module would want torch.
        command = [str(SITE / "pnnx" / "pnnx"), str(self.job.onnx), f"inputshape={shape}", "fp16=0"]
        subprocess.run([*command, *(f"{key}={folder / name}" for key, name in names.items())], check=True, stdout=subprocess.DEVNULL)
        for name in ("pnnx.bin", "pnnx.onnx"):
            (folder / name).unlink(missing_ok=True)
        return {}

    def load(self) -> Run:
        import ncnn

        network = ncnn.Net()
        options = network.opt
        options.num_threads = self.job.threads
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = options.use_bf16_storage = False
        for status in (network.load_param(str(self.job.folder / "model.param")), network.load_model(str(self.job.folder / "model.bin"))):
            if status:
                raise RuntimeError(f"ncnn could not load the converted model: status {status}")
        self.network = network  # extractors do not keep it alive

        def run(x: np.ndarray) -> np.ndarray:
            extractor = network.create_extractor()
            extractor.input("in0", ncnn.Mat(x[0] if x.dtype == np.float32 else x[0].astype(np.int32)))
            status, result = extractor.extract("out0")
            if status:
                raise RuntimeError(f"ncnn's extract returned {status}")
            return np.array(result)[None]

        return run
