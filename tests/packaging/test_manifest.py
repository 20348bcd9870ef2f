"""The manifest's text and its way back."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from aotc.errors import RuntimeFailure
from aotc.packaging.link import CSRC
from aotc.packaging.manifest import ABI_VERSION, Manifest, make_manifest, parse_manifest
from aotc.packaging.planfile import write_plan
from aotc.packaging.weights_file import write_weights
from tests.packaging.sample import ORIN, plan


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    weights = write_weights(tmp_path / "weights", [(0, np.frombuffer(b"0123", np.uint8))])
    return make_manifest(plan(), write_plan(plan()), weights, ORIN, aotc_version="1.2.3", metadata={"b": "ß", "a": '"'})


def test_content(manifest: Manifest) -> None:
    tree = json.loads(manifest.to_json())
    assert tree["abi_version"] == 1 and tree["aotc_version"] == "1.2.3"
    assert tree["target"]["glibc"] == [2, 35] and tree["target"]["jetpack"] == "6.2"
    entry = tree["entry_points"][0]
    assert entry["inputs"][0] == {"name": "image", "dtype": "float32", "shape": ["b", 4]}
    assert entry["symbols"] == [{"name": "b", "lower": 1, "upper": 8}]
    assert tree["weights_sha256"] == hashlib.sha256(b"0123").hexdigest()
    assert tree["metadata"] == {"a": '"', "b": "ß"}


def test_canonical_and_back(manifest: Manifest) -> None:
    text = manifest.to_json()
    tree = json.loads(text)
    assert text == json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert parse_manifest(tree) == manifest
    assert parse_manifest({**tree, "added_later": 1}) == manifest


def test_refusals(manifest: Manifest) -> None:
    tree = json.loads(manifest.to_json())
    with pytest.raises(RuntimeFailure, match=r"manifest format 9, this aotc reads 1"):
        parse_manifest({**tree, "format_version": 9})
    for damage in ({"target": 1}, {"entry_points": [{}]}, {"entry_points": [1]}):
        with pytest.raises(RuntimeFailure, match=r"damaged"):
            parse_manifest({**tree, **damage})


def test_abi_version_is_the_headers() -> None:
    found = re.search(r"#define AOTC_ABI_VERSION (\d+)u", (CSRC / "aotc.h").read_text())
    assert found and int(found[1]) == ABI_VERSION
