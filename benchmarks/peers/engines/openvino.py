"""OpenVINO's CPU plugin, held to float32: by itself it computes in bfloat16 where the processor has instructions for it."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.engine import Engine, Run


class OpenVino(Engine):
    name, title, venv, packages = "openvino", "OpenVINO", "openvino", ("openvino",)
    modules = ("openvino",)
    runtime = tuple(
        f"openvino/libs/{library}"
        for library in (
            "libopenvino.so.*", "libopenvino_intel_cpu_plugin.so", "libopenvino_ir_frontend.so.*", "libtbb*.so.*", "libhwloc.so.*",
        )
    )  # fmt: skip
    artefacts = ("model.xml", "model.bin")

    def build(self) -> dict[str, Any]:
        import openvino

        openvino.save_model(openvino.convert_model(self.job.onnx), self.job.folder / "model.xml", compress_to_fp16=False)
        return {}

    def load(self) -> Run:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": self.job.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(self.job.folder / "model.xml", "CPU", settings)
        request = compiled.create_infer_request()
        return lambda x: request.infer([x], share_inputs=True)[0]
