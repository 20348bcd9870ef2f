"""The commands as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner, Result

from aotc.cli import COMMANDS, app
from aotc.version import __version__
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.reference import onnxruntime_outputs

CONV = small.convolutional()


def aotc(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its built file."""
    path = tmp_path_factory.mktemp("cli")
    onnx.save(CONV, path / "conv.onnx")
    result = aotc("build", path / "conv.onnx", "-o", path / "conv.so", "--metadata", "labels=a,b", "--json")
    (path / "build.json").write_text(result.stdout)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    text = aotc(command, "--help").stdout
    assert f"aotc {command}" in text and "Example" in text


def test_version() -> None:
    assert aotc("--version").stdout.strip() == __version__
    assert "--version" in aotc("--help").stdout
    aotc(code=2)


def test_build_tells_what_it_made(folder: Path) -> None:
    facts = json.loads((folder / "build.json").read_text())
    assert facts["size"] == (folder / "conv.so").stat().st_size
    assert facts["target"] == "host"
    assert facts["weights"] > 0 and facts["steps"] > 0
    assert "libc.so.6" in facts["needed"]
    text = aotc("build", folder / "conv.onnx", "-o", folder / "second.so", "-i", "x:2x3x16x16").stdout
    assert "working memory" in text and "no plan can do with less than" in text and "glibc" in text


def test_a_jetsons_file_is_for_its_gpu_and_its_cpu(folder: Path) -> None:
    command = ("build", folder / "conv.onnx", "-t", "jetson", "-o", folder / "jetson.so")
    assert "all of them where no such GPU is found" in " ".join(aotc(*command).stdout.split())
    assert "which runs it all where no such GPU is found" in " ".join(aotc("check", folder / "jetson.so").stdout.split())
    assert "sm_87" not in aotc(*command, "--device", "cpu").stdout
    assert "no such GPU" not in aotc("check", folder / "jetson.so").stdout
    refused = aotc("check", folder / "jetson.so", "-t", "host", code=6)
    assert "aarch64" in refused.output


def test_build_names_and_bounds_dims(folder: Path) -> None:
    aotc("build", folder / "conv.onnx", "-o", folder / "bounded.so", "--input", "x:b=1..4x3x16x16")
    entry = json.loads(aotc("inspect", folder / "bounded.so", "--json").stdout)["entry_points"][0]
    assert entry["symbols"] == [{"name": "b", "lower": 1, "upper": 4}]
    assert entry["inputs"][0]["shape"] == ["b", 3, 16, 16]
    refused = aotc("run", folder / "bounded.so", "--shape", "x:5x3x16x16", code=6)
    assert "5" in refused.output and "4" in refused.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--input", "x"), 2, "NAME:VALUE"),
        (("--input", "x:2x?x16"), 2, "not a dim"),
        (("--input", "nothing:2x3"), 2, "no input 'nothing'"),
        (("--target", "jetson-mars"), 2, "jetson-orin"),
        (("--target", "jetson-nano", "--jetpack", "7.2"), 2, "4.6"),
        (("--precision", "fp3"), 2, "fp32"),
        (("--output", "/nowhere/model.so"), 5, "/nowhere"),
        (("--output", "/proc/model.so"), 5, "/proc"),
        (("--output", "."), 5, "Is a directory"),
    ],
)
def test_wrong_options_are_explained(folder: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    assert words in aotc("build", folder / "conv.onnx", *arguments, code=code).output


def test_broken_models_have_exit_codes_of_their_own(folder: Path) -> None:
    (folder / "broken.onnx").write_bytes(b"no model")
    aotc("build", folder / "broken.onnx", code=3)
    missing = small.model([onnx.helper.make_node("Frob", ["x"], ["y"], domain="d")], {"x": ("float32", [1])}, {"y": ("float32", [1])})
    missing.opset_import.append(onnx.helper.make_opsetid("d", 1))
    onnx.save(missing, folder / "missing.onnx")
    assert "Frob" in aotc("build", folder / "missing.onnx", code=4).output
    assert "neither a file nor" in aotc("build", "no_module_of_this_name:function", code=2).output


def test_build_of_a_python_function(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ndef make():\n    torch.manual_seed(0)\n    return torch.nn.Linear(4, 3), (torch.zeros(2, 4),)\n"
    (folder / "my_model.py").write_text(source)
    monkeypatch.chdir(folder)
    aotc("build", "my_model:make", "-o", "linear.so")
    aotc("compare", "my_model:make")
    assert json.loads(aotc("inspect", "linear.so", "--json").stdout)["entry_points"][0]["inputs"][0]["shape"] == [2, 4]
    (folder / "one_row.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 3), torch.zeros(1, 4)\nnumber = 3\n")
    aotc("build", "one_row:make", "-o", "one.so")  # a tensor alone is the one example input, not a tuple of its rows
    assert json.loads(aotc("inspect", "one.so", "--json").stdout)["entry_points"][0]["inputs"][0]["shape"] == [1, 4]
    assert "a Python function" in aotc("build", "one_row:number", code=2).output


def test_run_reads_and_writes_arrays(folder: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x)
    expected = onnxruntime_outputs(CONV, {"x": x})["y"]
    for source in ("x.npy", "x.npz"):
        aotc("run", folder / "conv.so", "-d", folder / source, "-o", folder / "y.npz")
        assert_agrees(np.load(folder / "y.npz")["y"], expected, 1e-5)
    facts = json.loads(aotc("run", folder / "conv.so", "-d", f"x={folder / 'x.npy'}", "-o", folder / "y.npy", "--top", 3, "--json").stdout)
    assert_agrees(np.load(folder / "y.npy"), expected, 1e-5)
    best = facts["y"]["top"][0]
    assert tuple(best["index"]) == np.unravel_index(expected.argmax(), expected.shape)
    np.save(folder / "wrong.npy", x.astype(np.float64))
    assert "float32" in aotc("run", folder / "conv.so", "-d", folder / "wrong.npy", code=2).output
    assert "no input 'z'" in aotc("run", folder / "conv.so", "-d", "z=random", code=2).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-d", "x=other.npz"), "other.npz holds a, b, not 'x'"),
        (("-d", "x=broken.npz"), "cannot read broken.npz"),
        (("-d", "broken.npz"), "cannot read broken.npz"),
        (("--shape", "x:-1x3x16x16"), "not a shape"),
        (("--shape", "x:1x3x16000000000x16"), "no memory"),
        (("--seed", "-1"), "--seed"),
        (("-d", "grey.png", "--std", "0"), "divide by 0"),
        (("-d", "grey.png", "--std", "1,0,1"), "divide by 0"),
    ],
)
def test_wrong_data_is_explained(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str) -> None:
    monkeypatch.chdir(folder)
    np.savez("other.npz", a=np.zeros(2), b=np.zeros(3))
    Path("broken.npz").write_bytes(b"PK\3\4 and no more")
    Image.new("L", (20, 30), 200).save("grey.png")
    assert words in " ".join(aotc("run", "conv.so", *arguments, code=2).output.split())


def test_data_of_models_without_inputs_or_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (3, 3), (10, 20, 30)).save("image.png")
    node = onnx.helper.make_node
    onnx.save(small.model([node("Relu", ["c"], ["y"])], {}, {"y": ("float32", [2])}, {"c": np.ones(2, np.float32)}), "none.onnx")
    aotc("build", "none.onnx", "-o", "none.so")
    assert "the model has none" in aotc("run", "none.so", "-d", "image.png", code=2).output
    pixels = small.model([node("Cast", ["x"], ["y"], to=1)], {"x": ("uint8", [1, 3, 2, 2])}, {"y": ("float32", [1, 3, 2, 2])})
    onnx.save(pixels, "bytes.onnx")
    aotc("build", "bytes.onnx", "-o", "bytes.so")
    aotc("run", "bytes.so", "-d", "image.png", "--crop", "0.01", "-o", "y.npy")  # less than a pixel is one pixel
    np.testing.assert_array_equal(np.load("y.npy")[0, :, 0, 0], [10, 20, 30])
    assert "leave --mean and --std out" in aotc("run", "bytes.so", "-d", "image.png", "--mean", "127", code=2).output


def test_json_has_no_numbers_that_are_none(tmp_path: Path) -> None:
    """RFC 8259: NaN and infinity are not numbers of JSON."""
    model = small.model([onnx.helper.make_node("Sqrt", ["x"], ["y"])], {"x": ("float32", [3])}, {"y": ("float32", [3])})
    onnx.save(model, tmp_path / "sqrt.onnx")
    np.save(tmp_path / "x.npy", np.array([-1, np.inf, 4], np.float32))
    aotc("build", tmp_path / "sqrt.onnx", "-o", tmp_path / "sqrt.so")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    facts = json.loads(aotc("run", tmp_path / "sqrt.so", "-d", tmp_path / "x.npy", "--json").stdout, parse_constant=refuse)
    assert facts["y"]["max"] == "nan" and [entry["value"] for entry in facts["y"]["top"]] == ["inf", 2.0, "nan"]


def test_a_gcc_links_a_model_without_weights(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs a gcc of the system: apt-get install gcc")
    onnx.save(
        small.model([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": ("float32", [3])}, {"y": ("float32", [3])}), tmp_path / "m.onnx"
    )
    np.save(tmp_path / "x.npy", np.array([-1, 0, 4], np.float32))
    aotc("build", tmp_path / "m.onnx", "-o", tmp_path / "m.so", "--cc", "gcc")
    aotc("run", tmp_path / "m.so", "-d", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [0, 0, 4])
    aotc("check", tmp_path / "m.so")


def test_run_prepares_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    aotc("run", folder / "conv.so", "-d", folder / "image.png", "--mean", "120,110,100", "--std", "60", "-o", folder / "y.npy")
    x = ((pixels - np.array([120, 110, 100], np.float32)) / np.float32(60)).transpose(2, 0, 1)[None]
    assert_agrees(np.load(folder / "y.npy"), onnxruntime_outputs(CONV, {"x": np.ascontiguousarray(x)})["y"], 1e-5)
    aotc("run", folder / "conv.so", "-d", folder / "image.png", "--channels", "bgr", "-o", folder / "y.npy")
    x = pixels[..., ::-1].astype(np.float32).transpose(2, 0, 1)[None]
    assert_agrees(np.load(folder / "y.npy"), onnxruntime_outputs(CONV, {"x": np.ascontiguousarray(x)})["y"], 1e-5)


def test_bench_measures_threads_and_steps(folder: Path) -> None:
    command = ("bench", folder / "conv.so", "--shape", "x:1x3x16x16", "--threads", "1,2", "--seconds", 0.05, "--steps")
    facts = json.loads(aotc(*command, "--json").stdout)
    assert [result["threads"] for result in facts["results"]] == [1, 2]
    for result in facts["results"]:
        assert 0 < result["min"] <= result["p50"] <= result["p90"] <= result["p99"]
    assert facts["steps"] and all(step["us"] > 0 for step in facts["steps"])
    assert "Latency" in aotc(*command).stdout
    assert "dynamic" not in aotc("bench", folder / "conv.so", code=2).stdout


def test_inspect_shows_inputs_sizes_and_steps(folder: Path) -> None:
    facts = json.loads(aotc("inspect", folder / "conv.so", "--json").stdout)
    sizes = facts["sizes"]
    assert sizes["file"] == (folder / "conv.so").stat().st_size == sum(size for kind, size in sizes.items() if kind != "file")
    assert facts["exported"] == ["aotc_model"]
    assert facts["metadata"]["labels"] == "a,b"
    sources = [step["source"] for step in facts["entry_points"][0]["steps"]]
    assert any("conv1" in source or "relu1" in source for source in sources)
    text = aotc("inspect", folder / "conv.so", "--steps").stdout
    assert ("glibc" in text and "conv2d" in text) or "conv" in text


@pytest.mark.parametrize("suffix", ["dot", "svg"])
def test_inspect_draws_the_plan(folder: Path, suffix: str) -> None:
    if suffix == "svg" and shutil.which("dot") is None:
        pytest.skip("Graphviz is missing: apt-get install graphviz")
    aotc("inspect", folder / "conv.so", "--graph", folder / f"plan.{suffix}")
    text = (folder / f"plan.{suffix}").read_text()
    assert "conv" in text and ("digraph" in text or "<svg" in text)


def test_check_finds_damage(folder: Path) -> None:
    assert "fine" in aotc("check", folder / "conv.so").stdout
    content = bytearray((folder / "conv.so").read_bytes())
    weights = content.find(CONV.graph.initializer[-1].raw_data[:16])
    assert weights > 0
    content[weights] ^= 1
    (folder / "damaged.so").write_bytes(content)
    assert "weights" in aotc("check", folder / "damaged.so", code=6).output
    (folder / "short.so").write_bytes(content[:5000])
    aotc("check", folder / "short.so", code=6)
    aotc("inspect", folder / "conv.onnx", code=6)


def test_compare_agrees_and_names_the_first_layer_that_departs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(aotc("compare", folder / "conv.onnx", "--shape", "x:2x3x16x16", "--json").stdout)
    assert facts["first_departing"] is None
    assert {layer["name"] for layer in facts["layers"]} >= {"conv1", "relu1", "conv2", "relu2", "fc"}
    assert "agree" in aotc("compare", folder / "conv.onnx", "--shape", "x:1x3x16x16", "--reference", "numpy", "--all").stdout

    from aotc import comparison

    honest = comparison.onnx_recorder

    def spoiled(path: str, feeds: dict[str, np.ndarray]) -> tuple[comparison.Recorder, list[np.ndarray]]:
        record, outputs = honest(path, feeds)

        def record_spoiled(origins: list[str]) -> dict[str, list[np.ndarray]]:
            found = {origin: list(arrays) for origin, arrays in record(origins).items()}
            return {origin: [array + (origin in ("conv2", "relu2")) for array in arrays] for origin, arrays in found.items()}

        return record_spoiled, [array + 1 for array in outputs]

    assert "runs here" in aotc("compare", folder / "conv.onnx", "-t", "jetson", code=2).output
    monkeypatch.setattr(comparison, "onnx_recorder", spoiled)
    result = aotc("compare", folder / "conv.onnx", "--shape", "x:2x3x16x16", "--json", code=6)
    assert json.loads(result.stdout)["first_departing"] == "conv2"


def test_compare_names_the_first_layer_that_overflows_in_halves(folder: Path) -> None:
    """Each layer multiplies by 16: of 100, the third gives 409600, which is no half."""
    good = json.loads(aotc("compare", folder / "conv.onnx", "--shape", "x:2x3x16x16", "--precision", "fp16", "--json").stdout)
    assert good["first_departing"] is None and good["figure"] == 0.02
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"], f"layer{i}") for i in range(4)]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x0", "x4")]
    weights = numpy_helper.from_array(np.full((4, 4), 4, np.float32), "w")
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:], [weights])), folder / "grows.onnx")
    np.savez(folder / "grows.npz", x0=np.full((1, 4), 100, np.float32))
    words = ("compare", folder / "grows.onnx", "--data", folder / "grows.npz", "-t", "jetson", "--precision", "fp16")
    facts = json.loads(aotc(*words, "--json", code=6).stdout)
    assert facts["first_departing"] == "layer2"
    assert "overflows: 4.096e+05 is more than float16's 65504" in " ".join(aotc(*words, code=6).output.split())
    assert "expected fp16" in aotc("compare", folder / "grows.onnx", "--precision", "fp8", code=2).output


def test_targets_are_listed() -> None:
    known = {target["name"]: target for target in json.loads(aotc("targets", "--json").stdout)}
    assert known["jetson-nano"]["glibc"] == "2.27" and known["jetson-orin"]["jetpack"] == "6.2"
    assert "jetson-thor" in aotc("targets").stdout


def test_opt_runs_passes_on_text(folder: Path) -> None:
    listed = aotc("opt", "--list").stdout
    assert "fuse_operators" in listed and "fold_constants" in listed
    aotc("opt", folder / "conv.onnx", "-o", folder / "conv.aotc")
    plain = aotc("opt", folder / "conv.aotc").stdout
    assert "batch_norm" in plain
    folded = aotc("opt", folder / "conv.aotc", "-p", "fold_batch_norm,eliminate_dead").stdout
    assert "batch_norm" not in folded and "conv" in folded
    assert "primitive" in aotc("opt", folder / "conv.aotc", "-p", "pipeline", "-t", "jetson").stdout
    assert "fold_constants" in aotc("opt", folder / "conv.aotc", "-p", "nonsense", code=2).output
    assert "Is a directory" in aotc("opt", folder / "conv.aotc", "-o", folder, code=2).output
