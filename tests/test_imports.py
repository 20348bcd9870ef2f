"""Imports go one way through the layers, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"aotc": ROOT / "aotc", "aotc.passes": ROOT / "passes", "aotc.targets": ROOT / "targets"}

# What each layer may import of the others. `BASE` stands below all layers.
ALLOWED: dict[str, set[str]] = {
    "aotc.ir": set(),
    "aotc.ops": {"aotc.ir"},
    "aotc.frontends": {"aotc.ir", "aotc.ops"},
    "aotc.targets": {"aotc.ir"},
    "aotc.passes": {"aotc.ir", "aotc.ops", "aotc.targets"},
    "aotc.targets.schedules": {"aotc.ir", "aotc.ops", "aotc.targets", "aotc.lowering"},
    "aotc.lowering": {"aotc.ir", "aotc.ops", "aotc.targets", "aotc.targets.schedules"},
    "aotc.packaging": {"aotc.ir", "aotc.ops", "aotc.lowering", "aotc.targets", "aotc.runtime"},  # the Python loader reads a file back
    "aotc.runtime": set(),
}
BASE = {"aotc.errors", "aotc.version", "aotc.cache_dir", "aotc.knobs"}
TOP = (
    "aotc.cli",
    "aotc.tuning",
    "aotc.quantisation",
    "aotc.comparison",
    "aotc.entry_points",
    "aotc.onnx_backend",
)  # stand above all layers, beside aotc.compiler
HEAVY = {
    "tvm": {"aotc.lowering", "aotc.targets.schedules"},
    "torch": {"aotc.frontends"},
    "onnx": {"aotc.frontends"},
    "onnxruntime": set[str](),
}


def sources() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([package, *[part for part in parts if part != "__init__"]]), path


def imports(path: Path) -> Iterator[str]:
    """All modules that a file imports, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str | None:
    """The longest layer name that ``module`` lies in."""
    found = [layer for layer in ALLOWED if module == layer or module.startswith(f"{layer}.")]
    return max(found, key=len, default=None)


def test_all_layers_are_seen() -> None:
    assert {layer_of(module) for module, _ in sources()} >= set(ALLOWED)


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_go_one_way(layer: str) -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, path in sources()
        if layer_of(module) == layer
        for imported in imports(path)
        if imported.startswith("aotc.")
        and not any(imported == base or imported.startswith(f"{base}.") for base in BASE)
        and layer_of(imported) not in {layer, *ALLOWED[layer]}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", HEAVY)
def test_heavy_libraries_stay_where_they_belong(library: str) -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, path in sources()
        if layer_of(module) not in HEAVY[library] and not module.startswith(TOP)
        for imported in imports(path)
        if imported.split(".")[0] == library
    ]
    assert not wrong, "\n".join(wrong)


def test_no_second_copy_of_passes() -> None:
    with pytest.raises(ImportError):
        __import__("passes")
