"""Whole modules against torch: small CNNs, transformers with any batch and length, recurrent cells."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from aotc.ir.dims import symbol
from aotc.ir.expr import Parameter
from aotc.ir.visitor import calls_of, post_order
from tests.frontends.torch.check import check, operators

torch.manual_seed(0)
BATCH, LENGTH = Dim("batch", max=64), Dim("length", max=512)


class Block(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 2 * width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * width)
        self.relu = nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.down = nn.Conv2d(width, 2 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.depthwise(y)
        y += self.down(x)
        return self.relu(y)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), Block(4, 2), Block(8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(16, 10)
    )


def test_cnn_with_any_batch() -> None:
    imported = check(cnn(), (torch.randn(2, 3, 33, 33),), ({0: BATCH},), [(torch.randn(1, 3, 33, 33),), (torch.randn(5, 3, 33, 33),)])
    (image,) = imported.main.params
    assert image.name == "input" and str(image.type) == "float32[batch, 3, 33, 33]"
    assert symbol("batch") in image.type.shape and imported.symbols["batch"].upper == 64  # type: ignore[union-attr]
    assert imported.output_names == {"main": ("output",)}
    assert operators(imported).count("conv") == 7 and operators(imported).count("batch_norm") == 2


def test_cnn_with_any_image_size() -> None:
    height, width = Dim("height", min=16), Dim("width", min=16)
    others = [(torch.randn(1, 3, *size),) for size in ((16, 17), (31, 40), (64, 20))]
    check(cnn(), (torch.randn(1, 3, 32, 32),), ({2: height, 3: width},), others)


def test_nodes_and_weights_carry_module_paths() -> None:
    imported = check(cnn(), (torch.randn(1, 3, 32, 32),))
    origins = {node.origin for node in post_order(imported.main.body)}
    assert {"0", "1.conv1", "1.bn1", "2.depthwise", "6"} <= origins
    weights = {node.name for node in post_order(imported.main.body) if isinstance(node, Parameter)}
    assert {"1.bn1.running_mean", "2.conv1.weight", "6.bias"} <= weights


def test_unet_with_skips_and_resizing() -> None:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
            self.up, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skip = self.down1(x).relu()
            deep = self.down2(nn.functional.max_pool2d(skip, 2)).relu()
            up = nn.functional.interpolate(self.up(deep), size=skip.shape[2:], mode="bilinear")
            return self.out(torch.cat([skip, up], 1)).sigmoid()

    side = Dim("side", min=8)
    check(UNet(), (torch.randn(1, 3, 16, 16),), ({2: 2 * side, 3: 2 * side},), [(torch.randn(1, 3, 24, 24),)])


def test_transformer_encoder_with_any_batch_and_length() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
    others = [(torch.randn(1, 9, 16),), (torch.randn(4, 2, 16),), (torch.randn(1, 1, 16),)]
    imported = check(encoder, (torch.randn(2, 7, 16),), ({0: BATCH, 1: LENGTH},), others)
    assert operators(imported).count("softmax") == 2 and operators(imported).count("layer_norm") == 5


def test_encoder_with_padding_mask() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16, padding_idx=0)
            self.position = nn.Embedding(64, 16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False)
            self.head = nn.Linear(16, 3)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
            x = self.embedding(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
            x = self.encoder(x, src_key_padding_mask=mask == 0)
            pooled = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
            return {"logits": self.head(pooled), "pooled": nn.functional.normalize(pooled)}

    def example(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length // 2 + 1 :] = 0
        return torch.randint(0, 50, (batch, length)), mask

    dynamic = {"ids": {0: BATCH, 1: LENGTH}, "mask": {0: BATCH, 1: LENGTH}}
    imported = check(Masked(), example(2, 6), dynamic, [example(1, 3), example(3, 11)])
    assert [param.name for param in imported.main.params] == ["ids", "mask"]
    assert imported.output_names["main"] == ("logits", "pooled")


def test_causal_decoder_with_rotary_positions_and_rms_norm() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.RMSNorm(16), nn.Linear(16, 32, bias=False), nn.Linear(16, 16, bias=False)
            self.register_buffer("frequency", 1 / 100 ** (torch.arange(0, 4, 2) / 4), persistent=False)

        def rotate(self, x: torch.Tensor) -> torch.Tensor:
            angle = torch.outer(torch.arange(x.shape[2]).float(), self.frequency)
            cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm(x)).split([16, 8, 8], -1)
            q, k, v = (part.view(batch, length, -1, 4).transpose(1, 2) for part in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
            return x + self.out(y.transpose(1, 2).reshape(batch, length, 16))

    others = [(torch.randn(1, 3, 16),), (torch.randn(3, 8, 16),)]
    check(nn.Sequential(Layer(), Layer()), (torch.randn(2, 5, 16),), ({0: BATCH, 1: LENGTH},), others)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}], ids=["plain", "deep", "without-bias"]
)
def test_recurrent_layers_of_known_length(cell: type[nn.Module], options: dict[str, object]) -> None:
    check(cell(5, 6, **options), (torch.randn(4, 3, 5),))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent_layers_of_any_length_are_one_call_a_direction(cell: type[nn.Module]) -> None:
    imported = check(cell(5, 6, bidirectional=True), (torch.randn(4, 3, 5),), ({0: LENGTH, 1: BATCH},), [(torch.randn(7, 1, 5),)])
    assert len(list(calls_of(imported.main.body, [cell.__name__.lower()]))) == 2


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(cell: type[nn.Module]) -> None:
    check(cell(5, 6), (torch.randn(3, 5),))


def test_window_attention_by_roll_and_shuffle() -> None:
    class Windows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, height, width, channels = x.shape
            x = torch.roll(x, (-2, -2), (1, 2))
            x = x.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)
            return (x @ x.mT).softmax(-1) @ x

    check(Windows(), (torch.randn(2, 8, 12, 3),), ({0: BATCH},), [(torch.randn(1, 8, 12, 3),)])


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    imported = check(Tied(), (torch.randint(0, 20, (2, 3)),))
    assert len({id(node) for node in post_order(imported.main.body) if isinstance(node, Parameter)}) == 1
