"""Several models in one file: they share weights and states, and a session runs them by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.errors import InvalidOption
from examples import generate


def test_tokens_with_a_cache_are_those_of_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network, prompt = generate.Network().eval(), [3, 14, 15, 92, 65]
    generate.build(network, tmp_path / "model.so")
    session = aotc.load(tmp_path / "model.so", num_threads=1).session()
    expected = generate.generate_by_torch(network, prompt, 24)
    assert len(set(expected)) > 4
    for _ in range(2):  # the second time the cache starts anew
        assert generate.generate(session, prompt, 24) == expected
    assert np.abs(session.state("attention.0.keys")[:, : len(prompt) + 23]).min() > 0


def test_weights_are_stored_once(tmp_path: Path) -> None:
    """An encoder and a decoder over one large embedding."""

    class Part(nn.Module):
        def __init__(self, words: nn.Embedding) -> None:
            super().__init__()
            self.words, self.out = words, nn.Linear(32, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(tokens))

    words, tokens = nn.Embedding(5000, 32), torch.arange(7)
    encoder, decoder = Part(words), Part(words)
    models = {"encode": aotc.EntryPoint(encoder, args=(tokens,)), "decode": aotc.EntryPoint(decoder, args=(tokens,))}
    report = aotc.compile(models, output=tmp_path / "both.so", jobs=0)
    assert report.weights_size < 5000 * 32 * 4 + 8192
    session = aotc.load(tmp_path / "both.so", num_threads=1).session()
    for name, part in (("encode", encoder), ("decode", decoder)):
        got = session.run({"tokens": tokens.numpy()}, entry_point=name)["output"]
        np.testing.assert_allclose(got, part(tokens).detach().numpy(), rtol=1e-5, atol=1e-6)


def adding_model(path: Path, scale: float, shape: Sequence[int | str] = (2,)) -> str:
    """sum = past + scale * x, and twice that."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]), helper.make_node("Add", ["past", "scaled"], ["present"]),
        helper.make_node("Add", ["present", "present"], ["y"]),
    ]  # fmt: skip
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "past")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("y", "present")]
    weight = helper.make_tensor("scale", TensorProto.FLOAT, (1,), [scale])
    onnx.save(helper.make_model(helper.make_graph(nodes, "adding", inputs, outputs, [weight]), ir_version=10), path)
    return str(path)


def test_inputs_become_states(tmp_path: Path) -> None:
    """Two ONNX files whose weights have one name and different content, from the command line."""
    files = {name: adding_model(tmp_path / f"{name}.onnx", scale) for name, scale in (("up", 1.0), ("down", -3.0))}
    arguments = [*(f"{name}={path}" for name, path in files.items()), "--state", "past=present", "-o", str(tmp_path / "model.so"), "--json"]
    result = CliRunner().invoke(app, ["build", *arguments])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] > 0
    model = aotc.load(tmp_path / "model.so", num_threads=1)
    assert model.entry_points == ("up", "down") and [each.name for each in model.states] == ["past"]
    session, total = model.session(), np.zeros(2, "float32")
    for entry, scale, x in (("up", 1, [1, 2]), ("down", -3, [5, 0]), ("up", 1, [0.5, 0.5])):
        total += scale * np.float32(x)
        got = session.run({"x": np.float32(x)}, entry_point=entry)
        assert list(got) == ["y"]
        np.testing.assert_array_equal(got["y"], 2 * total)


def test_what_does_not_fit_is_explained(tmp_path: Path) -> None:
    one = adding_model(tmp_path / "one.onnx", 1.0)
    other = adding_model(tmp_path / "other.onnx", 1.0, (3,))
    dynamic = adding_model(tmp_path / "dynamic.onnx", 1.0, ("n",))
    output = tmp_path / "model.so"
    with pytest.raises(InvalidOption, match=r"no entry point has an input 'before' or an output 'after'"):
        aotc.compile(one, output=output, states={"before": "after"})
    with pytest.raises(InvalidOption, match=r"b: 'past' is float32\[3\], while the state 'past' is float32\[2\]"):
        aotc.compile({"a": one, "b": other}, output=output, states={"past": "present"})
    with pytest.raises(InvalidOption, match=r"'past' is float32\[n\]; a state needs a shape that is fixed"):
        aotc.compile(dynamic, output=output, states={"past": "present"})
    with pytest.raises(InvalidOption, match="belong to one model"):
        aotc.compile({"a": one}, output=output, inputs={"x": (2,)})
    assert not output.exists()
