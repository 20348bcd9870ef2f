"""What a built file says of itself: JSON in the section .aotc.manifest, in one canonical form so that builds repeat.

Loaders read the ABI version and the target before any code of the file runs; ``aotc inspect`` and the application's
``aotc_manifest`` show the rest. Fields are only added within one ``FORMAT_VERSION``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aotc.errors import RuntimeFailure
from aotc.ir.dims import Dim
from aotc.lowering.plan import EntryPoint, ExecutionPlan, TensorSpec
from aotc.packaging.weights_file import WeightsFile

FORMAT_VERSION = 1
WEIGHTS_INSIDE = 1 << 30
"""Bytes of weights that the built file itself holds at most."""
ABI_VERSION = 1
"""AOTC_ABI_VERSION of aotc.h, which a test compares."""


@dataclass(frozen=True)
class TargetInfo:
    """What the file was built for. ``glibc``: the newest version that it may need; ``jetpack``: None off the Jetsons."""

    name: str
    triple: str
    mcpu: str
    features: tuple[str, ...]
    glibc: tuple[int, int]
    jetpack: str | None = None


@dataclass(frozen=True)
class TensorInfo:
    """An input or output; a dim is a number, or a text over the entry point's symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class SymbolInfo:
    """A dim known at run time; ``upper`` None: without bound."""

    name: str
    lower: int
    upper: int | None


@dataclass(frozen=True)
class EntryPointInfo:
    """Sizes in bytes; None where they depend on the shapes of the inputs."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    symbols: tuple[SymbolInfo, ...]
    steps: int
    arena_size: int | None
    arena_lower_bound: int | None


@dataclass(frozen=True)
class Manifest:
    """``metadata``: the user's own texts (labels, licence, the model's metadata). Digests are SHA-256 in hexadecimal;
    ``external_weights``: the weights lie in a file of their own beside the built one; ``model_digest``: what tells the source model from
    another (``aotc.ir.digest``); ``sm``: the GPUs that the file has code for, as compute capabilities (87 for sm_87)."""

    aotc_version: str
    target: TargetInfo
    entry_points: tuple[EntryPointInfo, ...]
    plan_size: int
    weights_size: int
    plan_sha256: str
    weights_sha256: str
    precision: str = "fp32"
    metadata: Mapping[str, str] = field(default_factory=dict)
    external_weights: bool = False
    model_digest: str = ""
    sm: tuple[int, ...] = ()
    abi_version: int = ABI_VERSION
    format_version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        """Canonical: sorted keys, no blanks, UTF-8."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def make_manifest(
    plan: ExecutionPlan,
    plan_bytes: bytes,
    weights: WeightsFile,
    target: TargetInfo,
    *,
    aotc_version: str,
    precision: str = "fp32",
    metadata: Mapping[str, str] | None = None,
    model_digest: str = "",
) -> Manifest:
    """The manifest of a build."""
    return Manifest(
        aotc_version=aotc_version,
        target=target,
        entry_points=tuple(_entry_point(entry) for entry in plan.visible_entry_points),
        plan_size=len(plan_bytes),
        weights_size=weights.size,
        plan_sha256=hashlib.sha256(plan_bytes).hexdigest(),
        weights_sha256=weights.sha256,
        precision=precision,
        metadata=dict(metadata or {}),
        external_weights=weights.size > WEIGHTS_INSIDE,
        model_digest=model_digest,
        sm=tuple(sorted({cubin.sm for cubin in plan.cubins if not cubin.ptx})),
    )


def parse_manifest(tree: Mapping[str, Any]) -> Manifest:
    """Read a manifest back from its JSON tree; unknown fields are passed over. Raises RuntimeFailure if it is not one of this format."""
    try:
        found = tree["format_version"]
        if found != FORMAT_VERSION:
            raise RuntimeFailure(f"manifest format {found}, this aotc reads {FORMAT_VERSION}; use the aotc that built the file")
        fields = _known(TargetInfo, tree["target"])
        target = TargetInfo(**{**fields, "features": tuple(fields["features"]), "glibc": tuple(fields["glibc"])})
        entry_points = tuple(_parse_entry_point(entry) for entry in tree["entry_points"])
        parts = {"target": target, "entry_points": entry_points, "sm": tuple(tree.get("sm", ()))}
        return Manifest(**{**_known(Manifest, tree), **parts})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RuntimeFailure(f"the manifest is damaged ({error}); build the file again") from error


def _entry_point(entry: EntryPoint) -> EntryPointInfo:
    return EntryPointInfo(
        name=entry.name,
        inputs=tuple(_tensor(spec) for spec in entry.inputs),
        outputs=tuple(_tensor(spec) for spec in entry.outputs),
        symbols=tuple(SymbolInfo(symbol.name, symbol.lower, symbol.upper) for symbol in entry.symbols),
        steps=len(entry.steps),
        arena_size=entry.arena_size,
        arena_lower_bound=entry.arena_lower_bound,
    )


def _tensor(spec: TensorSpec) -> TensorInfo:
    return TensorInfo(spec.name, spec.dtype, tuple(_dim(dim) for dim in spec.shape))


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _parse_entry_point(tree: Mapping[str, Any]) -> EntryPointInfo:
    def tensors(key: str) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(item["name"], item["dtype"], tuple(item["shape"])) for item in tree[key])

    symbols = tuple(SymbolInfo(**_known(SymbolInfo, item)) for item in tree["symbols"])
    parts = {"inputs": tensors("inputs"), "outputs": tensors("outputs"), "symbols": symbols}
    return EntryPointInfo(**{**_known(EntryPointInfo, tree), **parts})


def _known(kind: type, tree: Mapping[str, Any]) -> dict[str, Any]:
    return {item.name: tree[item.name] for item in dataclasses.fields(kind) if item.name in tree}
