"""Networks of the benchmark that no package has, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BertLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden, eps=1e-12), nn.LayerNorm(hidden, eps=1e-12)
        self.up, self.down = nn.Linear(hidden, feed_forward), nn.Linear(feed_forward, hidden)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        context = nn.functional.scaled_dot_product_attention(self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)))
        x = self.attention_norm(x + self.output(context.transpose(1, 2).reshape(x.shape)))
        return self.output_norm(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """An encoder of MiniLM-L6's size: int64 token ids [batch, tokens] -> hidden states."""

    def __init__(self, layers: int = 6, hidden: int = 384, heads: int = 12, feed_forward: int = 1536, tokens: int = 128) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(30522, hidden), nn.Embedding(tokens, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(hidden, heads, feed_forward) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x


class Lstm(nn.Module):
    """Two layers over [batch, steps, 128] -> [batch, steps, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0]
        return result


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.shortcut, self.body = shortcut, nn.Sequential(conv(channels, channels), conv(channels, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.shortcut else y


class CrossStage(nn.Module):
    """A cross-stage-partial block (Wang et al. 2020): half of the channels go through bottlenecks, half around them."""

    def __init__(self, inputs: int, outputs: int, depth: int, shortcut: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.around, self.into, self.out = conv(inputs, half), conv(inputs, half), conv(outputs, outputs)
        self.body = nn.Sequential(*(Bottleneck(half, shortcut) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.cat([self.body(self.into(x)), self.around(x)], 1))
        return y


class PyramidPool(nn.Module):
    """Spatial pyramid pooling by three chained 5x5 maxima."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.into, self.out, self.pool = conv(channels, channels // 2), conv(channels * 2, channels), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.into(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        y: Tensor = self.out(torch.cat(levels, 1))
        return y


class Head(nn.Module):
    """A decoupled head (YOLOX, Ge et al. 2021): classes on one branch, box and objectness on another."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = conv(inputs, width)
        self.class_branch = nn.Sequential(conv(width, width, 3), conv(width, width, 3), nn.Conv2d(width, classes, 1))
        self.box_branch = nn.Sequential(conv(width, width, 3), conv(width, width, 3))
        self.box, self.object = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.box_branch(x)
        return torch.cat([self.box(y), self.object(y).sigmoid(), self.class_branch(x).sigmoid()], 1)


class Detector(nn.Module):
    """A small detector of the YOLO family: a cross-stage-partial backbone, a path-aggregation neck (Liu et al. 2018) and decoupled
    heads at strides 8, 16 and 32. float32 images [batch, 3, side, side] -> [batch, cells, 4 + 1 + classes]: centre and size of a box in
    pixels, objectness, classes."""

    def __init__(self, side: int = 320, width: int = 16, classes: int = 80) -> None:
        super().__init__()
        c = [width * factor for factor in (1, 2, 4, 8, 16)]
        self.stem = nn.Sequential(conv(3, c[0], 3, 2), conv(c[0], c[1], 3, 2), CrossStage(c[1], c[1], 1))
        self.stage8 = nn.Sequential(conv(c[1], c[2], 3, 2), CrossStage(c[2], c[2], 2))
        self.stage16 = nn.Sequential(conv(c[2], c[3], 3, 2), CrossStage(c[3], c[3], 3))
        self.stage32 = nn.Sequential(conv(c[3], c[4], 3, 2), CrossStage(c[4], c[4], 1), PyramidPool(c[4]))
        self.lateral32, self.lateral16 = conv(c[4], c[3]), conv(c[3], c[2])
        self.up16, self.up8 = CrossStage(2 * c[3], c[3], 1, False), CrossStage(2 * c[2], c[2], 1, False)
        self.down8, self.down16 = conv(c[2], c[2], 3, 2), conv(c[3], c[3], 3, 2)
        self.out16, self.out32 = CrossStage(2 * c[2], c[3], 1, False), CrossStage(2 * c[3], c[4], 1, False)
        self.heads = nn.ModuleList(Head(channels, c[2], classes) for channels in c[2:])
        grids, strides = [], []
        for stride in (8, 16, 32):
            ticks = torch.arange(side // stride, dtype=torch.float32)
            rows, columns = torch.meshgrid(ticks, ticks, indexing="ij")
            grids.append(torch.stack([columns, rows], -1).reshape(-1, 2))
            strides.append(torch.full((grids[-1].shape[0], 1), float(stride)))
        self.register_buffer("grid", torch.cat(grids)[None])
        self.register_buffer("stride", torch.cat(strides)[None])

    def forward(self, image: Tensor) -> Tensor:
        x8 = self.stage8(self.stem(image))
        x16 = self.stage16(x8)
        top = self.lateral32(self.stage32(x16))
        middle = self.lateral16(self.up16(torch.cat([nn.functional.interpolate(top, scale_factor=2.0), x16], 1)))
        y8 = self.up8(torch.cat([nn.functional.interpolate(middle, scale_factor=2.0), x8], 1))
        y16 = self.out16(torch.cat([self.down8(y8), middle], 1))
        y32 = self.out32(torch.cat([self.down16(y16), top], 1))
        levels = [head(y).flatten(2) for head, y in zip(self.heads, (y8, y16, y32), strict=True)]
        cells = torch.cat(levels, 2).transpose(1, 2)
        centre = (cells[..., :2] + self.grid) * self.stride
        size = (2.0 * cells[..., 2:4].sigmoid()) ** 2 * self.stride  # bounded, as in YOLOv5
        return torch.cat([centre, size, cells[..., 4:]], -1)
