"""The C runtime on handwritten plans: plain, on an emulated Cortex-A57, and under the address, undefined and thread sanitizers.

The cases are C programs (csrc/), since sanitizers watch those. ``run_sanitizers.sh`` runs the sanitized ones alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.runtime.build import FLAVOURS, HERE, build_all, build_fuzzer, command, missing

CASES = [name for path in sorted(HERE.glob("case_*.c")) for name in re.findall(r'\{"(\w+)", \w+\}', path.read_text())]
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def driver(request: pytest.FixtureRequest, workshop: Path) -> list[str]:
    """The command of the test program of a flavour; the models lie beside it."""
    flavour: str = request.param
    if missing(flavour):
        pytest.skip(missing(flavour))
    return command(build_all(workshop, flavour), flavour)


def run(command: list[str], **variables: str) -> str:
    environment = {**os.environ, **ENVIRONMENT, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, f"{command[-1]} ended with {done.returncode}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.parametrize("driver", list(FLAVOURS), indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_case(driver: list[str], case: str) -> None:
    run([*driver, str(Path(driver[-1]).parent), case])


@pytest.mark.parametrize("driver", ["plain"], indirect=True)
def test_every_case_is_listed(driver: list[str]) -> None:
    assert set(run([*driver, "--list"]).split()) == set(CASES)


@pytest.fixture(scope="module", params=["dynamic", "entries", "collatz", "positive", "branches", "states", "cuda", "cuda_states"])
def fuzzer(request: pytest.FixtureRequest, workshop: Path) -> Path:
    if missing("address"):
        pytest.skip(missing("address"))
    return build_fuzzer(workshop, "address", request.param)


@pytest.mark.parametrize("damage", ["flip", "repair", "fields", "cut"])
def test_damaged_plan(fuzzer: Path, damage: str) -> None:
    told = run([str(fuzzer), damage], AOTC_LIBCUDA=str(fuzzer.with_name("fake_cuda.so")), FAKE_CUDA_IDLE="1")
    refused, accepted, _ = map(int, re.findall(r"\d+", told))
    assert refused > 500
    assert accepted == 0 or damage in ("repair", "fields")
