"""Where a built file departs from its source: every node's result beside that of ONNX Runtime, PyTorch or NumPy.

Built on ``tap``: the imported module is compiled with one extra output for each of the user's nodes, so nodes are named as the
user named them. Extra outputs keep operators from fusing; the plain build's outputs are therefore compared as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aotc.compiler import compile as compile_model
from aotc.errors import InvalidOption
from aotc.ir.expr import Constant, Expr, Module, Parameter, TupleGetItem
from aotc.ir.tap import last_of_each_origin, tap
from aotc.ops.interpret import interpret
from aotc.passes.lower_precision import lower_precision
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, run_passes
from aotc.targets import Target

Recorder = Callable[[Sequence[str]], Mapping[str, Sequence[np.ndarray]]]
"""The reference's results of the nodes asked for, by the user's name, one array for each output; unknown names left out."""


@dataclass(frozen=True)
class Difference:
    """How far one tensor is from the reference, relative to the reference's own size; ``note`` where it cannot be said."""

    name: str
    largest: float
    l2: float
    shape: tuple[int, ...]
    note: str = ""

    def exceeds(self, figure: float) -> bool:
        """Whether the largest difference is above ``figure``, or the L2 distance above a third of it."""
        return bool(self.note) or not (self.largest <= figure and self.l2 <= figure / 3)


@dataclass(frozen=True)
class Comparison:
    """``outputs``: of the plain build; ``nodes``: in the order of computation; ``unseen``: nodes that the reference has not."""

    outputs: tuple[Difference, ...]
    nodes: tuple[Difference, ...]
    unseen: tuple[str, ...]

    def first_departing(self, figure: float) -> Difference | None:
        """The first node above ``figure``: everything before it agrees."""
        return next((node for node in self.nodes if node.exceeds(figure)), None)


def compare(module: Module, target: Target, feeds: Mapping[str, np.ndarray], record: Recorder, outputs: Sequence[np.ndarray]) -> Comparison:
    """Compiles ``module`` twice, plain and with all nodes as outputs, runs both here, and compares with the reference:
    ``outputs`` of the whole model and ``record`` for its nodes."""
    last = {origin: node for origin, node in last_of_each_origin(module.main).items() if not isinstance(node, (Constant, Parameter))}
    chosen = set(last.values())
    tapped = tap(module, lambda node: node in chosen)
    plain = run_once(module, target, feeds)
    results = run_once(tapped.module, target, feeds) if tapped.taps else {}
    recorded = record(list(last))
    nodes, unseen = [], []
    for name, node in zip(tapped.names, tapped.taps, strict=True):
        origin, index = _origin(node)
        if origin not in recorded or index >= len(recorded[origin]):
            unseen.append(name)
        else:
            nodes.append(difference(name, results[name], recorded[origin][index]))
    names = module.output_names["main"]
    whole = tuple(difference(name, plain[name], reference) for name, reference in zip(names, outputs, strict=True))
    return Comparison(whole, tuple(nodes), tuple(unseen))


def compare_precision(module: Module, precision: str, feeds: Mapping[str, np.ndarray]) -> Comparison:
    """How far ``module`` in another precision is from itself in float32, layer by layer, as the operators' numpy references compute
    both: no GPU is needed. A layer with values that a half cannot hold says so."""
    clean = run_passes(module, CLEAN, Options())
    lowered = lower_precision(clean, Options(precision=precision))
    (outputs, layers), (new_outputs, new_layers) = (_interpreted(each, feeds) for each in (clean, lowered))
    names = module.output_names["main"]
    whole = tuple(_half_difference(name, new, old) for name, new, old in zip(names, new_outputs, outputs, strict=True))
    nodes = [_half_difference(name, new_layers[name], value) for name, value in layers.items() if name in new_layers]
    return Comparison(whole, tuple(nodes), tuple(name for name in layers if name not in new_layers))


def _interpreted(module: Module, feeds: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The outputs, and what the nodes of the user's names compute."""
    chosen = {node for node in last_of_each_origin(module.main).values() if not isinstance(node, (Constant, Parameter))}
    tapped, count = tap(module, lambda node: node in chosen), len(module.output_names["main"])
    with np.errstate(over="ignore", invalid="ignore"):
        values = interpret(tapped.module.main, [feeds[param.name] for param in module.main.params])
    return values[:count], dict(zip(tapped.names, values[count:], strict=True))


def _half_difference(name: str, result: np.ndarray, reference: np.ndarray) -> Difference:
    found = difference(name, result.astype(reference.dtype), reference)
    if np.isinf(result).any() and np.isfinite(reference).all():
        return replace(found, note=f"overflows: {np.abs(reference).max():.4g} is more than float16's {np.finfo(np.float16).max:g}")
    return found


def run_once(module: Module, target: Target, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of ``module``, compiled for ``target`` and run on this machine."""
    from aotc.runtime.loader import load

    with tempfile.TemporaryDirectory(prefix="aotc-compare-") as folder:
        output = Path(folder) / "model.so"
        compile_model(module, target, output)
        return dict(load(output).run(feeds))


def difference(name: str, result: np.ndarray, reference: np.ndarray) -> Difference:
    """Integers and booleans count as numbers here, so that the size of a mistake is seen."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        note = f"{result.dtype}{list(result.shape)}, the reference has {reference.dtype}{list(reference.shape)}"
        return Difference(name, float("inf"), float("inf"), result.shape, note)
    a, b = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return Difference(name, float("inf"), float("inf"), result.shape, "infinities or NaNs are at other places")
    a, b = a[finite], b[finite]
    if np.array_equal(a, b):
        return Difference(name, 0.0, 0.0, result.shape)
    tiny = float(np.finfo(np.float64).tiny)
    largest = float(np.abs(a - b).max()) / max(float(np.abs(b).max()), tiny)
    return Difference(name, largest, float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), tiny), result.shape)


def onnx_recorder(path: str, feeds: Mapping[str, np.ndarray]) -> tuple[Recorder, list[np.ndarray]]:
    """ONNX Runtime without optimisations, on the file. Raises InvalidOption where it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise InvalidOption("onnxruntime is not installed: run pip install onnxruntime, or use --reference numpy") from error
    import onnx

    from aotc.frontends.onnx.graph import origin_of

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    outputs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))

    def record(origins: Sequence[str]) -> dict[str, list[np.ndarray]]:
        model = onnx.load(path)
        wanted = {origin_of(node): [name for name in node.output if name] for node in model.graph.node}
        wanted = {origin: wanted[origin] for origin in origins if origin in wanted}
        own = {value.name for value in model.graph.output}
        extra = dict.fromkeys(name for names in wanted.values() for name in names if name not in own)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        values = dict(zip(names, session.run(names, dict(feeds)), strict=True))
        return {origin: [values[name] for name in names] for origin, names in wanted.items()}

    return record, outputs


def numpy_recorder(module: Module, feeds: Mapping[str, np.ndarray]) -> tuple[Recorder, list[np.ndarray]]:
    """The operators' numpy references on the imported module: shows faults of passes and kernels, not of the import."""
    arrays = [feeds[param.name] for param in module.main.params]

    def record(origins: Sequence[str]) -> dict[str, list[np.ndarray]]:
        last = last_of_each_origin(module.main)
        chosen = {last[origin] for origin in origins}
        tapped = tap(module, lambda node: node in chosen)
        values = interpret(tapped.module.main, arrays)[len(module.output_names["main"]) :]
        found: dict[str, list[np.ndarray]] = {}
        for node, value in zip(tapped.taps, values, strict=True):
            found.setdefault(_origin(node)[0], []).append(value)
        return found

    return record, interpret(module.main, arrays)


def torch_recorder(
    model: Any, args: Sequence[Any] | None, dynamic_shapes: Any, feeds: Mapping[str, np.ndarray]
) -> tuple[Recorder, list[np.ndarray]]:
    """PyTorch's own interpreter, node by node, on the program that the frontend sees of ``model``."""
    import torch

    from aotc.frontends.torch.program import decomposed, exported_program
    from aotc.frontends.torch.signature import node_origins

    program = decomposed(exported_program(model, args, None, dynamic_shapes))
    origins = node_origins(program)
    arguments = [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]
    values: dict[str, list[np.ndarray]] = {}

    class Recording(torch.fx.Interpreter):  # type: ignore[misc]  # torch is untyped here
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            parts = value if isinstance(value, (tuple, list)) else (value,)
            if node.name in origins and all(isinstance(part, torch.Tensor) for part in parts):
                values[origins[node.name]] = [np.array(part.detach().numpy()) for part in parts]
            return value

    with torch.no_grad():
        result = Recording(program.module()).run(*arguments)
    outputs = [np.array(part.numpy()) for part in torch.utils._pytree.tree_leaves(result)]
    return (lambda names: {name: values[name] for name in names if name in values}), outputs


def _origin(node: Expr) -> tuple[str, int]:
    if isinstance(node, TupleGetItem):
        return node.origin or node.value.origin, node.index
    return node.origin, 0
