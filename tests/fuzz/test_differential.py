"""Two hundred random graphs against ONNX Runtime, and what the thousands of the committed run found."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.__main__ import RESULTS, in_a_process
from tests.fuzz.builder import Graph, evaluate
from tests.fuzz.compare import check
from tests.fuzz.graphs import build
from tests.fuzz.script import script
from tests.fuzz.session import Tally


@pytest.mark.slow
def test_random_graphs_compute_what_onnx_runtime_does() -> None:
    """Shares are asked of all 200: hypothesis draws a seed's graphs anew whenever constants in our sources change, and those of
    one seed are too few to say how often outputs vary."""
    total = Tally()
    with ThreadPoolExecutor(2) as pool:
        for tally in pool.map(in_a_process, range(4)):
            total.add(tally)
    assert not total.problems(), "\n".join(total.problems())
    assert total.graphs >= 200


def _graph(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    found = build(lambda options: options[int(rng.integers(len(options)))], seed)
    assert found is not None
    return found


def test_a_wrong_result_is_a_difference() -> None:
    """The comparison itself, with one element off."""
    graph = next(graph for seed in range(50) if (graph := _graph(seed)).operators[-1] in ("Add", "Conv", "MatMul", "Softmax", "Concat"))

    def spoiled(graph: Graph) -> list[np.ndarray]:
        arrays = [array.copy() for array in evaluate(graph.model, graph.inputs)]
        for array in arrays:
            if array.size:
                array.reshape(-1)[-1] += array.dtype.type(1)
        return arrays

    assert check(graph, spoiled).kind == "different"


def test_the_script_repeats(tmp_path: Path) -> None:
    path = tmp_path / "found.py"
    path.write_text(script(_graph(3)))
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ONNX Runtime:" in done.stdout, done.stderr


def test_too_many_constants_or_refusals_are_a_problem() -> None:
    assert not Tally(graphs=50, outputs=100, varied=90, kinds={"equal": 48, "refused": 2}).problems()
    assert len(Tally(graphs=50, outputs=100, varied=70, kinds={"refused": 10}).problems()) == 2


def test_five_thousand_in_a_row() -> None:
    """What ``python -m tests.fuzz run`` wrote last."""
    found = json.loads(RESULTS.read_text())
    assert found["graphs"] >= 5000 and set(found["kinds"]) <= {"equal", "explained", "refused"}
    assert found["varied"] >= 0.8 * found["outputs"] and found["kinds"]["refused"] <= 0.1 * found["graphs"]
