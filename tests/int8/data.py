"""Data that calibrates, and data that tests: no picture, sentence or line is in both."""

from __future__ import annotations

import gzip
import random
import re
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from tests.zoo import images, ocr
from tests.zoo.cache import package_folder

FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
CALIBRATING = ("coffee.png", "rocket.jpg", "motorcycle_left.png", "retina.jpg", "ihc.png", "cell.png", "hubble_deep_field.jpg")
TESTED = ("astronaut.png", "chelsea.png")
CROPS = 500


def _photograph(name: str) -> Path:
    package, folder = ("sklearn", "datasets/images") if name in ("china.jpg", "flower.jpg") else ("skimage", "data")
    return package_folder(package) / folder / name


def _crops(paths: list[Path], count: int, seed: int) -> list[np.ndarray]:
    """Squares of 50 % to 100 % of the shorter side, from anywhere, as EfficientNet-Lite takes them: [1, 3, 224, 224] float32."""
    generator = random.Random(seed)
    found = []
    for number in range(count):
        picture = Image.open(paths[number % len(paths)]).convert("RGB")
        side = int(min(picture.size) * generator.uniform(0.5, 1.0))
        left, top = (generator.randint(0, extent - side) for extent in picture.size)
        pixels = picture.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
        array = (np.asarray(pixels, np.float32) - images.MEAN) / images.SCALE
        found.append(np.ascontiguousarray(array.transpose(2, 0, 1)[None]))
    return found


def calibration_crops(count: int = 64) -> list[np.ndarray]:
    return _crops([_photograph(name) for name in (*CALIBRATING, "china.jpg")], count, 1)


def test_crops(count: int = CROPS) -> list[np.ndarray]:
    return _crops([*(_photograph(name) for name in (*TESTED, "flower.jpg")), *images.paths()], count, 2)


def fashion(part: str) -> tuple[np.ndarray, np.ndarray]:
    """``train`` or ``t10k``: float32 [N, 1, 28, 28] from 0 to 1, and labels."""
    with gzip.open(FASHION / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FASHION / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return pixels.astype(np.float32) / 255, labels


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's 1797 digits: float32 [N, 8, 8] from 0 to 1, and labels."""
    with gzip.open(package_folder("sklearn") / "datasets" / "data" / "digits.csv.gz") as file:
        rows = np.loadtxt(file, delimiter=",")
    return (rows[:, :64].reshape(-1, 8, 8) / 16).astype(np.float32), rows[:, 64].astype(np.int64)


def sentences(count: int) -> list[dict[str, np.ndarray]]:
    """Token ids of sentences of English prose, from scikit-learn's descriptions of its data sets, one a batch."""
    from tokenizers import Tokenizer

    with zipfile.ZipFile(package_folder("all_minilm_l6_v2") / "model.zip") as archive:
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    tokenizer.no_padding()
    text = " ".join(path.read_text() for path in sorted((package_folder("sklearn") / "datasets" / "descr").glob("*.rst")))
    prose = [" ".join(each.split()) for each in re.split(r"(?<=[.!?:])\s+|\n\s*\n", text)]
    chosen = [each for each in dict.fromkeys(prose) if 15 <= len(each) <= 400 and each[0].isalpha()]
    random.Random(3).shuffle(chosen)
    if len(chosen) < count:
        raise ValueError(f"there are {len(chosen)} sentences, not {count}")
    encoded = [np.array([tokenizer.encode(each).ids], np.int64) for each in chosen[:count]]
    return [{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in encoded]


WORDS = [
    "invoice",
    "total",
    "amount",
    "order",
    "number",
    "date",
    "street",
    "city",
    "river",
    "mountain",
    "window",
    "garden",
    "paper",
    "bridge",
    "market",
    "winter",
    "summer",
    "Monday",
    "Tuesday",
    "quality",
    "control",
    "serial",
    "machine",
    "engine",
    "voltage",
    "current",
    "battery",
    "signal",
    "channel",
    "printer",
    "label",
    "product",
    "weight",
    "volume",
]


def lines(count: int, seed: int) -> list[np.ndarray]:
    """Rendered lines of words and numbers, as PP-OCR's recognition takes them: [1, 3, 48, 320] float32."""
    from PIL import ImageDraw, ImageFont

    generator = random.Random(seed)
    found = []
    for _ in range(count):
        text = " ".join(generator.choice([generator.choice(WORDS), str(generator.randint(1, 9999))]) for _ in range(3))
        paper, ink = generator.randint(200, 255), generator.randint(0, 60)
        picture = Image.new("RGB", (320, 48), (paper, paper, paper))
        ImageDraw.Draw(picture).text(
            (generator.randint(2, 10), generator.randint(4, 14)), text, (ink, ink, ink), ImageFont.load_default(generator.randint(18, 24))
        )
        array = np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
        found.append(np.ascontiguousarray(array))
    return found


RECOGNITION = ocr.onnx_path
