"""The core ATen operators, and torch's own samples (its OpInfo database) of the functions that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

SAMPLES = 4  # of each operator, spread over those that torch has
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)

# Functions of torch whose export calls the operator, where none has its name.
FUNCTIONS = {
    "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "nn.functional.adaptive_avg_pool3d",
    "_cdist_forward": "cdist",
    "_embedding_bag": "nn.functional.embedding_bag",
    "_fft_c2r": "fft.irfft",
    "_fft_r2c": "fft.rfft",
    "_local_scalar_dense": "item",
    "_log_softmax": "log_softmax",
    "_native_batch_norm_legit_no_training": "nn.functional.batch_norm",
    "_pdist_forward": "nn.functional.pdist",
    "_softmax": "softmax",
    "_to_copy": "to",
    "alias": "view_as",
    "avg_pool1d": "nn.functional.avg_pool1d",
    "avg_pool2d": "nn.functional.avg_pool2d",
    "avg_pool3d": "nn.functional.avg_pool3d",
    "col2im": "nn.functional.fold",
    "convolution": "nn.functional.conv2d",
    "copy": "clone",
    "elu": "nn.functional.elu",
    "embedding": "nn.functional.embedding",
    "index": "__getitem__",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "native_layer_norm": "nn.functional.layer_norm",
    "native_group_norm": "nn.functional.group_norm",
    "sym_size": "flatten",
    "upsample_bilinear2d": "nn.functional.upsample_bilinear",
    "upsample_nearest2d": "nn.functional.upsample_nearest",
}
PADDING = {"reflection_pad": "reflect", "replication_pad": "replicate"}

RANDOM = {"bernoulli", "multinomial", "native_dropout", "normal", "rand", "randint", "randn", "randperm", "uniform"}
"""What they compute depends on a generator's state that a compiled file does not have."""


@dataclass(frozen=True)
class Sample:
    """A function of tensors and the tensors."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


def core_operators() -> list[str]:
    """Names of the operators that torch tags as core, without the domain and the overload."""
    names = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = [getattr(packet, each) for each in packet.overloads()] if hasattr(packet, "overloads") else []
        if any(torch.Tag.core in overload.tags for overload in overloads):
            names.append(name)
    return sorted(names)


def exclusion(name: str) -> str | None:
    """Why an operator does not count, or ``None``."""
    if name.endswith("_backward"):
        return "computes a gradient"
    if name in RANDOM:
        return "random: its values cannot be equal"
    if name in ("empty", "empty_strided"):
        return "memory that nobody wrote"
    if name == "_local_scalar_dense":
        return "gives a number to Python, no tensor"
    if name == "_native_batch_norm_legit":
        return "updates statistics: training"
    if name in ("sym_numel", "sym_storage_offset", "sym_stride"):
        return "takes part in no computation: a size that export solves"
    return None


def samples(name: str) -> list[Sample]:
    """Up to ``SAMPLES`` of an operator, in the first dtype that its function takes. Empty where torch has none."""
    found: list[Sample] = []
    for info in _infos(name):
        dtype = next((dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")), None)
        if dtype is None:
            continue
        torch.manual_seed(0)
        found += [made for each in info.sample_inputs("cpu", dtype) if (made := _sample(info, each)) is not None]
    if len(found) <= SAMPLES:
        return found
    return [found[i * (len(found) - 1) // (SAMPLES - 1)] for i in range(SAMPLES)]


@functools.cache
def _database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _infos(name: str) -> Iterator[Any]:
    function, variant = FUNCTIONS.get(name), ""
    for prefix, mode in PADDING.items():
        if name.startswith(prefix):
            function, variant = "nn.functional.pad", mode
    for info in _database():
        if (function is None and (info.aten_name == name or info.name == name.strip("_"))) or (
            function == info.name and (not variant or info.variant_test_name == variant)
        ):
            yield info


def _sample(info: Any, inputs: Any) -> Sample | None:
    """One of torch's samples as a function of its tensors alone."""
    leaves, structure = pytree.tree_flatten(((inputs.input, *inputs.args), inputs.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if any(
        not isinstance(leaf, (torch.Tensor, int, float, bool, str, type(None), torch.dtype, complex, slice, tuple, list)) for leaf in leaves
    ):
        return None
    if inputs.kwargs.get("training"):
        return None
    if any(leaves[place].untyped_storage().nbytes() > leaves[place].nbytes for place in places):
        return None  # reads beyond the tensor that it is given

    def function(*tensors: torch.Tensor) -> Any:
        full = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        args, kwargs = pytree.tree_unflatten(full, structure)
        return pytree.tree_map_only(torch.Tensor, _as_real, info.op(*args, **kwargs))

    return Sample(function, tuple(leaves[place].detach().contiguous() for place in places))


def _as_real(result: torch.Tensor) -> torch.Tensor:
    """A file's outputs are real: a complex one is its pairs of real and imaginary parts."""
    return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
