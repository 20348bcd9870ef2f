"""The engines, by name, in the order in which pages list them. To add one: its file, its class in ``CLASSES``."""

from __future__ import annotations

from benchmarks.peers.engine import Engine
from benchmarks.peers.engines.executorch import ExecuTorch
from benchmarks.peers.engines.iree import Iree, IreeChannelsLast
from benchmarks.peers.engines.ncnn import Ncnn
from benchmarks.peers.engines.onnxruntime import OnnxRuntime
from benchmarks.peers.engines.openvino import OpenVino
from benchmarks.peers.engines.ours import Aotc, AotcTuned
from benchmarks.peers.engines.torch_inductor import AotInductor, TorchCompile
from benchmarks.peers.engines.tvm import Tvm

CLASSES: tuple[type[Engine], ...] = (
    Aotc,
    AotcTuned,
    OnnxRuntime,
    OpenVino,
    TorchCompile,
    AotInductor,
    ExecuTorch,
    Ncnn,
    Iree,
    IreeChannelsLast,
    Tvm,
)
ENGINES = {engine.name: engine for engine in CLASSES}
OURS = (Aotc.name, AotcTuned.name)
