"""NVTX ranges by the user's names of the layers, with a library that writes down what it is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import aotc
from tests.cuda.small_networks import NETWORKS
from tests.cuda.software import count, host_with_gpu, software_gpu

FAKE = r"""
#include <stdio.h>
#include <stdlib.h>
static void tell(const char *word, const char *name) {
    FILE *file = fopen(getenv("FAKE_NVTX"), "a");
    fprintf(file, "%s %s\n", word, name);
    fclose(file);
}
int nvtxRangePushA(const char *name) { tell("push", name); return 0; }
int nvtxRangePop(void) { tell("pop", ""); return 0; }
"""


def test_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, (inputs,) = NETWORKS["dense"]
    report = aotc.compile(make(), host_with_gpu(), tmp_path / "m.so", device="auto")
    (tmp_path / "fake.c").write_text(FAKE)
    library = tmp_path / "libnvToolsExt.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "fake.c"), "-o", str(library)], check=True)
    monkeypatch.setenv("FAKE_NVTX", str(tmp_path / "told"))
    with software_gpu(report.cuda_kernels, tmp_path / "kernels"):
        aotc.load(report.output).run(inputs)
        assert not (tmp_path / "told").exists()  # nobody asked
        monkeypatch.setenv("AOTC_NVTX", str(library))
        session, graphs = aotc.load(report.output).session(), count("graph_launches")
        for _ in range(3):
            session.run(inputs)
        lines = (tmp_path / "told").read_text().splitlines()
        assert count("graph_launches") == graphs  # launches one by one, each in its own range
        monkeypatch.setenv("AOTC_NVTX", str(tmp_path / "fake.c"))
        with pytest.raises(aotc.RuntimeFailure, match=r"AOTC_NVTX asks for ranges and .*fake\.c cannot be loaded or has none"):
            aotc.load(report.output).session()  # and not the CPU in the GPU's place
    assert lines[0::2] == [f"push {step.name}" for step in session.steps()] * 3
    assert set(lines[1::2]) == {"pop "} and "push softmax2" in lines
