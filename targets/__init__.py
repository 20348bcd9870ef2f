"""Targets: what a model is built for, as data. ``get`` finds one by name; ``NAMES`` lists them."""

from aotc.targets.base import Gpu, Target, with_ptx, with_rounded_factors, with_sm, without_gpu
from aotc.targets.catalogue import NAMES, get

__all__ = ["NAMES", "Gpu", "Target", "get", "with_ptx", "with_rounded_factors", "with_sm", "without_gpu"]
