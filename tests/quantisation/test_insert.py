"""Where quantise and dequantise go, and that they compute what PyTorch's own fake quantisation does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aotc import ops
from aotc.errors import InvalidOption
from aotc.frontends import import_model
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, run_passes
from aotc.quantisation import quantise
from aotc.quantisation.equalise import equalise
from aotc.quantisation.insert import quantise_network, switched_network
from aotc.quantisation.recipe import FLOAT, LayerRecipe, Recipe, ValueRecipe, read_recipe
from aotc.quantisation.structure import Network, analyse, multiply_adds

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")


class Branches(nn.Module):
    """Two convolutions whose results are joined, a residual addition, a pool and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.c, self.d = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x))], 1)
        return self.d(torch.relu(self.c(y) + y).mean((2, 3)))


def network(model: nn.Module) -> Network:
    module = import_model(model.eval(), None, (torch.from_numpy(X),), None, ())
    return analyse(run_passes(module, CLEAN, Options()))


def made() -> tuple[Branches, Network]:
    torch.manual_seed(0)
    model = Branches()
    return model, network(model)


def all_int8(net: Network, **floats: str) -> Recipe:
    layers = {layer.name: LayerRecipe(*((FLOAT, "asked") if layer.name in floats else ())) for layer in net.layers}
    return Recipe({name: ValueRecipe(0.03, -5) for name in net.names}, layers)


def count(module: Module, name: str) -> int:
    return len(calls_of(module.main.body, [name]))


def test_layers_and_groups() -> None:
    _, net = made()
    assert [layer.name for layer in net.layers] == ["a", "b", "c", "d"]
    assert [layer.kind for layer in net.layers] == ["conv", "conv", "conv", "dense"]
    joined = [group for root, group in net.roots.items() if ops.relu.is_call(root) and root.type.shape == (2, 4, 8, 8)]
    assert len(joined) == 2 and len(set(joined)) == 1, "what is joined shares one scale"
    assert [multiply_adds(layer, {}) for layer in net.layers] == [2 * 64 * 4 * 27, 2 * 64 * 4 * 3, 2 * 64 * 8 * 9, 2 * 8 * 5]


def test_values_are_rounded_as_pytorch_rounds_them() -> None:
    """A network of one layer: its input and its weights, by channel."""
    torch.manual_seed(1)
    layer = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    net = network(layer)
    result = interpret(quantise_network(net, all_int8(net)).main, [X])[0]
    weight = layer.weight.detach()
    scale = weight.abs().amax((1, 2, 3)) / 127
    rounded = torch.fake_quantize_per_channel_affine(weight, scale, torch.zeros(4, dtype=torch.int32), 0, -127, 127)
    x = torch.fake_quantize_per_tensor_affine(torch.from_numpy(X), 0.03, -5, -128, 127)
    np.testing.assert_allclose(result, nn.functional.conv2d(x, rounded, padding=1).numpy(), rtol=1e-4, atol=1e-5)


def test_layers_that_stay_float_leave_their_values_float() -> None:
    _, net = made()
    everything = quantise_network(net, all_int8(net))
    assert count(everything, "quantise") == len(net.roots)
    floats = quantise_network(net, all_int8(net, a="", b="", c="", d=""))
    assert count(floats, "quantise") == count(floats, "dequantise") == 0
    last = quantise_network(net, all_int8(net, a="", b="", c=""))
    assert 0 < count(last, "quantise") < len(net.roots)


def test_switches_choose_layers() -> None:
    _, net = made()
    recipe = all_int8(net)
    switched = switched_network(net, recipe)
    for floats in ({}, {"a": "", "c": ""}, {"d": ""}, dict.fromkeys("abcd", "")):
        switches = [np.asarray(layer.name not in floats, "float32") for layer in net.layers]
        found = interpret(switched.main, [X, *switches])[0]
        want = interpret(quantise_network(net, all_int8(net, **floats)).main, [X])[0]
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_equalising_leaves_the_function_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    net = network(model)
    factors = {"2": (1.0, 64.0, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0), "4": tuple([1.0] * 6 + [128.0, 1 / 16])}
    assert set(factors) <= {layer.name for layer in net.layers}
    same = equalise(net, factors)
    assert interpret(same.module.main, [X])[0] == pytest.approx(model(torch.from_numpy(X)).detach().numpy(), rel=1e-4, abs=1e-5)
    assert equalise(net, {}) is net


def test_recipes_are_read_as_they_were_written(tmp_path: Path) -> None:
    _, net = made()
    recipe = Recipe(
        {name: ValueRecipe(0.123456789, -3) for name in net.names},
        {"a": LayerRecipe(shift=(0.5, -0.25, 0.0, 1.0)), "b": LayerRecipe(FLOAT, "it is slower"), "c": LayerRecipe(), "d": LayerRecipe()},
        {},
        {"observer": "auto"},
    )
    recipe.write(tmp_path / "r.json")
    assert read_recipe(tmp_path / "r.json") == recipe
    model = run_passes(net.module, (), Options())
    assert count(quantise(model, tmp_path / "r.json").module, "quantise") > 0


@pytest.mark.parametrize("content,said", [("{}", "no int8 recipe"), ("[", "no int8 recipe"), ('{"format": "x"}', "not 'aotc int8")])
def test_what_is_no_recipe_is_said(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(InvalidOption, match=said):
        read_recipe(tmp_path / "r.json")


def test_a_recipe_of_another_model_is_refused(tmp_path: Path) -> None:
    _, net = made()
    Recipe({}, {}).write(tmp_path / "r.json")
    with pytest.raises(InvalidOption, match="another model"):
        quantise(net.module, tmp_path / "r.json")


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(InvalidOption, match="no convolution"):
        network(nn.ReLU())
