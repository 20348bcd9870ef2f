"""Reads a trace of a kernel's accesses and finds pairs that nothing orders, without the driver's shadow memory: all pairs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

# As `TraceRecord` in driver/engine/checks.cpp. `interval` counts the barriers of the block, `warp_interval` those of the warp.
RECORD = np.dtype(
    [
        ("address", "u8"),
        ("block", "u4"),
        ("interval", "u4"),
        ("warp_interval", "u4"),
        ("thread", "u2"),
        ("bytes", "u1"),
        ("kind", "u1"),
        ("launch", "u4"),
        ("shared", "u4"),
    ]
)


def conflicts(path: Path) -> int:
    """How many bytes are touched by two threads, one of which writes, with no barrier between."""
    records = np.fromfile(path, RECORD)
    rows = np.repeat(records, records["bytes"])
    starts = np.repeat(np.cumsum(records["bytes"].astype(np.int64)) - records["bytes"], records["bytes"])
    rows["address"] += (np.arange(len(rows)) - starts).astype(np.uint64)
    # shared memory is another one in each block
    where = np.stack([rows["launch"], rows["shared"] * (1 + rows["block"]), rows["address"]], axis=1).astype(np.uint64)
    order = np.lexsort(where.T[::-1])
    rows, where = rows[order], where[order]
    edges = np.flatnonzero((where[1:] != where[:-1]).any(axis=1)) + 1
    return sum(_unordered(group) for group in np.split(rows, edges) if len(group) > 1)


def _unordered(group: np.ndarray) -> bool:
    if not group["kind"].any() or (len(np.unique(group["thread"])) == 1 and len(np.unique(group["block"])) == 1):
        return False
    distinct = np.unique(group[["block", "interval", "warp_interval", "thread", "kind"]])
    for a, b in itertools.combinations(distinct, 2):
        if not (a["kind"] or b["kind"]) or (a["kind"] == b["kind"] == 2):
            continue
        if a["block"] != b["block"]:
            return True
        same_warp = a["thread"] // 32 == b["thread"] // 32
        if a["thread"] != b["thread"] and a["interval"] == b["interval"] and not (same_warp and a["warp_interval"] != b["warp_interval"]):
            return True
    return False
