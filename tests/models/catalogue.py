"""All networks of the table, the small ones first within each source."""

from __future__ import annotations

import functools

from tests.models import images, language, vision
from tests.models.case import Case


@functools.cache
def cases() -> dict[str, Case]:
    """By name, as ``torchvision/resnet18``."""
    return {case.name: case for case in (*language.cases(), *images.cases(), *vision.cases())}


def rows() -> list[tuple[str, str]]:
    """(name, way) of all that the table shows."""
    return [(case.name, via) for case in cases().values() for via in ("torch", *(("onnx",) if case.onnx else ()))]
