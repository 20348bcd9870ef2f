import platform
import shutil

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the software CUDA driver needs an x86-64 processor")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
