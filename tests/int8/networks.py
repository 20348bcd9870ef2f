"""Small networks that are trained here, on one seed, in minutes on one core; and what breaks them for int8 while their function stays the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tests.int8.data import digits, fashion
from tests.zoo.cache import derived

BATCH = 100


class SmallCNN(nn.Module):
    """A convolution, a depthwise-separable one and two more, with batch norms that inference folds."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3) -> nn.Sequential:
            conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

        self.first = block(1, 16, stride=2)
        self.second = block(16, 32)
        self.depthwise = block(32, 32, groups=32)
        self.point = block(32, 64, kernel=1)
        self.third = block(64, 64, stride=2)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.point(self.depthwise(self.second(self.first(x)))))
        return self.last(x.mean((2, 3)))


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(self.a(x)) + self.short(x))


class ResNetLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.stem(x)).mean((2, 3)))


class DigitsLSTM(nn.Module):
    """The eight rows of a digit, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


def trained(name: str) -> nn.Module:
    """``small``, ``resnet`` or ``lstm``, in evaluation mode; trained once and kept in build/zoo."""
    kinds: dict[str, Callable[[], nn.Module]] = {"small": SmallCNN, "resnet": ResNetLike, "lstm": DigitsLSTM}
    network = kinds[name]()
    path = derived(f"int8_{name}_2.pt", lambda path: _train(name, kinds[name], path))
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def _train(name: str, make: Callable[[], nn.Module], path: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = make()
    x, y = training_digits() if name == "lstm" else fashion("train")
    epochs, rate = (40, 5e-3) if name == "lstm" else (1, 4e-3)
    size = 64 if name == "lstm" else 128
    steps = epochs * (len(x) // size)
    optimiser = torch.optim.Adam(network.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    data, labels = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        order = torch.randperm(len(data))
        for start in range(0, len(data) - size + 1, size):
            rows = order[start : start + size]
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(data[rows]), labels[rows]).backward()
            optimiser.step()
            schedule.step()
    torch.save(network.state_dict(), path)


def training_digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    return x[:1200], y[:1200]


def tested_digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    return x[1200:], y[1200:]


def folded(network: nn.Module) -> nn.Module:
    """The small CNN with batch norms in its convolutions, so that channels can be rescaled."""
    made = copy.deepcopy(network)
    for name in ("first", "second", "depthwise", "point", "third"):
        block = getattr(made, name)
        setattr(made, name, nn.Sequential(torch.nn.utils.fusion.fuse_conv_bn_eval(block[0], block[1]), block[2]))
    return made.eval()


def broken(network: nn.Module) -> nn.Module:
    """The folded small CNN with outlier channels and channels near zero: the same function, but for rounding."""
    made = folded(network)
    with torch.no_grad():
        _rescale(made.first[0], made.second[0], {3: 100.0, 7: 100.0})
        _rescale(made.second[0], made.depthwise[0], {5: 100.0})
        _rescale(made.depthwise[0], made.point[0], {2: 100.0, 9: 0.01})
        _rescale(made.point[0], made.third[0], {11: 100.0})
    return made


def _rescale(before: nn.Conv2d, after: nn.Conv2d, factors: dict[int, float]) -> None:
    for channel, factor in factors.items():
        before.weight[channel] *= factor
        assert before.bias is not None
        before.bias[channel] *= factor
        if after.groups == 1:
            after.weight[:, channel] /= factor
        else:
            after.weight[channel] /= factor
