"""Networks quantised by PyTorch's export quantisation (pt2e), after training and while training: as integers, against PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from aotc.frontends.torch import import_torch
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, run_passes
from aotc.passes.raise_integers import raise_integers
from tests.zoo.residual import classifier, images

pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="pip install torchao==0.18.0")


def quantiser(name: str, training: bool, per_channel: bool) -> Any:
    if name == "x86":
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(is_qat=training))
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel, is_qat=training)
    return xnnpack.XNNPACKQuantizer().set_global(config)


def quantised(kind: str, name: str, training: bool = False, per_channel: bool = True) -> torch.export.ExportedProgram:
    network = classifier(kind).train(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(network, (images(2, 0),)).module()
        prepare = pt2e.prepare_qat_pt2e if training else pt2e.prepare_pt2e
        prepared = prepare(exported, quantiser(name, training, per_channel))
        for seed in range(4):
            prepared(images(2, seed))
        converted = pt2e.convert_pt2e(prepared)
        return torch.export.export(converted, (images(2, 0),))


def integers_of(program: torch.export.ExportedProgram) -> Module:
    return raise_integers(run_passes(import_torch(program), CLEAN, Options(verify=True)), Options())


@pytest.mark.parametrize(
    ("kind", "name", "training", "per_channel"),
    [
        ("residual", "xnnpack", False, True),
        ("residual", "xnnpack", False, False),
        ("mobile", "xnnpack", False, True),
        ("plain", "x86", False, True),
        ("residual", "x86", True, True),
        ("mobile", "xnnpack", True, True),
    ],
)
def test_pt2e(kind: str, name: str, training: bool, per_channel: bool) -> None:
    """All layers are sums of integers, and at least 99.9 % of outputs lie within a step of PyTorch's."""
    program = quantised(kind, name, training, per_channel)
    module = integers_of(program)
    found = [call.op.name for call in calls_of(module.main.body)]
    assert found.count("integer_conv") == 5 and found.count("integer_matmul") == 1
    assert not {"conv", "dense", "matmul"} & set(found)
    assert name == "x86" or "mean" not in found  # that quantiser leaves what the average reads in floats
    have, want = [], []
    for seed in range(20, 40):
        x = images(2, seed)
        have.append(interpret(module.main, [x.numpy()])[0])
        want.append(program.module()(x).detach().numpy())
    one, other = np.concatenate(have), np.concatenate(want)
    step = np.diff(np.unique(other)).min() if name == "xnnpack" else (other.max() - other.min()) / 255
    assert other.std() > 4 * step, "the network's outputs hardly depend on its input"
    assert (np.abs(one - other) <= 1.01 * step).mean() >= 0.999
