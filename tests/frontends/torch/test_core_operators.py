"""Operators in the forms that torch's decompositions write, called by their own names, against torch itself."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.frontends.torch.check import Checked, check_table
from tests.frontends.torch.test_operators import i, r

aten = torch.ops.aten
torch.manual_seed(2)
A, P, N, M = r(2, 3, 4), r(2, 3, 4).abs() + 0.1, i(-9, 9, 2, 3, 4), r(2, 3, 4) > 0
LINE, IMAGE, CUBE = r(2, 4, 11), r(2, 4, 7, 9), r(1, 2, 5, 6, 4)
BAGS = (r(10, 4), i(0, 10, 9), torch.tensor([0, 3, 3, 7]))
MOMENTS = (r(4), r(4), r(4), r(4).abs() + 0.1)
HEADS = (r(1, 2, 5, 8), r(1, 2, 6, 8), r(1, 2, 6, 8))


def first(operator: Any, *options: Any) -> Any:
    """The first result of an operator with several; the others serve training."""
    return lambda *tensors: operator(*tensors, *options)[0]


def plain(operator: Any, *options: Any) -> Any:
    return lambda *tensors: operator(*tensors, *options)


CORE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "_adaptive_avg_pool2d": (plain(aten._adaptive_avg_pool2d, [3, 4]), (IMAGE,)), "_adaptive_avg_pool3d": (plain(aten._adaptive_avg_pool3d, [2, 3, 2]), (CUBE,)),
    "_embedding_bag": (first(aten._embedding_bag), BAGS), "_softmax": (plain(aten._softmax, 1, False), (A,)), "_log_softmax": (plain(aten._log_softmax, -1, False), (A,)),
    "_native_batch_norm": (lambda x, w, v, m, s: aten._native_batch_norm_legit_no_training(x, w, v, m, s, 0.1, 1e-5)[0], (IMAGE, *MOMENTS)),
    "_native_batch_norm_legit": (lambda x, w, v, m, s: aten._native_batch_norm_legit(x, w, v, m, s, False, 0.1, 1e-5)[0], (IMAGE, *MOMENTS)),
    "native_batch_norm": (lambda x, w, v, m, s: aten.native_batch_norm(x, w, v, m, s, False, 0.1, 1e-5)[0], (IMAGE, *MOMENTS)),
    "no_stats": (lambda x, w, v: aten._native_batch_norm_legit.no_stats(x, w, v, True, 0.1, 1e-5)[0], (IMAGE, r(4), r(4))),
    "native_layer_norm": (lambda x, w, v: aten.native_layer_norm(x, [4], w, v, 1e-5)[0], (A, r(4), r(4))),
    "native_group_norm": (lambda x, w, v: aten.native_group_norm(x, w, v, 2, 4, 63, 2, 1e-5)[0], (IMAGE, r(4), r(4))), "_fused_rms_norm": (lambda x, w: aten._fused_rms_norm(x, [4], w, 1e-5)[0], (A, r(4))),
    "convolution": (lambda x, w, v: aten.convolution(x, w, v, [2, 1], [1, 1], [1, 1], False, [0, 0], 2), (IMAGE, r(6, 2, 3, 3), r(6))),
    "convolution_transposed": (lambda x, w: aten.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1), (IMAGE, r(4, 3, 3, 3))),
    "constant_pad_nd": (plain(aten.constant_pad_nd, [1, -1, 0, 2], 3.0), (A,)), "native_dropout": (first(aten.native_dropout, 0.5, False), (A,)),
    "reflection_pad1d": (plain(aten.reflection_pad1d, [2, 1]), (LINE,)), "reflection_pad2d": (plain(aten.reflection_pad2d, [2, 1, 3, 0]), (IMAGE,)), "reflection_pad3d": (plain(aten.reflection_pad3d, [1, 1, 2, 0, 1, 2]), (CUBE,)),
    "replication_pad1d": (plain(aten.replication_pad1d, [2, 1]), (LINE,)), "replication_pad2d": (plain(aten.replication_pad2d, [2, 1, 3, 0]), (IMAGE,)), "replication_pad3d": (plain(aten.replication_pad3d, [1, 1, 2, 0, 1, 2]), (CUBE,)),
    "add": (plain(aten.add.Scalar, 2, 3), (A,)), "sub": (plain(aten.sub.Scalar, 2), (N,)), "mul": (plain(aten.mul.Scalar, 2.5), (N,)), "div": (plain(aten.div.Scalar, 4), (N,)), "rsub": (plain(aten.rsub.Tensor), (A, P)),
    "div_mode": (lambda x: aten.div.Scalar_mode(x, 4, rounding_mode="floor"), (N,)), "fmod": (plain(aten.fmod.Tensor), (A, P)), "ge": (plain(aten.ge.Scalar, 1), (N,)), "ne": (plain(aten.ne.Scalar, 1), (N,)),
    "bitwise_and": (plain(aten.bitwise_and.Tensor), (N, N.flip(0))), "bitwise_left_shift": (plain(aten.bitwise_left_shift.Tensor), (N, N.abs() % 5)), "bitwise_right_shift": (plain(aten.bitwise_right_shift.Tensor_Scalar, 2), (N,)),
    "squeeze": (plain(aten.squeeze.dims, [1, 2]), (r(2, 1, 1, 3),)), "max_pool3d": (plain(aten.max_pool3d_with_indices, [2, 2, 2]), (CUBE,)), "max_pool1d": (lambda x: aten.max_pool1d_with_indices(x, [3]), (LINE,)),
    "adaptive_max_pool3d": (first(aten.adaptive_max_pool3d, [2, 3, 2]), (CUBE,)), "grid_sampler_2d": (plain(aten.grid_sampler_2d, 0, 1, False), (IMAGE, r(2, 3, 5, 2).clamp(-1.2, 1.2))),
    "grid_sampler_3d": (plain(aten.grid_sampler_3d, 1, 0, True), (CUBE, r(1, 2, 3, 2, 3).clamp(-1, 1))), "empty": (lambda x: aten.empty.memory_format([2, 3]).shape[0] + x, (A,)),
    "empty_strided": (lambda x: aten.fill.Scalar(aten.empty_strided([2, 3], [1, 2]), 2) + x[0, 0, 0], (A,)), "prelu": (plain(aten._prelu_kernel), (A, r(1, 3, 1))), "safe_softmax": (lambda x, m: aten._safe_softmax(x.masked_fill(m, -torch.inf), -1), (A, M)),
    "flash_attention": (first(aten._scaled_dot_product_flash_attention_for_cpu), HEADS), "unsafe_index": (lambda x, n: aten._unsafe_index.Tensor(x, [None, n]), (A, i(0, 3, 5))), "addmv": (plain(aten.addmv), (r(3), r(3, 4), r(4))),
    "addr": (plain(aten.addr), (r(3, 4), r(3), r(4))), "vdot": (plain(aten.vdot), (r(5), r(5))), "lerp": (plain(aten.lerp.Tensor), (A, P, r(2, 3, 4))), "masked_fill": (plain(aten.masked_fill.Tensor), (A, M, torch.tensor(3.0))),
    "scatter_reduce": (lambda x, n, v: aten.scatter.reduce(x, 1, n, v, reduce="add"), (A, i(0, 3, 2, 3, 4), r(2, 3, 4))), "scatter_value": (lambda x, n: aten.scatter.value_reduce(x, 1, n, 2.0, reduce="multiply"), (A, i(0, 3, 2, 3, 4))),
    "clamp_max": (plain(aten.clamp_max.Tensor), (A, P)), "copysign": (plain(aten.copysign.Scalar, -2.0), (A,)), "count_nonzero": (plain(aten.count_nonzero.dim_IntList, [0, 2]), (N,)), "remainder": (lambda x: aten.remainder.Scalar_Tensor(7, x), (P,)),
    "upsample_nearest1d": (plain(aten.upsample_nearest1d, [7]), (LINE,)), "upsample_nearest2d": (plain(aten.upsample_nearest2d, [10, 5]), (IMAGE,)), "upsample_nearest3d": (plain(aten.upsample_nearest3d, [4, 9, 2]), (CUBE,)),
    "upsample_exact1d": (plain(aten._upsample_nearest_exact1d, [7]), (LINE,)), "upsample_exact2d": (plain(aten._upsample_nearest_exact2d, [10, 5]), (IMAGE,)), "upsample_exact3d": (plain(aten._upsample_nearest_exact3d, [4, 9, 2]), (CUBE,)),
    "upsample_linear1d": (plain(aten.upsample_linear1d, [7], True), (LINE,)), "upsample_bilinear2d": (plain(aten.upsample_bilinear2d, [10, 5], False), (IMAGE,)), "upsample_trilinear3d": (plain(aten.upsample_trilinear3d, [4, 9, 2], False), (CUBE,)),
    "upsample_bicubic2d": (plain(aten.upsample_bicubic2d, [10, 5], True), (IMAGE,)), "bucketize": (lambda t: aten.bucketize.Scalar(3, t), (i(-9, 9, 5).sort()[0],)), "isin": (lambda x: aten.isin.Tensor_Scalar(x, 3), (N,)),
    "new_full": (lambda x: aten.new_full(x, [2, 2], 3.0) + x[0, 0, 0], (A,)), "new_ones": (lambda x: aten.new_ones(x, [2, 2]) + x[0, 0, 0], (A,)), "view_copy": (plain(aten.view_copy, [6, 4]), (A,)), "eye": (lambda x: aten.eye.m(4, 3) + x[0, 0, 0], (A,)),
}  # fmt: skip


@functools.cache
def checked() -> Checked:
    return check_table(CORE)


@pytest.mark.parametrize("name", CORE)
def test_operator(name: str) -> None:
    checked().row(name, 3e-5 if "bicubic" in name else 1e-5)
