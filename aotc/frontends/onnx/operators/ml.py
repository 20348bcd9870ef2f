"""Operators of ai.onnx.ml on numbers."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.tensors import to_array
from aotc.ir.dims import product
from aotc.ir.expr import Expr
from aotc.ops.tree import COMPARISONS

MEMBER = 6  # the mode of a node that asks whether a feature is in a set
EQUAL = COMPARISONS.index("==")
NODE_LISTS = ("nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs")
POST_TRANSFORMS = {0: None, 1: ops.softmax, 2: ops.sigmoid}


def _array_feature_extractor(node: Node) -> Results:
    """Columns of x by index; a vector is a matrix of one row."""
    x, indices = node.input(0), node.input(1)
    if not node.rank(x):
        node.invalid("takes a tensor of rank 1 or more, not a scalar")
    flat = node.call(ops.reshape, indices, shape=(product(node.shape(indices)),))
    if node.rank(x) == 1:
        x = node.call(ops.reshape, x, shape=(1, *node.shape(x)))
    return node.call(ops.gather, x, flat, axis=node.rank(x) - 1)


def _binarizer(node: Node) -> Results:
    x = node.input(0)
    above = node.call(ops.greater, x, node.constant(node.number("threshold", 0.0), node.dtype(x)))
    return node.call(ops.cast, above, dtype=node.dtype(x))


def _table(node: Node, name: str) -> np.ndarray:
    """The keys or the values of an encoder."""
    if node.has(f"{name}_strings") or node.has("classes_strings"):
        node.unsupported("it works on strings; aotc takes numbers")
    if node.has(f"{name}_int64s"):
        return np.asarray(node.integers(f"{name}_int64s"), np.int64)
    if node.has(f"{name}_floats"):
        return np.asarray(node.numbers(f"{name}_floats"), np.float32)
    return _tensor(node, f"{name}_tensor").reshape(-1)


def _tensor(node: Node, name: str) -> np.ndarray:
    if not node.has(name):
        node.invalid(f"the attribute {name!r} is missing")
    return to_array(node.attributes[name].t, f"the attribute {name!r} of {node.origin!r}", node.folder)


def _label_encoder(node: Node) -> Results:
    """The value beside the first key that x equals, or the default. A NaN equals a NaN."""
    x = node.input(0)
    keys, values = _table(node, "keys"), _table(node, "values")
    if keys.size != values.size or not keys.size or keys.dtype != node.dtype(x):
        node.invalid(f"{keys.size} keys of {keys.dtype} and {values.size} values do not fit each other and {node.type(x)}")
    if node.has("default_tensor"):
        default = _tensor(node, "default_tensor").reshape(-1)[0]
    else:
        default = node.number("default_float", -0.0) if values.dtype.kind == "f" else node.integer("default_int64", -1)
    column = node.call(ops.reshape, x, shape=(*node.shape(x), 1))
    found: Expr = node.call(ops.equal, column, node.constant(keys, str(keys.dtype)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        found = node.call(
            ops.logical_or, found, node.call(ops.logical_and, node.call(ops.isnan, column), node.constant(np.isnan(keys), "bool"))
        )
    axis = node.rank(x)
    first = node.call(ops.argmax, node.call(ops.cast, found, dtype="uint8"), axis=axis)
    chosen = node.call(ops.gather, node.constant(values, str(values.dtype)), first, axis=0)
    return node.call(ops.where, node.call(ops.any_, found, axes=(axis,)), chosen, node.constant(default, str(values.dtype)))


def _tree_ensemble(node: Node) -> Results:
    x, dtype = node.input(0), node.dtype(node.input(0))
    nodes, splits = _nodes(node)
    leaves, weights = np.asarray(node.integers("leaf_targetids"), np.int32), _tensor(node, "leaf_weights").reshape(-1)
    roots, targets = np.asarray(node.integers("tree_roots"), np.int32), node.integer("n_targets", int(leaves.max(initial=0)) + 1)
    roots = np.asarray([_root(nodes, int(root)) if 0 <= root < len(nodes) else len(nodes) for root in roots], np.int32)
    if leaves.size != weights.size or not leaves.size or not 0 <= leaves.min() <= leaves.max() < targets:
        node.invalid(f"leaf_targetids must name one of {targets} targets for each of {weights.size} leaves")
    _check_trees(node, nodes, roots, leaves.size)
    aggregate = {0: "average", 1: "sum", 2: "min", 3: "max"}.get(node.integer("aggregate_function", 1))
    post = node.integer("post_transform", 0)
    if aggregate is None or post not in POST_TRANSFORMS:
        node.unsupported(f"aggregate_function {node.integer('aggregate_function', 1)} with post_transform {post}")
    arrays = [node.constant(each, "int32") for each in (nodes, roots, leaves)]
    values = [node.constant(each, dtype) for each in (splits, weights)]
    y = node.call(ops.tree_ensemble, x, arrays[0], values[0], arrays[1], arrays[2], values[1], targets=targets, aggregate=aggregate)
    transform = POST_TRANSFORMS[post]
    return y if transform is None else node.call(transform, y)


def _nodes(node: Node) -> tuple[np.ndarray, np.ndarray]:
    """The table of nodes and the split values. Membership in a set becomes a chain of comparisons."""
    features, yes, no, yes_is_leaf, no_is_leaf = (node.integers(name) for name in NODE_LISTS)
    modes, splits = _tensor(node, "nodes_modes").reshape(-1), _tensor(node, "nodes_splits").reshape(-1).tolist()
    missing = node.integers("nodes_missing_value_tracks_true", (0,) * len(features)) or (0,) * len(features)
    if len({len(features), len(yes), len(no), len(yes_is_leaf), len(no_is_leaf), modes.size, len(splits), len(missing)}) != 1:
        node.invalid("the attributes that describe nodes differ in length")
    members = _tensor(node, "membership_values").reshape(-1).tolist() if node.has("membership_values") else []
    rows: list[list[int]] = []
    for i, mode in enumerate(modes.tolist()):
        below = [-1 - child if is_leaf else child for child, is_leaf in ((yes[i], yes_is_leaf[i]), (no[i], no_is_leaf[i]))]
        if mode > MEMBER:
            node.invalid(f"nodes_modes are from 0 to {MEMBER}, not {mode}")
        rows.append([features[i], EQUAL if mode == MEMBER else mode, *below, missing[i]])
    for i, mode in enumerate(modes.tolist()):
        if mode != MEMBER:
            continue
        wanted: list[float] = []
        while members and (value := members.pop(0)) == value:
            wanted.append(value)
        if not wanted:
            node.invalid(f"node {i} asks for a set, and membership_values has none for it")
        otherwise, at = rows[i][3], i
        for value in wanted[:-1]:
            splits[at], rows[at][3] = value, len(rows)
            at = len(rows)
            rows.append([*rows[i][:3], otherwise, missing[i]])
            splits.append(0.0)
        splits[at], rows[at][3] = wanted[-1], otherwise
    return np.asarray(rows, np.int32).reshape(-1, 5), np.asarray(splits)


def _root(nodes: np.ndarray, root: int) -> int:
    """A node with one leaf on both sides stands for that leaf."""
    yes, no = nodes[root, 2:4].tolist()
    return yes if yes == no and yes < 0 else root


def _check_trees(node: Node, nodes: np.ndarray, roots: np.ndarray, leaves: int) -> None:
    """Refuses nodes and leaves that are not there, and walks without an end."""
    reached = np.concatenate([nodes[:, 2:4].reshape(-1), roots])
    if not roots.size or reached.max(initial=0) >= max(len(nodes), 1) or reached.min(initial=0) < -leaves or nodes[:, 0].min(initial=0) < 0:
        node.invalid(f"the trees name nodes or leaves beyond the {len(nodes)} nodes and {leaves} leaves that there are")
    depth, frontier = 0, set(roots[roots >= 0].tolist())
    while frontier:
        frontier = {int(child) for at in frontier for child in nodes[at, 2:4] if child >= 0}
        depth += 1
        if depth > len(nodes):
            node.invalid("a tree's nodes lead back to one of them")


HANDLERS: dict[str, Handler] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "LabelEncoder": _label_encoder,
    "TreeEnsemble": _tree_ensemble,
}
