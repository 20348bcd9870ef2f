"""ONNX Runtime with its CPU provider and all of its graph optimisations."""

from __future__ import annotations

from benchmarks.peers.engine import Engine, Run


class OnnxRuntime(Engine):
    name, title, packages = "onnxruntime", "ONNX Runtime", ("onnxruntime",)
    modules = ("onnxruntime",)
    runtime = ("onnxruntime/capi/*.so*",)
    artefacts = ("model/model.onnx",)
    builds = False

    def load(self) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = self.job.threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(str(self.job.onnx), options, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]
