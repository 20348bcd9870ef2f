"""One network of the table: how it is made, its example inputs and which of their axes are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """``make`` gives the module in eval mode; ``inputs(batch)`` what it is run with, named as the parameters of ``forward``.

    ``dynamic`` names the dynamic axes of each input; the axis called ``batch`` is the one that is run at 1 and 3. A network
    that has none by its nature says why in ``fixed``. ``onnx``: whether it is also built through ONNX.
    """

    name: str
    source: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int], Inputs]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    fixed: str = ""
    onnx: bool = False
    batches: Sequence[int] = (1, 3)

    def dynamic_shapes(self) -> Any:
        """As torch.export takes them, for each input by name."""
        dims = {name: torch.export.Dim(name, min=1, max=64) for axes in self.dynamic.values() for name in axes.values()}
        return {
            name: {axis: dims[label] for axis, label in self.dynamic.get(name, {}).items()} for name in self.inputs(self.example_batch())
        }

    def example_batch(self) -> int:
        """torch.export takes sizes of 0 and 1 for fixed ones, so the example has more."""
        return 2 if self.dynamic else 1


def enliven(module: torch.nn.Module) -> torch.nn.Module:
    """Noise on every parameter that is one value throughout, as biases of 0, scales of 1 or 1e-6 are: otherwise whole
    branches of a fresh network do nothing, and a mistake in them would not be seen.

    BatchNorm's biases are also raised by 1. Where a rectifier cuts off half of what each norm gives, a random network
    amplifies differences in each layer (Yang et al., A mean field theory of batch normalization, ICLR 2019): behind 150
    layers PyTorch's float32 is 6e-4 from its own float64. Trained networks do not, nor do these.
    """
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.affine:
                layer.bias.add_(1 + 0.1 * torch.randn_like(layer.bias))
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def settle(module: torch.nn.Module, inputs: Sequence[Inputs]) -> torch.nn.Module:
    """BatchNorm statistics from ``inputs``: with the defaults, activations of deep networks fade to 1e-14."""
    norms = [layer for layer in module.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for each in inputs if norms else ():
            module(**each)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return module.eval()
