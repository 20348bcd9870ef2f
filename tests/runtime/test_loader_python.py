"""The one-file Python loader: what it gives, what it refuses, and on which Pythons it runs."""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.errors import RuntimeFailure
from aotc.runtime import aotc_runtime
from aotc.runtime.aotc_runtime import Error
from tests.packaging.sample import BIAS, NANO, WEIGHT, build_sample, expected, weights_blob
from tests.runtime.build import RUNTIME, compiler, run_tool
from tests.runtime.sample_files import impossible_features, mutants, sample_bytes

FILE = Path(aotc_runtime.__file__)
IMAGE = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
IDS = np.array([7, -9])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model.so").write_bytes(sample_bytes())
    return tmp_path / "model.so"


def test_values_and_order(path: Path) -> None:
    model = aotc.load(path)
    outputs = model.run({"ids": IDS, "image": IMAGE})
    assert list(outputs) == ["scores", "labels"]
    np.testing.assert_allclose(outputs["scores"], expected(IMAGE), rtol=1e-5)
    np.testing.assert_array_equal(outputs["labels"], IDS)
    assert [(info.name, str(info.dtype), info.shape) for info in model.inputs] == [("image", "float32", ("b", 4)), ("ids", "int64", (2,))]
    assert model.metadata == {"labels": "a,b,ä"} and model.entry_points == ("main",)


def test_arrays_are_the_callers(path: Path) -> None:
    """Also after the model is gone, and after further runs."""
    model = aotc.load(path)
    first = model.run({"image": IMAGE, "ids": IDS})["scores"]
    kept = first.copy()
    model.run({"image": -IMAGE, "ids": IDS})
    del model
    gc.collect()
    np.testing.assert_array_equal(first, kept)


def test_views_and_outputs_of_the_caller(path: Path) -> None:
    session = aotc.load(path).session(num_threads=1)
    view = session.run({"image": IMAGE, "ids": IDS}, copy=False)["scores"]
    np.testing.assert_allclose(view, expected(IMAGE), rtol=1e-5)
    session.run({"image": -IMAGE, "ids": IDS}, copy=False)
    np.testing.assert_allclose(view, expected(-IMAGE), rtol=1e-5)  # the same memory
    own = np.zeros((5, 3), np.float32)
    outputs = session.run({"image": IMAGE, "ids": IDS}, out={"scores": own})
    assert outputs["scores"] is own
    np.testing.assert_allclose(own, expected(IMAGE), rtol=1e-5)
    del session
    gc.collect()
    assert view.shape == (5, 3) and np.isfinite(view).all()  # a view keeps its session


@pytest.mark.parametrize(
    "image",
    [IMAGE[::2], np.asfortranarray(IMAGE), IMAGE[:, ::-1], np.broadcast_to(IMAGE[:1], (3, 4)), np.require(IMAGE, requirements="C")],
    ids=["strided", "fortran", "reversed", "broadcast", "plain"],
)
def test_memory_layouts(path: Path, image: np.ndarray) -> None:
    np.testing.assert_allclose(aotc.load(path).run({"image": image, "ids": IDS})["scores"], expected(image), rtol=1e-5)


def test_unaligned_and_read_only(path: Path) -> None:
    raw = np.zeros(IMAGE.nbytes + 1, np.uint8)
    image = raw[1:].view(np.float32).reshape(5, 4)
    image[:] = IMAGE
    image.flags.writeable = False
    np.testing.assert_allclose(aotc.load(path).run({"image": image, "ids": [7, -9]})["scores"], expected(IMAGE), rtol=1e-5)


@pytest.mark.parametrize(
    "inputs,message",
    [
        ({"image": IMAGE}, "inputs are 'image', 'ids'; missing: 'ids'"),
        ({"image": IMAGE, "ids": IDS, "mask": IDS}, "unknown: 'mask'"),
        ({"image": IMAGE.astype(np.float64), "ids": IDS}, "input 'image': expected dtype float32, got float64; convert it"),
        ({"image": IMAGE.astype(">f4"), "ids": IDS}, "input 'image': expected dtype float32, got >f4"),
        ({"image": IMAGE[0], "ids": IDS}, r"input 'image': expected shape \[b, 4\], got \[4\]"),
        ({"image": IMAGE[:, :3], "ids": IDS}, r"input 'image': expected shape \[b, 4\], got \[5, 3\]"),
        ({"image": np.zeros((9, 4), np.float32), "ids": IDS}, r"'image'.*\[9, 4\].*1 to 8"),
        ({"image": IMAGE, "ids": "seven"}, "input 'ids': expected an array of int64"),
        (IMAGE, "inputs are 'image', 'ids'; expected a dict of arrays by name, got ndarray"),
        ([IMAGE, IDS], "expected a dict of arrays by name, got list"),
    ],
)
def test_refused_inputs(path: Path, inputs: Any, message: str) -> None:
    model = aotc.load(path)
    with pytest.raises(RuntimeFailure, match=message):
        model.run(inputs)
    np.testing.assert_allclose(model.run({"image": IMAGE, "ids": IDS})["scores"], expected(IMAGE), rtol=1e-5)  # it goes on


def test_refused_outputs(path: Path) -> None:
    model = aotc.load(path)
    for array, message in (
        (np.zeros((5, 3)), "output 'scores': expected float32"),
        (np.zeros((5, 6), np.float32)[:, ::2], "output 'scores': expected a contiguous, writable array"),
        (np.zeros((4, 3), np.float32), "'scores'"),
    ):
        with pytest.raises(Error, match=message):
            model.run({"image": IMAGE, "ids": IDS}, out={"scores": array})
    with pytest.raises(Error, match=r"the model's outputs are .*; unknown: 'score'"):
        model.run({"image": IMAGE, "ids": IDS}, out={"score": np.zeros(3, np.float32)})
    with pytest.raises(Error, match=r"no entry point 'other', only 'main'"):
        model.session(entry_point="other")
    with pytest.raises(Error, match=r"num_threads is -1; expected 1 or more"):
        model.session(num_threads=-1)


def test_two_models_in_one_process(path: Path, tmp_path: Path) -> None:
    """Case 10."""
    build_sample(tmp_path / "other.so", weights=weights_blob(WEIGHT * 2, BIAS * 2))
    first, second = aotc.load(path), aotc.load(tmp_path / "other.so")
    for _ in range(3):
        np.testing.assert_allclose(first.run({"image": IMAGE, "ids": IDS})["scores"], expected(IMAGE), rtol=1e-5)
        np.testing.assert_allclose(second.run({"image": IMAGE, "ids": IDS})["scores"], expected(IMAGE, WEIGHT * 2, BIAS * 2), rtol=1e-5)


def test_a_file_that_was_built_again(path: Path) -> None:
    """Old and new content live side by side under one name."""
    models = []
    for scale in (1, 2, 3):
        build_sample(path, weights=weights_blob(WEIGHT * scale, BIAS))
        models += [(aotc.load(path), scale), (aotc.load(path), scale)]
    for model, scale in models:
        found = model.run({"image": IMAGE, "ids": IDS})["scores"]
        np.testing.assert_allclose(found, expected(IMAGE, WEIGHT * scale), rtol=1e-5)


def test_sessions_in_threads(path: Path) -> None:
    model = aotc.load(path)
    images = [np.full((1 + number % 8, 4), number / 8, np.float32) for number in range(16)]
    results: list[np.ndarray | None] = [None] * len(images)

    def work(number: int) -> None:
        session = model.session(num_threads=1)
        for _ in range(50):
            results[number] = session.run({"image": images[number], "ids": IDS})["scores"]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for image, result in zip(images, results, strict=True):
        np.testing.assert_allclose(result, expected(image), rtol=1e-5)


def test_a_session_is_for_one_thread(path: Path) -> None:
    session = aotc.load(path).session()
    session._lock.acquire()
    with pytest.raises(Error, match=r"running in another thread: make one session for each thread"):
        session.run({"image": IMAGE, "ids": IDS})
    session._lock.release()
    session.run({"image": IMAGE, "ids": IDS})


def test_profile_and_memory(path: Path) -> None:
    session = aotc.load(path).session(profile=True)
    for _ in range(3):
        session.run({"image": IMAGE, "ids": IDS})
    step = session.steps()[0]
    assert (step.name, step.label, step.kernel, step.runs, step.tasks) == ("classifier/fc", "dense, exp", "affine_exp", 3, 5)
    assert step.total_ns >= step.last_ns > 0
    memory = session.memory()
    assert memory.weights == 76 and memory.peak >= memory.total > 0


def test_files_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nano.so").write_bytes(sample_bytes(NANO))
    with pytest.raises(
        Error, match=r"is built for aarch64 \(target jetson-nano\), this machine is x86-64: build it again with --target host"
    ):
        aotc.load(tmp_path / "nano.so")
    (tmp_path / "future.so").write_bytes(sample_bytes(impossible_features()))
    monkeypatch.setattr(aotc_runtime, "_missing_features", lambda features: [name for name in features if name.startswith("amx")])
    with pytest.raises(Error, match=r"target future, which has processor features that this machine lacks \(amx-fp8, amx-bf16\)"):
        aotc.load(tmp_path / "future.so")


def test_another_abi_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 9: both versions are named."""
    monkeypatch.setattr(aotc_runtime, "ABI_VERSION", 2)
    with pytest.raises(Error, match=r"has ABI version 1, this loader knows version 2: use aotc_runtime.py of the aotc .*0\.0\.test"):
        aotc.load(path)


HOSTILE = """
import sys, numpy as np
sys.path[:0] = [sys.argv[1]]
import aotc_runtime
refused = served = 0
for path in sys.stdin.read().split():
    try:
        model = aotc_runtime.load(path, num_threads=1)
        model.run({"image": np.ones((2, 4), "f4"), "ids": np.arange(2)})
        served += 1
    except aotc_runtime.Error:
        refused += 1
print(refused, served)
"""


def test_hostile_files(tmp_path: Path) -> None:
    """No crash: each is refused, or did not really change."""
    data = sample_bytes()
    (tmp_path / "model.so").write_bytes(data)
    weights = aotc_runtime.read_file(tmp_path / "model.so").weights
    paths = []
    for number, mutant in enumerate(mutants(data, weights, 400)):
        paths.append(tmp_path / f"{number}.so")
        paths[-1].write_bytes(mutant)
    same = sum(path.read_bytes() == data for path in paths)
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(FILE.parent)], input="\n".join(map(str, paths)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(paths) - same), str(same)]


@pytest.mark.parametrize(
    "text,message",
    [(b"[" * 5000, "its manifest"), (b"[1]", "is not a JSON object"), (b"\xff", "cannot be read")],
    ids=["deep", "list", "not text"],
)
def test_damaged_manifests(path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, message: str) -> None:
    """Under a right checksum too: no RecursionError, AttributeError or UnicodeDecodeError."""
    data = bytearray(path.read_bytes())
    start, size = aotc_runtime._sections(str(path), data, len(data))[".aotc.manifest"]  # type: ignore[arg-type]
    data[start : start + size - 1] = text[: size - 1].ljust(size - 1)
    path.write_bytes(data)
    given = aotc_runtime._HEADER.unpack_from(data, data.index(b"AOTCFILE\x01"))[5]
    monkeypatch.setattr(aotc_runtime, "_checksum", lambda *_: given)
    with pytest.raises(Error, match=f"is not a whole model built by aotc: .*{message}"):
        aotc.load(path)


def test_section_names_are_not_copied_from_weights(path: Path) -> None:
    """A damaged index that makes gigabytes of weights the table of names costs nothing."""
    data = bytearray(path.read_bytes())
    table_at, count = unpack_from("<Q", data, 40)[0], unpack_from("<H", data, 60)[0]
    size = 8 << 30
    with path.open("r+b") as file:
        file.truncate(size)  # sparse
        file.seek(table_at + 64 * unpack_from("<H", data, 62)[0] + 24)
        file.write(pack("<QQ", len(data), size - len(data)))
    assert count > 4
    with pytest.raises(Error, match=r"without the section \.aotc\.header"):
        aotc.load(path)


# ---- The board's side ----

STRUCTS = {
    "aotc_error": aotc_runtime._ErrorStruct, "DLTensor": aotc_runtime._Tensor, "aotc_dim": aotc_runtime._Dim,
    "aotc_tensor_info": aotc_runtime._TensorInfo, "aotc_model_options": aotc_runtime._ModelOptions,
    "aotc_session_options": aotc_runtime._SessionOptions, "aotc_step_info": aotc_runtime._StepInfo,
    "aotc_memory_info": aotc_runtime._MemoryInfo, "aotc_api": aotc_runtime._Api,
}  # fmt: skip


def test_structs_are_those_of_the_header(tmp_path: Path) -> None:
    """Every field of the loader's structs at the place where C has it; the table may go on after what the loader uses."""
    lines = []
    for name, struct in STRUCTS.items():
        for field in [item[0] for item in struct._fields_]:
            member = {"device_type": "device.device_type", "device_id": "device.device_id"}.get(field, field)
            lines.append(f'    printf("{name}.{field} %zu\\n", offsetof({name}, {member}));')
        lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
    body = "\n".join(lines)
    (tmp_path / "layout.c").write_text(f'#include <stdio.h>\n#include "aotc.h"\nint main(void) {{\n{body}\n    return 0;\n}}\n')
    run_tool([*compiler(), f"-I{RUNTIME}", str(tmp_path / "layout.c"), "-o", str(tmp_path / "layout")])
    found = dict(
        line.split() for line in subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.splitlines()
    )
    for name, struct in STRUCTS.items():
        for field in [item[0] for item in struct._fields_]:
            assert int(found[f"{name}.{field}"]) == getattr(struct, field).offset, f"{name}.{field}"
        assert ctypes.sizeof(struct) <= int(found[name]) if name == "aotc_api" else ctypes.sizeof(struct) == int(found[name]), name


def test_header_tables_agree() -> None:
    """The C loader and the Python loader know the same processor features."""
    source = (RUNTIME / "aotc_loader.c").read_text()
    arm = re.findall(r'\{"([\w-]+)", AT_HWCAP(2?), (\d+)\}', source)
    assert {name: int(bit) + (64 if word else 0) for name, word, bit in arm} == aotc_runtime._ARM_FEATURES
    assert dict(re.findall(r'\{"([\w.-]+)", "(\w+)"\}', source)) == aotc_runtime._X86_FEATURES


def test_syntax_of_python_3_6() -> None:
    """Parsed by the grammar of 3.6, with nothing from newer standard libraries or newer NumPy (1.13)."""
    tree = ast.parse(FILE.read_text(), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {
        "_ctypes",
        "collections",
        "ctypes",
        "json",
        "mmap",
        "os",
        "platform",
        "struct",
        "sys",
        "threading",
        "zlib",
        "numpy",
        "ml_dtypes",
    }
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"typing"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    }
    assert used <= {"ndarray", "dtype", "asarray", "array", "empty", "frombuffer", "prod", "int64"}


def interpreter(version: str) -> Path | None:
    """A CPython of ``version`` on this machine: in PATH, or in pyenv's folders."""
    named = shutil.which(f"python{version}")
    for python in [*map(Path, filter(None, [named])), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")]:
        asked = subprocess.run([str(python), "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:  # pyenv puts programs into PATH that only say which version to choose
            return Path(asked.stdout.strip())
    return None


BOARD = """
import sys
sys.path[:0] = sys.argv[1:3]
import numpy as np, aotc_runtime
model = aotc_runtime.load(sys.argv[3], num_threads=2)
out = model.run({"image": np.ones((2, 4), "f4"), "ids": [1, 2]})
view = model.run({"image": np.ones((2, 4), "f4"), "ids": [1, 2]}, copy=False)
assert (out["scores"] == view["scores"]).all() and out["labels"].tolist() == [1, 2]
try:
    model.run({"image": np.ones((2, 4)), "ids": [1, 2]})
except aotc_runtime.Error as error:
    assert "float64" in str(error)
print("%d.%d" % sys.version_info[:2], np.__version__, out["scores"].tolist())
"""


def numpy_for(python: Path, version: str, folder: Path) -> bool:
    """Put a NumPy of ``version`` into ``folder`` unless it is there."""
    if (folder / "numpy").is_dir():
        return True
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--target",
        str(folder),
        f"numpy=={version}",
    ]
    return (
        subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("version,numpy", [("3.6", "1.13.3"), ("3.8", "1.17.4"), ("3.13", "2.1.0")])
def test_on_old_and_new_interpreters(path: Path, version: str, numpy: str) -> None:
    """JetPack 4.6 has Python 3.6 with NumPy 1.13, JetPack 5 3.8 with 1.17; and the newest that is supported."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    folder = Path(__file__).resolve().parents[2] / "build" / "numpy" / f"{version}-{numpy}"
    if not numpy_for(python, numpy, folder):
        pytest.skip(f"NumPy {numpy} cannot be had for Python {version}")
    command = [str(python), "-W", "error", "-c", BOARD, str(folder), str(FILE.parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "HOME": str(Path.home())})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{version} {numpy}")
