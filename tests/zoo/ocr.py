"""PP-OCR v4 text detection and recognition, and the direction classifier, as published: all dims dynamic, weights in Constant nodes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.zoo.cache import package_folder

FILES = {
    "detection": "ch_PP-OCRv4_det_infer.onnx",
    "recognition": "ch_PP-OCRv4_rec_infer.onnx",
    "direction": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
}
# Three sizes each, the last two at random (recognition needs its 48 rows, detection multiples of 32); small, since they also run
# under emulation.
SIZES = {
    "detection": ((1, 3, 64, 64), (2, 3, 64, 96), (1, 3, *(32 * int(n) for n in random.Random(1).sample(range(1, 6), 2)))),
    "recognition": ((1, 3, 48, 160), *((n, 3, 48, random.Random(n).randrange(20, 200)) for n in (1, 2))),
    "direction": ((1, 3, 48, 192), *((n, 3, 48, random.Random(n).randrange(20, 200)) for n in (2, 3))),
}


def onnx_path(name: str) -> Path:
    return package_folder("rapidocr_onnxruntime") / "models" / FILES[name]


def example(shape: tuple[int, ...]) -> np.ndarray:
    """Pictures of dark words on a light ground, in the networks' range of -1 to 1."""
    batch, _, height, width = shape
    pictures = np.empty(shape, np.float32)
    for row in range(batch):
        image = Image.new("RGB", (width, height), (235, 232, 225))
        text = ("Jetson 42", "aotc 1.0", "Arm Cortex")[row]
        ImageDraw.Draw(image).text((4, height // 2 - 14), text, fill=(25, 30, 40), font=ImageFont.load_default(24))
        pictures[row] = np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1.0
    return pictures
