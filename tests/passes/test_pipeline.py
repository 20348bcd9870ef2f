"""The pipeline as a whole: every prefix of it, and with each optional pass left out, gives the same answer (case 28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import ops, targets
from aotc.errors import InvalidModel, InvalidOption
from aotc.ir import text
from aotc.ir.equal import first_difference
from aotc.ir.expr import Module
from aotc.ir.verify import verify_fused
from aotc.passes import pipeline
from aotc.passes.options import Options, options_for
from aotc.passes.pipeline import PASSES, PIPELINE, REQUIRED, optimise, run_passes
from tests.passes.helpers import agree, fused
from tests.passes.networks import NETWORKS, random_graph, random_images

OPTIONS = Options(channel_block=4, dense_block=8, verify=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_prefix_gives_the_same_answer(name: str) -> None:
    module = NETWORKS[name]()
    current = module
    for run in PIPELINE:
        changed = run_passes(current, [run], OPTIONS)
        if changed is not current:
            agree(module, changed, tolerance=1e-4)
        current = changed
    verify_fused(current)


@pytest.mark.parametrize("left_out", sorted(set(PASSES) - REQUIRED))
@pytest.mark.parametrize("name", NETWORKS)
def test_each_optional_pass_can_be_left_out(name: str, left_out: str) -> None:
    module = NETWORKS[name]()
    agree(module, optimise(module, targets.get("x86-64-v3"), skip=[left_out], check=True), tolerance=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_fusion_alone(name: str) -> None:
    module = NETWORKS[name]()
    agree(module, run_passes(module, [pipeline.fuse_operators], OPTIONS), tolerance=1e-4)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    module = random_graph(seed)
    agree(module, run_passes(module, PIPELINE, OPTIONS), tolerance=1e-4)


@pytest.mark.parametrize("seed", range(25))
def test_random_image_graphs(seed: int) -> None:
    module = random_images(seed)
    agree(module, run_passes(module, PIPELINE, OPTIONS), tolerance=1e-4)


def test_the_pipeline_twice_changes_nothing_before_fusion() -> None:
    for name, build in NETWORKS.items():
        once = run_passes(build(), PIPELINE[:-1], OPTIONS)
        again = run_passes(once, PIPELINE[:-1], OPTIONS)
        assert again is once, (name, first_difference(once, again))


def test_a_transformer_layer_is_cut_as_expected() -> None:
    names = fused(run_passes(NETWORKS["transformer"](), PIPELINE, OPTIONS))
    assert names.count("layer_norm") == 2
    assert "packed_dense_add_gelu" in names
    assert names.count("attention") == 1 and "softmax" not in names
    assert len(names) - names.count("reshape") <= 16, names


def test_a_residual_network_is_cut_as_expected() -> None:
    names = fused(run_passes(NETWORKS["residual"](), PIPELINE, OPTIONS))
    assert names == [
        "layout_transform", "conv_add_relu", "max_pool", "conv_add_relu", "conv_add", "conv_add_add_relu", "mean", "reshape",
        "packed_dense_add", "softmax",
    ]  # fmt: skip


def test_failures_name_the_pass_and_the_node() -> None:
    def breaks(module: Module, options: Options) -> Module:
        raise InvalidModel("conv at 'layer1': wrong")

    with pytest.raises(InvalidModel, match="breaks, after canonicalise: conv at 'layer1': wrong"):
        run_passes(NETWORKS["residual"](), [pipeline.canonicalise, breaks], OPTIONS)


def test_debug_prints_and_dump_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AOTC_DEBUG", "1")
    monkeypatch.setenv("AOTC_DUMP", str(tmp_path))
    module = NETWORKS["residual"]()
    result = optimise(module, targets.get("x86-64-v3"))
    printed = capsys.readouterr().err
    assert "fold_batch_norm: " in printed and "solve_shapes: " in printed and "(unchanged)" in printed
    files = sorted(tmp_path.glob("*.aotc"))
    assert [file.name for file in files][:2] == ["00_imported.aotc", "01_number_iterations.aotc"]
    assert first_difference(module, text.read(files[0], ops.ALL)) is None
    assert first_difference(result, text.read(files[-1], ops.ALL)) is None


def test_unknown_and_required_passes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fuse_operators", "no_such_pass"):
        with pytest.raises(InvalidOption, match=f"the pass '{name}' cannot be left out; these can: canonicalise,"):
            optimise(NETWORKS["residual"](), targets.get("x86-64-v3"), skip=[name])
    monkeypatch.setenv("AOTC_DEBUG", "loud")
    with pytest.raises(InvalidOption, match="AOTC_DEBUG='loud' is not valid"):
        optimise(NETWORKS["residual"](), targets.get("x86-64-v3"))


def test_options_follow_the_vectors_of_the_target() -> None:
    assert options_for(targets.get("x86-64-v3")).channel_block == 8
    assert options_for(targets.without_gpu(targets.get("jetson-orin"))).channel_block == 4
    assert options_for(targets.get("jetson-orin")).channel_block == 8  # for its GPU


def test_importing_the_folder_as_passes_is_refused() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("passes", Path(pipeline.__file__).parent / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=r"import this package as aotc\.passes"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
