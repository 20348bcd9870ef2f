"""All targets by name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from aotc.errors import InvalidOption
from aotc.targets.base import JETPACK_CUDA, JETPACK_GLIBC, Target
from aotc.targets.generic import GENERIC
from aotc.targets.host import detect
from aotc.targets.jetson import BOARDS

_FIXED = {target.name: target for target in (*GENERIC, *BOARDS)}
ALIASES = {"jetson": "jetson-orin"}
NAMES = ("host", *_FIXED)


def get(name: str, jetpack: str | None = None) -> Target:
    """The target of this name, on the JetPack given or on its default one. Raises InvalidOption for an unknown name, and
    for a JetPack that the board has not."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        known = ", ".join([*NAMES, *(f"{alias} (= {target})" for alias, target in ALIASES.items())])
        raise InvalidOption(f"there is no target {name!r}; the targets are {known}")
    target = _host() if name == "host" else _FIXED[name]
    if jetpack is None:
        return target
    if jetpack not in target.jetpacks:
        choices = ", ".join(target.jetpacks) or "none: it is no Jetson"
        raise InvalidOption(f"target {name} does not run JetPack {jetpack!r}; it can be {choices}")
    gpu = replace(target.gpu, cuda=JETPACK_CUDA[jetpack]) if target.gpu is not None else None
    return replace(target, jetpack=jetpack, glibc=JETPACK_GLIBC[jetpack], gpu=gpu)


@lru_cache(maxsize=1)
def _host() -> Target:
    return detect()
