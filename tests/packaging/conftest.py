"""The sample model, built once for each board and test process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.packaging.link import Linked
from aotc.packaging.manifest import TargetInfo
from tests.packaging.sample import build_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TargetInfo], Linked]:
    made: dict[TargetInfo, Linked] = {}

    def build(target: TargetInfo) -> Linked:
        if target not in made:
            made[target] = build_sample(tmp_path_factory.mktemp(target.name) / "model.so", target)
        return made[target]

    return build
