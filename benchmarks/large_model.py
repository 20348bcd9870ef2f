"""Builds a model of more than 2 GB of weights in external data, and says how much memory that took.

    python -m benchmarks.large_model [--gigabytes 2.2]

Peak memory is the kernel's own figure for the building process (VmHWM) plus that of its largest worker.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 6144  # a layer's weight has WIDTH * WIDTH float32, 151 MB
LIMIT = 1.5  # of the weights: what a build may take


def write_model(folder: Path, gigabytes: float) -> tuple[Path, int]:
    """A stack of dense layers, its weights in one file beside it. The path, and the bytes of weights."""
    layers = max(int(gigabytes * 1e9 / (WIDTH * WIDTH * 4)), 1)
    nodes, weights, name, random = [], [], "x", np.random.default_rng(0)
    with (folder / "weights.bin").open("wb") as file:
        for number in range(layers):
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "weights.bin"), ("offset", file.tell()), ("length", WIDTH * WIDTH * 4)):
                tensor.external_data.add(key=key, value=str(value))
            file.write((random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5).data)
            weights.append(tensor)
            nodes += [
                helper.make_node("MatMul", [name, f"w{number}"], [f"a{number}"]),
                helper.make_node("Relu", [f"a{number}"], [f"y{number}"]),
            ]
            name = f"y{number}"
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, WIDTH]) for end in ("x", name)]
    model = helper.make_model(helper.make_graph(nodes, "large", ends[:1], ends[1:], weights), ir_version=10)
    onnx.save(model, folder / "large.onnx")
    return folder / "large.onnx", layers * WIDTH * WIDTH * 4


def build(model: str, output: str) -> None:
    """In a process of its own: prints seconds and peak memory as JSON."""
    import aotc

    begin = time.perf_counter()
    report = aotc.compile(model, output=output)
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    print(json.dumps({"seconds": round(time.perf_counter() - begin, 1), "peak": peak, "weights_file": str(report.weights_file)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.2, help="weights of the model that is made")
    parser.add_argument("--folder", help="where to make it; by default where temporary files go")
    parser.add_argument("--build", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(*options.build)
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        model, size = write_model(Path(made), options.gigabytes)
        command = [sys.executable, "-m", "benchmarks.large_model", "--build", str(model), str(Path(made) / "large.so")]
        facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    share = facts["peak"] / size
    print(
        f"{size / 1e9:.2f} GB of weights: built in {facts['seconds']} s with {facts['peak'] / 1e9:.2f} GB of memory, {share:.2f} times the weights"
    )
    return int(share > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
