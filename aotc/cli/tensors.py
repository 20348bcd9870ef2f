"""Input data for ``run``, ``bench`` and ``compare``: NumPy files, images, random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol
from zipfile import BadZipFile

import numpy as np
import typer

from aotc.cli.common import one_per_name, shape_text
from aotc.errors import InvalidOption
from aotc.ir.expr import Var
from aotc.ir.types import SMALL, SMALL_FLOATS, TensorType

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")

DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        "-d",
        metavar="NAME=SOURCE",
        help="Data of an input: a .npy, .npz or image file, `random` or `zeros`. `NAME=` may be left out when there is one input, "
        "or for a .npz that holds inputs by name. Inputs without data are random.",
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME:DIMS", help="Shape of random data for an input with dynamic dims: `ids:1x128`.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random data.")]
MeanOption = Annotated[
    str, typer.Option(help="Images: subtracted from pixels of 0 to 255; one number, or one a channel: `123.7,116.3,103.5`.")
]
StdOption = Annotated[str, typer.Option(help="Images: what the difference is divided by; one number, or one a channel.")]
LayoutOption = Annotated[str, typer.Option(help="Images: `nchw` or `nhwc`.")]
ChannelsOption = Annotated[str, typer.Option(help="Images: `rgb`, `bgr` or `grey`.")]
CropOption = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Images: the part of the shorter side that is kept, from the centre, before resizing.")
]


class TensorLike(Protocol):
    """An input as a built file or a Module describes it; a dim that is no integer is known only at run time."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of a Module as a ``TensorLike``."""

    name: str
    dtype: str
    shape: tuple[Any, ...]

    @staticmethod
    def of(param: Var) -> ParameterSpec:
        assert isinstance(param.type, TensorType)
        return ParameterSpec(param.name, param.type.dtype, param.type.shape)


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a tensor; ``mean`` and ``std`` are on the scale of 0 to 255."""

    mean: str = "0"
    std: str = "1"
    layout: str = "nchw"
    channels: str = "rgb"
    crop: float = 1.0

    def __post_init__(self) -> None:
        if self.layout not in ("nchw", "nhwc"):
            raise InvalidOption(f"--layout is {self.layout!r}; expected nchw or nhwc")
        if self.channels not in ("rgb", "bgr", "grey"):
            raise InvalidOption(f"--channels is {self.channels!r}; expected rgb, bgr or grey")


def load_feeds(
    specs: Sequence[TensorLike], entries: Sequence[str] | None, shapes: Sequence[str] | None, seed: int, images: Preprocessing
) -> dict[str, np.ndarray]:
    """One array for each of ``specs``. Raises InvalidOption that says which inputs there are, what was given and what to do."""
    known = {spec.name: spec for spec in specs}
    sources = _sources(entries or [], known)
    concrete = {name: _static(name, text) for name, text in one_per_name(shapes or [], ":", "--shape").items()}
    for name in [*sources, *concrete]:
        if name not in known:
            raise InvalidOption(f"the model has no input {name!r}; its inputs are {', '.join(known)}")
    random = np.random.default_rng(seed)
    return {name: load_array(spec, sources.get(name, "random"), concrete.get(name), random, images) for name, spec in known.items()}


def load_array(
    spec: TensorLike, source: str, shape: tuple[int, ...] | None, random: np.random.Generator, images: Preprocessing
) -> np.ndarray:
    """The data that ``source`` names, in the input's dtype."""
    dtype = np.dtype(spec.dtype)
    if source in ("random", "zeros"):
        full = _full_shape(spec, shape)
        try:
            return synthetic(full, dtype, random if source == "random" else None)
        except (MemoryError, ValueError) as error:
            raise InvalidOption(
                f"input {spec.name!r}: no memory for data of the shape {shape_text(full)}; give a smaller --shape"
            ) from error
    path, _, member = source.partition("::")
    suffix = Path(path).suffix.lower()
    if suffix in IMAGES:
        return _image(spec, path, dtype, shape, images)
    try:
        loaded = np.load(path, allow_pickle=False)
        array = loaded if isinstance(loaded, np.ndarray) else _member(loaded, path, member or spec.name)
    except (OSError, ValueError, BadZipFile) as error:
        raise InvalidOption(
            f"input {spec.name!r}: cannot read {path}: {error}; expected a .npy, .npz, .png or .jpg file, `random` or `zeros`"
        ) from error
    if str(dtype) in SMALL and array.dtype.itemsize == dtype.itemsize and array.dtype.kind in "Vu":
        array = array.view(dtype)  # files hold the bits of types that numpy lacks
    if array.dtype != dtype:
        raise InvalidOption(f"input {spec.name!r} takes {dtype}, {path} holds {array.dtype}; convert it with array.astype({str(dtype)!r})")
    return np.ascontiguousarray(array)


def _member(file: np.lib.npyio.NpzFile, path: str, name: str) -> np.ndarray:
    if name not in file.files:
        raise InvalidOption(f"{path} holds {', '.join(file.files) or 'nothing'}, not {name!r}; write NAME={path}::MEMBER")
    return np.asarray(file[name])


def synthetic(shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator | None) -> np.ndarray:
    """Standard normal floats, small non-negative integers, or booleans; zeros without a generator."""
    if random is None:
        return np.zeros(shape, dtype)
    if dtype.kind == "f" or str(dtype) in SMALL_FLOATS:
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 8, shape).astype(dtype)


def _sources(entries: Sequence[str], known: Mapping[str, TensorLike]) -> dict[str, str]:
    named: list[str] = []
    found: dict[str, str] = {}
    for entry in entries:
        name, mark, source = entry.partition("=")
        if mark and not Path(entry).exists():
            named.append(f"{name}={source}")
        elif entry.endswith(".npz"):
            found.update(dict.fromkeys([member for member in _members(entry) if member in known], entry))
        elif len(known) == 1:
            found[next(iter(known))] = entry
        else:
            has = f"several: {', '.join(known)}; write NAME={entry}" if known else "none; leave --data out"
            raise InvalidOption(f"--data {entry!r} names no input, and the model has {has}")
    return {**found, **one_per_name(named, "=", "--data")}


def _members(path: str) -> list[str]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return list(file.files)
    except (OSError, ValueError, BadZipFile) as error:
        raise InvalidOption(f"cannot read {path}: {error}") from error


def _static(name: str, text: str) -> tuple[int, ...]:
    parts = text.replace(",", "x").split("x") if text else []
    if not all(part.strip().isdecimal() for part in parts):
        raise InvalidOption(f"--shape {name}:{text} is not a shape; expected numbers, as in {name}:1x3x224x224")
    return tuple(int(part) for part in parts)


def _full_shape(spec: TensorLike, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    if shape is not None:
        return shape
    if all(isinstance(dim, int) for dim in spec.shape):
        return tuple(spec.shape)
    raise InvalidOption(
        f"input {spec.name!r} has the shape {shape_text([str(dim) for dim in spec.shape])}: give data for it, or --shape {spec.name}:..."
    )


def _image(spec: TensorLike, path: str, dtype: np.dtype[Any], shape: tuple[int, ...] | None, options: Preprocessing) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    dims = shape or tuple(spec.shape)
    if len(dims) not in (3, 4):
        raise InvalidOption(f"input {spec.name!r} has {len(dims)} dims; an image fits an input of 3 or 4")
    height, width = dims[-2:] if options.layout == "nchw" else dims[-3:-1]
    try:
        image = Image.open(path).convert("L" if options.channels == "grey" else "RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise InvalidOption(f"input {spec.name!r}: cannot read the image {path}: {error}") from error
    side_x, side_y = _crop_box(image.size, options.crop, square=height == width)
    left, top = (image.size[0] - side_x) // 2, (image.size[1] - side_y) // 2
    size = (width if isinstance(width, int) else side_x, height if isinstance(height, int) else side_y)
    pixels = np.asarray(image.crop((left, top, left + side_x, top + side_y)).resize(size, Image.Resampling.BICUBIC))
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if options.channels == "bgr":
        pixels = pixels[..., ::-1]
    array = pixels.astype(dtype)
    if dtype.kind == "f":
        std = _numbers("--std", options.std, array)
        if not np.all(std):
            raise InvalidOption(f"--std {options.std!r} would divide by 0")
        array = (array - _numbers("--mean", options.mean, array)) / std
    elif (options.mean, options.std) != ("0", "1"):
        raise InvalidOption(f"input {spec.name!r} takes {dtype}, so pixels stay as they are; leave --mean and --std out")
    array = array.transpose(2, 0, 1) if options.layout == "nchw" else array
    return np.ascontiguousarray(array[None] if len(dims) == 4 else array)


def _crop_box(size: tuple[int, int], part: float, square: bool) -> tuple[int, int]:
    """Width and height of the centre that is kept: a square for a square input, else the same part of both sides."""
    if square:
        side = max(1, int(min(size) * part))
        return side, side
    return max(1, int(size[0] * part)), max(1, int(size[1] * part))


def _numbers(option: str, text: str, pixels: np.ndarray) -> np.ndarray:
    try:
        values = np.array([float(part) for part in text.split(",")], pixels.dtype)
    except ValueError as error:
        raise InvalidOption(f"{option} {text!r} is not a number or a list of numbers") from error
    if values.size not in (1, pixels.shape[-1]):
        raise InvalidOption(f"{option} {text!r} has {values.size} numbers; the image has {pixels.shape[-1]} channels")
    return values
