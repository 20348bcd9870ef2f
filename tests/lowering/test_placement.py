"""Where functions run: the cheapest cut, what only the CPU can do, and how few crossings there are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import pytest
from onnx import helper

from aotc.frontends import import_model
from aotc.ir.expr import Module
from aotc.lowering.identity import function_label
from aotc.lowering.minimum_cut import minimum_cut
from aotc.lowering.placement import Placed, place_devices
from aotc.passes.pipeline import optimise
from tests.cuda.small_networks import branches, found_while_running, loop
from tests.cuda.software import host_with_gpu
from tests.e2e import small

Node = helper.make_node


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_is_cheaper(seed: int) -> None:
    source = random.Random(seed)
    things = list(range(source.randint(1, 8)))
    first = {thing: float(source.randint(0, 9)) for thing in things}
    second = {thing: float(source.randint(0, 9)) for thing in things}
    apart = {pair: float(source.randint(0, 6)) for pair in itertools.combinations(things, 2) if source.random() < 0.5}

    def cost(chosen: frozenset[int]) -> float:
        own = sum(first[thing] if thing in chosen else second[thing] for thing in things)
        return own + sum(value for (a, b), value in apart.items() if (a in chosen) != (b in chosen))

    choices = [
        frozenset(thing for thing, flag in zip(things, flags, strict=True) if flag)
        for flags in itertools.product((0, 1), repeat=len(things))
    ]
    assert cost(frozenset(minimum_cut(second, first, apart))) == min(map(cost, choices))


def placed(model: onnx.ModelProto) -> dict[str, Placed]:
    """By the operators of each function."""
    module: Module = optimise(import_model(model), host_with_gpu())
    return {function_label(function): found for function, found in place_devices(module).items()}


def test_all_of_a_plain_network_is_the_gpus() -> None:
    weights = {"w": np.ones((16, 16), np.float32)}
    nodes = [Node("MatMul", ["x", "w"], ["a"]), Node("Softmax", ["a"], ["b"]), Node("MatMul", ["b", "w"], ["y"])]
    found = placed(small.model(nodes, {"x": ("float32", [2, 16])}, {"y": ("float32", None)}, weights))
    assert len(found) >= 2 and all(each.on_device and not each.reason for each in found.values())


def test_sizes_that_depend_on_the_data_are_the_cpus() -> None:
    found = placed(found_while_running())
    assert found["gather_tanh"] == Placed(False, "its sizes depend on the data (u0)")
    assert found["dense"].on_device and found["relu"].on_device


def test_what_only_the_cpu_can_stays_there_whatever_it_costs() -> None:
    """Dims without bounds: a tensor of three may have more elements than anything costs."""
    nodes = [Node("ConstantOfShape", ["size"], ["zeros"]), Node("Exp", ["zeros"], ["y"])]
    found = placed(small.model(nodes, {"size": ("int64", [3])}, {"y": ("float32", None)}, {}))
    assert found and not any(each.on_device for each in found.values())


def test_small_work_between_steps_of_the_cpu_stays_there() -> None:
    """What picks the rows, and a loop of tiny steps, whose condition the CPU reads each time."""
    assert not placed(found_while_running())["nonzero_padded"].on_device
    small_steps = {"x": np.ones((3, 3), np.float32)}
    body = helper.make_graph(
        [Node("Add", ["h", "x"], ["next"]), Node("Identity", ["going"], ["go_on"])],
        "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("i", 7, []), ("going", 9, []), ("h", 1, [3, 3]))],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (("go_on", 9, []), ("next", 1, [3, 3]))],
    )
    nodes = [Node("Loop", ["n", "", "start"], ["y"], body=body)]
    inputs = {"n": ("int64", []), "start": ("float32", [3, 3])}
    found = placed(small.model(nodes, inputs, {"y": ("float32", [3, 3])}, small_steps))
    assert not any(each.on_device for each in found.values())
    assert any("cheaper there" in each.reason for each in found.values())


def test_large_work_in_bodies_is_the_gpus() -> None:
    assert placed(loop())["dense_tanh"].on_device
    assert all(each.on_device for each in placed(branches()).values())
