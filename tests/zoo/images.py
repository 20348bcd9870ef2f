"""Foolbox's 20 ImageNet photographs with their labels, prepared as EfficientNet-Lite expects them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.zoo.cache import package_folder

MEAN, SCALE = 127.0, 128.0


def paths() -> list[Path]:
    """The photographs; the class index is the last number of the file name."""
    return sorted((package_folder("foolbox") / "data").glob("imagenet_*"))


def label(path: Path) -> int:
    return int(path.stem.rsplit("_", 1)[1])


def prepare(path: Path, size: int = 224) -> np.ndarray:
    """Central 7/8 of the shorter side, resized, ``(x - 127) / 128``, as [1, 3, size, size] float32."""
    image = Image.open(path).convert("RGB")
    side = int(min(image.size) * 0.875)
    left, top = (image.size[0] - side) // 2, (image.size[1] - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image, np.float32) - MEAN) / SCALE
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
