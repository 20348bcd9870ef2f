"""The PyTorch frontend."""

from aotc.frontends.torch.importer import import_torch as import_torch
