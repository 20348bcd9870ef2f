"""The same networks in PyTorch on the GPU, whose convolutions and products are cuDNN's and cuBLAS's: times alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.networks import NETWORKS, Result
from benchmarks.gpu.timing import microseconds
from tests.cuda.real_networks import FIGURES

WAYS = ("eager", "graphs", "compiled", "compiled-graphs")
COMPILED = tuple(way for way in WAYS if way.startswith("compiled"))


def names(ways: tuple[str, ...]) -> list[str]:
    return [f"{name} {precision} {way}" for name, network in NETWORKS.items() if network.torch for precision in FIGURES for way in ways]


def run(key: str, folder: Path) -> Result:
    if not torch.cuda.is_available():
        return {"missing": "PyTorch with CUDA"}
    name, precision, way = key.split()
    network = NETWORKS[name]
    assert network.torch is not None
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # ours has none either
    torch.backends.cudnn.benchmark = True
    module = network.torch().cuda()
    inputs = [torch.from_numpy(value).cuda() for value in network.feeds().values()]
    if precision == "fp16":
        module, inputs = module.half(), [each.half() if each.is_floating_point() else each for each in inputs]
    with torch.inference_mode():
        once = _way(way, module, inputs)
        return {"gpu_us": microseconds(lambda: (once(), torch.cuda.synchronize()))}


def _way(way: str, module: Any, inputs: list[torch.Tensor]) -> Callable[[], object]:
    if way == "graphs":
        return _graph(module, inputs)
    if way == "compiled":
        module = torch.compile(module)
    elif way == "compiled-graphs":
        module = torch.compile(module, mode="reduce-overhead")
    return lambda: module(*inputs)


def _graph(module: Any, inputs: list[torch.Tensor]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # cuDNN chooses before anything is captured
        for _ in range(3):
            module(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*inputs)
    return graph.replay
