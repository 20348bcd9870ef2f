"""Where calibration data come from: a folder of images or arrays, a file of arrays, a Python function."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import numpy as np
import typer

from aotc.cli.tensors import IMAGES, ParameterSpec, Preprocessing, load_array
from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.ir.expr import Module
    from aotc.quantisation import Int8Options, Samples

ROWS = 8
"""Samples of a file that make a batch where the model takes any number."""

CalibOption = Annotated[
    str | None,
    typer.Option(
        "--calib",
        metavar="DATA",
        help="Calibration data for int8: a folder of images, .npy or .npz files; a .npz with an array of samples for each input (and `labels`); a .npy "
        "of samples; `module:function`, which returns an iterable of dicts of arrays; a recipe (.json) that `aotc quantize` wrote; or `dynamic`, for dense layers without data.",
    ),
]
ObserverOption = Annotated[
    str,
    typer.Option(
        "--observer",
        metavar="NAME",
        help="How ranges are found: `minmax`, `percentile`, `entropy`, `mse`, or `auto`, the best for each value.",
    ),
]
DropOption = Annotated[
    str | None,
    typer.Option(
        "--max-drop", metavar="1%", help="What the metric may lose. Layers go back to float, as few as it takes, until the bound holds."
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="`top1`, `cosine`, `sqnr`, or `module:function` of (outputs, float outputs, labels) that returns a number, the higher the better.",
        show_default="top1 with labels, else cosine",
    ),
]
EqualiseOption = Annotated[
    bool, typer.Option("--equalise/--no-equalise", help="Make channels of very different size alike where the function stays the same.")
]
BiasOption = Annotated[bool, typer.Option("--bias-correction/--no-bias-correction", help="Take off the mean error of rounded weights.")]

TimeOption = Annotated[
    bool, typer.Option("--time", help="Build float and int8 for this machine, time each layer, and leave in float what int8 makes slower.")
]


def int8_options(observer: str, drop: str | None, metric: str | None, equalise: bool, bias: bool, timing: bool = False) -> Int8Options:
    """Raises InvalidOption for what cannot be."""
    from aotc.quantisation import Int8Options
    from aotc.quantisation.accuracy import parse_drop

    if metric is not None and drop is None:
        raise InvalidOption("--metric is what --max-drop bounds: give both, as in --metric top1 --max-drop 1%")
    return Int8Options(observer, None if drop is None else parse_drop(drop), metric, equalise, bias, timing)


def load_calibration(text: str, module: Module, images: Preprocessing) -> Any:
    """What ``aotc.compile`` takes as ``calibration``. Raises InvalidOption that says what was expected and what is there."""
    from aotc.quantisation import DYNAMIC, Samples
    from aotc.quantisation.accuracy import load_function

    path = Path(text)
    if text == DYNAMIC:
        return text
    specs = [ParameterSpec.of(param) for param in module.main.params]
    if path.is_dir():
        return _of_folder(path, specs, images)
    if path.suffix in (".npz", ".npy"):
        return _of_file(path, specs)
    if path.suffix == ".json":
        return path
    name, mark, function = text.rpartition(":")
    if mark and not path.exists():
        made = load_function(text, name, function, "--calib")
        return Samples(lambda: _checked(text, made()))
    raise InvalidOption(f"--calib {text!r} is neither a folder, nor a .npz, .npy or .json file, nor module:function")


def _checked(text: str, made: object) -> Iterable[Mapping[str, np.ndarray]]:
    if not isinstance(made, Iterable):
        raise InvalidOption(f"--calib {text} returned {type(made).__name__}; expected an iterable of dicts of an array for each input")
    return made


def _of_folder(folder: Path, specs: Sequence[ParameterSpec], images: Preprocessing) -> Samples:
    """Each file is a batch: an image or .npy for the one input there is, or a .npz of all inputs."""
    from aotc.quantisation import Samples

    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (*IMAGES, ".npy", ".npz"))
    if not files:
        raise InvalidOption(f"--calib {folder} has no images ({', '.join(IMAGES)}), .npy or .npz files")
    if len(specs) != 1 and any(path.suffix != ".npz" for path in files):
        names = ", ".join(spec.name for spec in specs)
        raise InvalidOption(f"the model has {len(specs)} inputs ({names}): --calib {folder} must hold .npz files with an array for each")

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for path in files:
            yield {spec.name: load_array(spec, str(path), None, np.random.default_rng(0), images) for spec in specs}

    return Samples(batches, _identity(files, repr(images)), len(files))


def _of_file(path: Path, specs: Sequence[ParameterSpec]) -> Samples:
    """Rows of the arrays are samples: as many as the model takes make a batch."""
    from aotc.quantisation import Samples

    arrays = _arrays(path, specs)
    count = {len(array) for array in arrays.values()}
    if len(count) != 1 or 0 in count:
        sizes = ", ".join(f"{name}: {len(array)}" for name, array in arrays.items())
        raise InvalidOption(
            f"--calib {path}: the arrays must have equal numbers of samples along their first axis, at least 1; they have {sizes}"
        )
    (rows,) = count
    fixed = {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)}
    step = max(fixed) if fixed else ROWS
    if fixed and rows < step:
        raise InvalidOption(f"--calib {path} has {rows} samples; the model takes {step} at a time")
    starts = range(0, rows - (step - 1 if fixed else 0), step)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        return ({name: array[start : start + step] for name, array in arrays.items()} for start in starts)

    return Samples(batches, _identity([path], ""), len(starts))


def _arrays(path: Path, specs: Sequence[ParameterSpec]) -> dict[str, np.ndarray]:
    from aotc.quantisation import LABELS

    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, BadZipFile) as error:
        raise InvalidOption(f"--calib: cannot read {path}: {error}") from error
    names = [spec.name for spec in specs]
    if isinstance(loaded, np.ndarray):
        if len(specs) != 1:
            raise InvalidOption(f"--calib {path} holds one array, and the model has {len(specs)} inputs: {', '.join(names)}; use a .npz")
        found = {names[0]: loaded}
    else:
        found = {name: loaded[name] for name in loaded.files if name in (*names, LABELS)}
    for spec in specs:
        array = found.get(spec.name)
        if array is None:
            raise InvalidOption(f"--calib {path} has no array for the input {spec.name!r}; the inputs are {', '.join(names)}")
        if str(array.dtype) != spec.dtype or array.ndim != len(spec.shape):
            raise InvalidOption(
                f"--calib {path}: {spec.name!r} is {array.dtype} of {array.ndim} axes; the model takes {spec.dtype} of {len(spec.shape)}, "
                "the samples along the first"
            )
    return found


def _identity(files: Sequence[Path], how: str) -> str:
    digest = hashlib.sha256(how.encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
