"""The convolutions and matrix products that the operator sweep measures: drawn by seed from published networks, and odd ones.

    python -m benchmarks.shapes        collects them anew and writes benchmarks/shapes.json

The networks run on torch's meta device, which computes shapes only; what they dispatch is recorded.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from aotc.cli.common import console

FILE = Path(__file__).parent / "shapes.json"
DRAWN, ODD, SEED = 168, 32, 0
SMALLEST = 100_000
"""Multiply-accumulates of a shape: fewer take under two microseconds, where the clock and the call count more than the kernel."""


@dataclass(frozen=True)
class Conv:
    """x[batch, channels, *size] with weights [outputs, channels / groups, *kernel]; ``padding`` on both sides of each axis."""

    network: str
    batch: int
    channels: int
    size: tuple[int, ...]
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def extents(self) -> tuple[int, ...]:
        axes = zip(self.size, self.kernel, self.strides, self.padding, self.dilation, strict=True)
        return tuple((size + 2 * pad - rate * (taps - 1) - 1) // stride + 1 for size, taps, stride, pad, rate in axes)

    @property
    def macs(self) -> int:
        return self.batch * self.outputs * math.prod(self.extents) * self.channels // self.groups * math.prod(self.kernel)

    @property
    def elements(self) -> int:
        """Elements that must be read or written once: input, weights, bias, output."""
        weights = self.outputs * (self.channels // self.groups * math.prod(self.kernel) + 1)
        return self.batch * (self.channels * math.prod(self.size) + self.outputs * math.prod(self.extents)) + weights

    @property
    def family(self) -> str:
        if self.groups > 1:
            return "depthwise" if self.groups == self.channels else "grouped conv"
        return "1x1 conv" if math.prod(self.kernel) == 1 else "conv"

    @property
    def name(self) -> str:
        text = f"{self.channels}x{_by(self.size)} -> {self.outputs}, {_by(self.kernel)}"
        text += f" / {_by(self.strides)}" if max(self.strides) > 1 else ""
        text += f", dilation {_by(self.dilation)}" if max(self.dilation) > 1 else ""
        return text + (f", {self.groups} groups" if 1 < self.groups < self.channels else "")


@dataclass(frozen=True)
class Matmul:
    """[batch, rows, inner] times [inner, columns] of constant weights, or times [batch, inner, columns]."""

    network: str
    batch: int
    rows: int
    inner: int
    columns: int
    weights: bool

    @property
    def macs(self) -> int:
        return self.batch * self.rows * self.inner * self.columns

    @property
    def elements(self) -> int:
        """Elements that must be read or written once."""
        return self.batch * self.rows * (self.inner + self.columns) + self.inner * self.columns * (1 if self.weights else self.batch)

    @property
    def family(self) -> str:
        return ("dense" if self.rows > 1 else "matrix-vector") if self.weights else "batched matmul"

    @property
    def name(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.rows}x{self.inner} . {self.inner}x{self.columns}"


Shape = Conv | Matmul


def load(path: Path = FILE) -> list[Shape]:
    return [_from_json(entry) for entry in json.loads(path.read_text())["shapes"]]


def _from_json(entry: dict[str, Any]) -> Shape:
    kind = Conv if "kernel" in entry else Matmul
    return kind(**{field.name: _tuple(entry[field.name]) for field in fields(kind)})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


# Collecting -------------------------------------------------------------------------------------------------------------

CLASSIFIERS = (
    "alexnet", "vgg11", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121", "googlenet", "inception_v3",
    "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "shufflenet_v2_x1_0", "efficientnet_b0", "efficientnet_v2_s",
    "regnet_y_800mf", "convnext_tiny", "vit_b_16",
)  # fmt: skip
SEGMENTERS = ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
_SMALL: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "BERT base": ("BertModel", {}, (128,)), "MiniLM": ("BertModel", _SMALL, (64,)), "GPT-2": ("GPT2Model", {}, (77,)),
    "T5 small": ("T5EncoderModel", {}, (48,)), "ALBERT": ("AlbertModel", {}, (33,)), "wav2vec 2.0": ("Wav2Vec2Model", {}, (1, 16000)),
}  # fmt: skip
"""The class, options of its configuration, and the shape of its input: tokens, or a wave."""


def _networks() -> Iterator[tuple[str, Callable[[], Any], tuple[int, ...]]]:
    """Name, maker of the module, shape of its input: a picture, a wave, or one row of tokens."""
    import transformers

    from tests.zoo.classifiers import models

    torchvision = models()
    for name in CLASSIFIERS:
        inception = name in ("googlenet", "inception_v3")
        options = {"aux_logits": False, "init_weights": False} if inception else {}
        yield name, partial(getattr(torchvision, name), weights=None, **options), (1, 3, *(2 * (299 if name == "inception_v3" else 224,)))
    for name in SEGMENTERS:
        yield name, partial(getattr(torchvision.segmentation, name), weights=None, weights_backbone=None), (1, 3, 260, 340)
    for name, (model, options, shape) in TRANSFORMERS.items():
        config = getattr(transformers, model.replace("Model", "Config").replace("Encoder", ""))(num_hidden_layers=1, **options)
        config._attn_implementation = "eager"  # so that attention's products are seen
        yield name, partial(getattr(transformers, model), config), shape


def _record(network: str, make: Callable[[], Any], shape: tuple[int, ...]) -> list[Shape]:
    """The convolutions and matrix products of a network, each once."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[Shape] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = operator.overloadpacket.__name__
            if name == "convolution" and not args[6]:
                found.append(_conv(network, *args[:6], groups=args[8]))
            elif name == "addmm":
                found.append(Matmul(network, 1, *args[1].shape, args[2].shape[1], weights=True))
            elif name == "mm":
                found.append(Matmul(network, 1, *args[0].shape, args[1].shape[1], weights=True))
            elif name == "bmm":
                found.append(Matmul(network, *args[0].shape, args[1].shape[2], weights=False))
            return operator(*args, **(kwargs or {}))

    module = make().eval().to("meta")
    x = torch.zeros(shape, device="meta") if len(shape) > 1 else torch.zeros(1, *shape, dtype=torch.int64, device="meta")
    with torch.no_grad(), torch.device("meta"), Recorder():
        module(x)
    return list(dict.fromkeys(found))


def _conv(network: str, x: Any, weight: Any, bias: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Conv:
    tuples = [tuple(values) for values in (weight.shape[2:], strides, padding, dilation)]
    return Conv(network, x.shape[0], x.shape[1], tuple(x.shape[2:]), weight.shape[0], *tuples, groups=groups)


def _odd(random: np.random.Generator) -> Iterator[Shape]:
    """Shapes that fit no tile: prime channels, odd extents, few rows, windows that leave a rest. Three convolutions to a product."""

    def pick(*values: int) -> int:
        return int(random.choice(values))

    for kind in itertools.cycle(("conv", "conv", "depthwise", "matmul")):
        if kind == "matmul":
            batch, weights = pick(1, 3), bool(random.integers(2))
            sizes = pick(1, 2, 5, 7, 31, 129), pick(3, 17, 63, 257, 1023), pick(1, 5, 33, 127, 513)
            yield Matmul("odd", 1 if weights else batch, *sizes, weights)
            continue
        channels, taps, stride = pick(1, 5, 13, 29, 67, 131), pick(1, 2, 3, 5, 7), pick(1, 1, 2, 3)
        size = pick(7, 13, 31, 57, 113), pick(5, 9, 17, 33, 65)
        outputs, groups = (channels, channels) if kind == "depthwise" else (pick(1, 7, 11, 37, 101), 1)
        dilation = pick(1, 1, 2) if taps == 3 else 1
        each = [(value, value) for value in (taps, stride, taps // 2, dilation)]
        yield Conv("odd", 1, channels, size, outputs, *each, groups)


def draw(collected: dict[str, list[Shape]]) -> list[Shape]:
    """As many shapes of each network, as far as it has them, no two alike and none below SMALLEST; then the odd ones."""
    random = np.random.default_rng(SEED)
    queues = [[shapes[i] for i in random.permutation(len(shapes))] for shapes in collected.values()]
    drawn: dict[tuple[str, str], Shape] = {}
    turns = (queue.pop() for queue in itertools.cycle(queues) if queue)
    for count, source in ((DRAWN, turns), (DRAWN + ODD, _odd(random))):
        while len(drawn) < count:
            shape = next(source)
            if shape.macs >= SMALLEST:
                drawn.setdefault((shape.family, shape.name), shape)
    return list(drawn.values())


def main(output: Annotated[Path, typer.Option(help="Where to write the list.")] = FILE) -> None:
    """Collect the shapes that `python -m benchmarks.sweep` measures.

    Example: `python -m benchmarks.shapes --output /tmp/shapes.json`
    """
    collected = {}
    for name, make, shape in _networks():
        collected[name] = _record(name, make, shape)
        console.print(f"{name}: {len(collected[name])} shapes", highlight=False)
    shapes = draw(collected)
    lines = ",\n".join(json.dumps(asdict(shape)) for shape in shapes)
    output.write_text(f'{{"networks": {json.dumps(list(collected))},\n"shapes": [\n{lines}\n]}}\n')
    console.print(f"{len(shapes)} shapes of {len(collected)} networks written to {output}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
