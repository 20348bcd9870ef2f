"""Operators in forms that ONNX's node tests lack, from built files: sampling, transforms, n-grams, trees, attention of unknown
lengths; beside ONNX Runtime, or ONNX's reference where that is the only one that has the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.errors import InvalidModel
from aotc.frontends import import_onnx

ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
Names = Mapping[int, Mapping[int, str]]
"""For inputs, by their number, axes that have a name instead of a size."""


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def model_of(op: str, arrays: Sequence[np.ndarray | None], opset: int, dynamic: Names, domain: str, outputs: int, attrs: Any) -> Any:
    """One node whose inputs are the arrays; ``known`` in ``attrs`` names those that are initialisers."""
    known, inputs, weights = attrs.pop("known", ()), [], []
    names = ["" if array is None else f"i{n}" for n, array in enumerate(arrays)]
    for n, array in enumerate(arrays):
        if array is None:
            continue
        if n in known:
            weights.append(onnx.numpy_helper.from_array(array, names[n]))
            continue
        shape = [dynamic.get(n, {}).get(axis, size) for axis, size in enumerate(array.shape)]
        inputs.append(helper.make_tensor_value_info(names[n], helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    results = [f"o{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(name) for name in results], weights)
    opsets = [helper.make_opsetid(domain, opset)] + ([helper.make_opsetid("", 21)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(
    folder: Path, op: str, arrays: Sequence[np.ndarray | None], opset: int, dynamic: Names | None = None, domain: str = "", outputs: int = 1,
    by: str = "onnxruntime", **attrs: Any,
) -> None:  # fmt: skip
    model = model_of(op, arrays, opset, dynamic or {}, domain, outputs, attrs)
    given = {value.name: arrays[int(value.name[1:])] for value in model.graph.input}
    if by == "onnxruntime":
        want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    else:
        want = ReferenceEvaluator(model).run(None, given)
    aotc.compile(model, output=folder / "m.so", jobs=0)
    got = list(aotc.load(folder / "m.so").run(given).values())
    for have, expected in zip(got, want, strict=True):
        assert have.shape == expected.shape and have.dtype == expected.dtype
        np.testing.assert_allclose(have, expected, rtol=2e-4, atol=2e-5)


X = normal(2, 4, 9, 10)
BOXES = np.float32([[0, 0, 7, 7], [1.5, 2, 6, 8.5], [3, 3, 3.2, 3.1]])


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(tmp_path: Path, mode: str) -> None:
    """Opset 16's names of the modes; all sizes dynamic."""
    grid = RNG.uniform(-1.4, 1.4, (2, 5, 6, 2)).astype("float32")
    dynamic = {0: {0: "b", 2: "h", 3: "w"}, 1: {0: "b", 1: "y", 2: "x"}}
    check(tmp_path, "GridSample", [X, grid], 16, dynamic, mode=mode, padding_mode="reflection", align_corners=1)


def test_regions(tmp_path: Path) -> None:
    images, dynamic = np.int64([0, 1, 1]), {1: {0: "r"}, 2: {0: "r"}}
    check(tmp_path, "RoiAlign", [X, BOXES, images], 10, dynamic, output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.9)
    check(tmp_path, "RoiAlign", [X, BOXES, images], 16, dynamic, output_height=3, output_width=3, mode="max")
    both = np.concatenate([images[:, None].astype("float32"), BOXES], 1)
    check(tmp_path, "MaxRoiPool", [X, both], 21, pooled_shape=(2, 2), spatial_scale=0.8)


def test_deform_conv(tmp_path: Path) -> None:
    """Two groups of weights, two of offsets, bias and mask, a dynamic batch."""
    offsets, mask = normal(2, 2 * 9 * 2, 9, 10), RNG.uniform(size=(2, 18, 9, 10)).astype("float32")
    arrays = [X, normal(6, 2, 3, 3), offsets, normal(6), mask]
    dynamic = {n: {0: "b"} for n in (0, 2, 4)}
    check(tmp_path, "DeformConv", arrays, 22, dynamic, group=2, offset_group=2, pads=(1, 1, 1, 1), known=(1, 3))


def test_unpool_and_fold(tmp_path: Path) -> None:
    indices = np.int64([[[[5, 7], [13, 15]]], [[[16, 18], [24, 27]]]])
    data = normal(2, 1, 2, 2)
    for shape in ([2, 1, 5, 6], None):
        arrays = [data, indices] if shape is None else [data, indices, np.int64(shape)]
        check(
            tmp_path,
            "MaxUnpool",
            arrays,
            11,
            {0: {0: "b"}, 1: {0: "b"}} if shape is None else None,
            by="reference",
            kernel_shape=(2, 2),
            strides=(2, 2),
        )
    columns = normal(2, 3 * 6, 4 * 4)
    check(
        tmp_path, "Col2Im", [columns, np.int64([6, 9]), np.int64([2, 3])], 18, {0: {0: "b"}}, by="reference",
        strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 2),
    )  # fmt: skip


@pytest.mark.parametrize("length", [None, 12, 30])
def test_dft_of_unknown_length(tmp_path: Path, length: int | None) -> None:
    """Real data of dynamic length, cut or continued where a length is given, that too known only at run time."""
    x = normal(3, 20, 1)
    arrays = [x] if length is None else [x, np.asarray(length)]
    check(tmp_path, "DFT", arrays, 17, {0: {0: "b", 1: "n"}}, by="reference", axis=1, onesided=1)
    check(tmp_path, "DFT", [normal(3, 20, 2)], 17, {0: {1: "n"}}, by="reference", axis=1, inverse=1)


def test_stft(tmp_path: Path) -> None:
    arrays = [normal(2, 700, 1), np.asarray(160), np.hanning(400).astype("float32"), np.asarray(400)]
    check(tmp_path, "STFT", arrays, 17, {0: {0: "b", 1: "n"}}, by="reference", known=(1, 2, 3))


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams(tmp_path: Path, mode: str) -> None:
    rows = RNG.integers(1, 5, (3, 12)).astype("int64")
    check(
        tmp_path, "TfIdfVectorizer", [rows], 9, {0: {0: "b", 1: "n"}}, mode=mode, min_gram_length=1, max_gram_length=3, max_skip_count=2,
        ngram_counts=[0, 3, 7], ngram_indexes=[4, 0, 2, 5, 1, 3], pool_int64s=[1, 2, 4, 1, 2, 3, 3, 2, 1, 2],
        weights=[0.5, 1, 2, 3, 0.25, 4],
    )  # fmt: skip


TREE = {
    "tree_roots": [0, 2],
    "nodes_modes": np.uint8([0, 6, 3]),
    "nodes_featureids": [0, 1, 2],
    "nodes_splits": np.float32([0.1, 0, -0.2]),
    "nodes_truenodeids": [1, 0, 3],
    "nodes_trueleafs": [0, 1, 1],
    "nodes_falsenodeids": [2, 1, 4],
    "nodes_falseleafs": [1, 1, 1],
    "nodes_missing_value_tracks_true": [1, 0, 0],
    "membership_values": np.float32([1, 3, 5, np.nan]),
    "leaf_targetids": [0, 1, 0, 1, 0],
    "leaf_weights": np.float32([1.5, -2, 0.5, 3, 4.25]),
    "n_targets": 2,
}


def tree(**changes: Any) -> dict[str, Any]:
    return {k: helper.make_tensor(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape, v) if isinstance(v, np.ndarray) else v for k, v in {**TREE, **changes}.items()}  # fmt: skip


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_trees(tmp_path: Path, aggregate: int) -> None:
    x = normal(20, 3)
    x[:, 1] = RNG.integers(0, 6, 20)
    x[3, 0] = np.nan
    check(tmp_path, "TreeEnsemble", [x], 5, {0: {0: "b"}}, ML, by="reference", **tree(aggregate_function=aggregate))


def test_trees_without_an_end_are_refused() -> None:
    for changes, message in (
        ({"nodes_truenodeids": [0, 0, 3], "nodes_trueleafs": [0, 1, 1]}, "lead back"),
        ({"nodes_falsenodeids": [9, 1, 4]}, "beyond the"),
        ({"leaf_targetids": [0, 1, 0, 1, 7]}, "one of 2 targets"),
    ):
        with pytest.raises(InvalidModel, match=message):
            import_onnx(model_of("TreeEnsemble", [normal(2, 3)], 5, {}, ML, 1, tree(**changes)))


def test_tables_of_numbers(tmp_path: Path) -> None:
    x = np.int64([[3, 7], [1, 3]])
    check(tmp_path, "LabelEncoder", [x], 2, None, ML, keys_int64s=[1, 3], values_floats=[0.5, 2.5], default_float=-1.0)
    floats = np.float32([1.5, np.nan, 2])
    check(tmp_path, "LabelEncoder", [floats], 4, None, ML, keys_floats=[2.0, float("nan")], values_int64s=[9, 8], default_int64=-7)
    check(tmp_path, "ArrayFeatureExtractor", [normal(3, 4), np.int64([2, 0])], 1, {0: {0: "b"}}, ML)
    check(tmp_path, "Binarizer", [normal(3, 4)], 1, None, ML, threshold=0.25)


def test_attention_of_unknown_lengths(tmp_path: Path) -> None:
    """Grouped queries, a causal mask, keys and values of before; every length dynamic."""
    arrays = [normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8), None, normal(2, 2, 3, 8), normal(2, 2, 3, 8)]
    names = {0: "b", 2: "s"}
    dynamic = {0: names, 1: names, 2: names, 4: {0: "b", 2: "t"}, 5: {0: "b", 2: "t"}}
    check(tmp_path, "Attention", arrays, 23, dynamic, outputs=3, by="reference", is_causal=1, softcap=5.0)


def test_determinants(tmp_path: Path) -> None:
    check(tmp_path, "Det", [normal(3, 2, 6, 6)], 11, {0: {0: "b"}})
    check(tmp_path, "Det", [normal(4, 4)], 22, by="reference")
