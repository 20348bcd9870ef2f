"""Single ATen operators against torch itself."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.torch.check import Checked, check_table, operators

torch.manual_seed(0)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def i(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


A, P, M, N = r(2, 3, 4), r(2, 3, 4).abs() + 0.1, r(2, 3, 4) > 0, i(-9, 9, 2, 3, 4)
IMAGE, LINE, CUBE = r(2, 4, 7, 9), r(2, 4, 11), r(1, 2, 5, 6, 4)

POINTWISE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{name: (getattr(torch, name), (A,)) for name in (
        "exp", "expm1", "exp2", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "erfc", "sigmoid", "relu", "neg", "abs",
        "sign", "sgn", "square", "frac", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "logical_not", "positive",
        "deg2rad", "sinc", "logit", "nan_to_num", "signbit",
    )},
    **{name: (getattr(torch, name), (P,)) for name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acosh")},
    **{name: (getattr(torch, name), (A.clamp(-0.9, 0.9),)) for name in ("asin", "acos", "atanh", "erfinv")[:3]},
    **{name: (getattr(F, name), (A,)) for name in (
        "silu", "mish", "hardswish", "hardsigmoid", "hardtanh", "relu6", "gelu", "elu", "selu", "celu", "leaky_relu", "softplus", "softsign",
        "logsigmoid", "tanhshrink", "softshrink", "hardshrink", "glu",
    )},
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (A,)),
    "elu_alpha": (lambda x: F.elu(x, 0.3), (A,)),
    "softplus_beta": (lambda x: F.softplus(x, beta=2.5), (A,)),
    "threshold": (lambda x: F.threshold(x, 0.2, -1), (A,)),
    "prelu": (F.prelu, (A, r(3))),
    "prelu_one": (F.prelu, (A, r(1))),
    "sign_nan": (lambda x: (x.sign(), x.sgn()), (torch.tensor([float("nan"), float("inf"), -2.0, 0.0]),)),
    "abs_int": (torch.abs, (N,)), "neg_int": (torch.neg, (N,)), "floor_int": (torch.floor, (N,)), "exp_int": (torch.exp, (N,)),
    "sqrt_int": (torch.sqrt, (N.abs(),)), "relu_int": (torch.relu, (N,)), "isnan_int": (torch.isnan, (N,)),
    "add": (torch.add, (A, r(3, 1))), "add_alpha": (lambda x, y: torch.add(x, y, alpha=0.5), (A, A)), "add_scalar": (lambda x: x + 2, (A,)),
    "add_int_float": (lambda x, y: x + y, (N, A)), "add_int_scalar_float": (lambda x: x + 1.5, (N,)), "add_bool": (lambda x, y: x + y, (M, ~M)),
    "mul_bool_float": (lambda x, m: x * m, (A, M)), "mul_bool": (lambda x, y: x * y, (M, M)), "sub": (torch.sub, (A, P)),
    "rsub": (lambda x: 1 - x, (A,)), "rsub_int": (lambda x: 1 - x, (N,)), "div": (torch.div, (A, P)), "div_int": (lambda x: x / 2, (N,)),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (A * 9, P)),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (A * 9, P)),
    "div_trunc_int": (lambda x: torch.div(x, 4, rounding_mode="trunc"), (N,)), "floor_divide": (lambda x: x // 4, (N,)),
    "remainder": (lambda x: x % 4, (N,)), "remainder_float": (lambda x, y: x % y, (A, P)), "fmod": (lambda x: torch.fmod(x, 4), (N,)),
    "pow": (torch.pow, (P, A)), "pow2": (lambda x: x**2, (A,)), "pow3": (lambda x: x**3, (A,)), "pow_half": (lambda x: x**0.5, (P,)),
    "pow_neg": (lambda x: x**-1, (P,)), "pow_neg_half": (lambda x: x**-0.5, (P,)), "pow_base": (lambda x: 2**x, (A,)),
    "pow_int": (lambda x: x**3, (N,)), "pow_int_float": (lambda x: x**0.5, (N.abs(),)),
    "maximum": (torch.maximum, (A, P)), "minimum": (torch.minimum, (N, N.flip(0))), "atan2": (torch.atan2, (A, P)),
    "fmax": (torch.fmax, (A, P)), "fmin": (torch.fmin, (A, P)), "copysign": (torch.copysign, (A, P)), "hypot": (torch.hypot, (A, P)),
    "xlogy": (torch.xlogy, (P, P)), "heaviside": (torch.heaviside, (A, P)), "logaddexp": (torch.logaddexp, (A, P)),
    **{name: (getattr(torch, name), (N, N.flip(1))) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "gt_scalar": (lambda x: x > 0.5, (N,)), "eq_bool": (lambda x: x == True, (M,)), "lt_bool": (lambda x, y: x < y, (M, ~M)),  # noqa: E712
    "lt_mixed": (lambda x, y: x < y, (N, A)),
    "logical": (lambda x, y: torch.logical_and(x, y) | torch.logical_or(x, ~y) ^ torch.logical_xor(x, y), (M, M.flip(0))),
    "logical_ints": (torch.logical_and, (N, A)), "bits": (lambda x: ((x & 6) | 1) ^ 3, (N,)), "bitwise_not": (torch.bitwise_not, (N,)),
    "shift": (lambda x: (x << 2) >> 1, (N,)),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.7), (A,)), "clamp_min": (lambda x: x.clamp(min=0.1), (A,)), "clamp_int": (lambda x: x.clamp(-2, 3), (N,)),
    "clamp_max": (lambda x: x.clamp_max(0.1), (A,)), "clamp_tensor": (lambda x, y: torch.clamp(x, max=y), (A, P)),
    "clamp_int_float": (lambda x: x.clamp(-2.5, 3.5), (N,)),
    "where": (torch.where, (M, A, P)), "where_scalar": (lambda m, x: torch.where(m, x, 0.0), (M, A)), "where_mixed": (torch.where, (M, A, N)),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), (A, M)), "masked_fill_inf": (lambda x, m: x.masked_fill(m, float("-inf")), (A, M)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (A, P)), "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), (A, P)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.5), (A, P)),
    "to_int": (lambda x: (x * 5).to(torch.int32), (A,)), "to_half": (lambda x: x.half(), (A,)), "to_bool": (lambda x: x.bool(), (N,)),
    "to_double": (lambda x: x.double() + 1, (A,)), "type_as": (lambda x, n: n.type_as(x), (A, N)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), (A,)), "clone": (lambda x: x.clone().contiguous().detach() + 0, (A,)),
}  # fmt: skip


REDUCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sum": (torch.sum, (A,)), "sum_dim": (lambda x: x.sum((0, 2)), (A,)), "sum_keep": (lambda x: x.sum(-1, keepdim=True), (A,)),
    "sum_int": (torch.sum, (N.int(),)), "sum_bool": (lambda x: x.sum(1), (M,)), "sum_dtype": (lambda x: x.sum(1, dtype=torch.float64), (A,)),
    "mean": (torch.mean, (A,)), "mean_dim": (lambda x: x.mean([1, 2], keepdim=True), (A,)), "mean_of_mean": (lambda x: x.mean(0).mean(), (r(6, 6),)),
    "prod": (torch.prod, (A,)), "prod_dim": (lambda x: x.prod(1), (A,)), "amax": (lambda x: x.amax((0, 1)), (A,)), "amin": (lambda x: x.amin(-1, True), (A,)),
    "max": (torch.max, (A,)), "min": (torch.min, (N,)), "max_bool": (torch.max, (M,)), "max_uint8": (lambda x: x.amax(0), (i(0, 255, 4, 5, dtype=torch.uint8),)),
    "max_dim": (lambda x: x.max(1), (A,)), "min_dim": (lambda x: x.min(-1, keepdim=True), (A,)), "max_dim_indices": (lambda x: x.max(1)[1], (N,)),
    "argmax": (torch.argmax, (A,)), "argmax_dim": (lambda x: x.argmax(1), (A,)), "argmin_keep": (lambda x: x.argmin(-1, keepdim=True), (N,)),
    "argmax_all_keep": (lambda x: x.argmax(keepdim=True), (A,)),
    "any": (torch.any, (M,)), "any_dim": (lambda x: x.any(1), (M,)), "all": (torch.all, (N,)), "all_dim": (lambda x: x.all(-1, keepdim=True), (A,)),
    "any_dims": (lambda x: torch.any(x, (0, 1)), (M,)),
    "var": (torch.var, (A,)), "var_dim": (lambda x: x.var(1, unbiased=False), (A,)), "std": (lambda x: x.std((0, 2), keepdim=True), (A,)),
    "var_mean": (lambda x: torch.var_mean(x, -1), (A,)), "std_mean": (lambda x: torch.std_mean(x, 0, correction=0), (A,)),
    "logsumexp": (lambda x: torch.logsumexp(x * 50, 1), (A,)), "norm": (torch.norm, (A,)), "norm1": (lambda x: x.norm(1, dim=1), (A,)),
    "norm3": (lambda x: torch.linalg.vector_norm(x, 3, dim=(0, 1)), (A,)), "norm_inf": (lambda x: torch.linalg.vector_norm(x, float("inf")), (A,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (A,)), "cosine": (lambda x, y: F.cosine_similarity(x, y, dim=-1), (A, P)),
    "cumsum": (lambda x: x.cumsum(1), (A,)), "cumsum_int": (lambda x: x.cumsum(-1), (N.int(),)), "cumsum_bool": (lambda x: x.cumsum(0), (M,)),
    "topk": (lambda x: x.topk(2, 1), (A,)), "topk_smallest": (lambda x: x.topk(3, largest=False), (A,)), "sort": (lambda x: x.sort(1), (A,)),
    "sort_descending": (lambda x: x.sort(-1, descending=True), (A,)), "argsort": (lambda x: x.argsort(0), (A,)),
    "sort_stable": (lambda x: torch.sort(x, stable=True), (N,)), "sort_bool": (lambda x: torch.sort(x, stable=True), (M,)),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 1), (N,)), "scalar_sum": (lambda x: x.sum(), (torch.tensor(3.0),)),
    "softmax": (lambda x: x.softmax(1), (A,)), "log_softmax": (lambda x: F.log_softmax(x, -1), (A,)), "softmin": (lambda x: F.softmin(x, 0), (A,)),
    "softmax_dtype": (lambda x: x.softmax(-1, dtype=torch.float32), (A.half(),)), "diff": (torch.diff, (A,)),
    "median_free_quantities": (lambda x: (x - x.mean()) / (x.std() + 1e-5), (A,)),
}  # fmt: skip


VIEWS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "view": (lambda x: x.view(6, -1), (A,)), "reshape": (lambda x: x.transpose(0, 2).reshape(2, 12), (A,)), "flatten": (lambda x: x.flatten(1), (A,)),
    "unflatten": (lambda x: x.unflatten(2, (2, 2)), (A,)), "squeeze": (lambda x: x[:, :1].squeeze(), (A,)), "squeeze_dim": (lambda x: x[:, :1].squeeze(1), (A,)),
    "unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(0), (A,)), "permute": (lambda x: x.permute(2, 0, 1), (A,)), "t": (lambda x: x[0].t(), (A,)),
    "mT": (lambda x: x.mT, (A,)), "movedim": (lambda x: x.movedim(0, -1), (A,)), "movedims": (lambda x: x.movedim((0, 1), (2, 0)), (A,)),
    "swapaxes": (lambda x: x.swapaxes(0, 2), (A,)),
    "expand": (lambda x: x[:, :1].expand(5, -1, 3, 4)[:, :, 1:], (A,)), "expand_as": (lambda x, y: x.expand_as(y), (r(3, 1), A)),
    "slice": (lambda x: x[:, 1:3, ::2], (A,)), "slice_negative": (lambda x: x[..., -3:-1], (A,)), "slice_empty": (lambda x: x[:, 3:2], (A,)),
    "select": (lambda x: x[:, -1], (A,)), "select0": (lambda x: x[1], (A,)), "narrow": (lambda x: x.narrow(2, 1, 2), (A,)),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), (A, P)), "cat_mixed": (lambda x, n: torch.cat([x, n]), (A, N)), "stack": (lambda x, y: torch.stack([x, y], -1), (A, P)),
    "hstack": (lambda x, y: torch.hstack([x, y]), (A, P)), "cat_empty": (lambda x: torch.cat([x, torch.zeros(0)]), (A,)),
    "split": (lambda x: x.split(3, 2), (A,)), "split_sizes": (lambda x: x.split([1, 3], 2)[1], (A,)), "chunk": (lambda x: x.chunk(3, 2), (A,)),
    "tensor_split": (lambda x: torch.tensor_split(x, 3, 2), (A,)), "unbind": (lambda x: x.unbind(1), (A,)), "unbind_one": (lambda x: x.unbind(1)[2], (A,)),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3), (A,)), "tile": (lambda x: x.tile(2, 3), (A,)), "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (A,)),
    "repeat_interleave_flat": (lambda x: x.repeat_interleave(3), (A,)),
    "flip": (lambda x: x.flip(0, -1), (A,)), "flip_empty": (lambda x: x.flip(0, 1), (r(0, 3),)), "roll": (lambda x: x.roll((1, -2), (0, 2)), (A,)), "roll_flat": (lambda x: x.roll(5), (A,)), "rot90": (lambda x: x.rot90(1, (1, 2)), (A,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=7), (A,)), "pad_negative": (lambda x: F.pad(x, (-1, 2)), (A,)), "pad_bool": (lambda x: F.pad(x, (1, 1), value=True), (M,)),
    "pad_reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"), (A,)), "pad_replicate": (lambda x: F.pad(x, (2, 3, 1, 0), mode="replicate"), (IMAGE,)),
    "pad_circular": (lambda x: F.pad(x, (2, 3, 1, 2), mode="circular"), (IMAGE,)), "pad_reflect2d": (lambda x: F.pad(x, (2, 3, 1, 2), mode="reflect"), (IMAGE,)),
    "diagonal": (lambda x: x.diagonal(1, 1, 2), (A,)), "diagonal_negative": (lambda x: x.diagonal(-1, 2, 1), (A,)), "diag_embed": (torch.diag_embed, (A,)),
    "unfold": (lambda x: x.unfold(2, 2, 1), (A,)), "F_unfold": (lambda x: F.unfold(x, 3, padding=1), (IMAGE,)), "as_strided": (lambda x: torch.as_strided(x, (2, 3), (1, 2), 1), (A,)),
    "slice_assign": (lambda x, y: _assigned(x, (slice(None), slice(1, 2)), y[:, :1]), (A, P)), "step_assign": (lambda x: _assigned(x, (slice(None), slice(0, 3, 2)), 5.0), (A,)),
    "select_assign": (lambda x, y: _assigned(x, (1,), y[0]), (A, P)), "negative_assign": (lambda x: _assigned(x, (slice(None), -1), 0), (A,)),
    "mask_assign": (lambda x, m: _assigned(x, m, 3.0), (A, M)), "row_mask_assign": (lambda x, m: _assigned(x, m, 3.0), (A, M[:, :, 0])),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (r(2, 8, 3, 5),)), "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (r(2, 2, 4, 6),)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (IMAGE,)), "meshgrid": (lambda x: torch.meshgrid(x[0, 0], x[1, 1], indexing="ij"), (A,)),
    "triu": (lambda x: x.triu(1), (A,)), "tril": (lambda x: torch.tril(x, -1), (N,)), "tril_bool": (torch.tril, (M,)),
    "full": (lambda x: torch.full((2, 3), 7.5) + x[0, 0, 0], (A,)), "full_like": (lambda x: torch.full_like(x, 2) * x, (A,)), "zeros_like": (torch.zeros_like, (N,)),
    "ones": (lambda x: x + torch.ones(4), (A,)), "new_zeros": (lambda x: x.new_zeros(3) , (A,)), "arange": (lambda x: x + torch.arange(4), (A,)),
    "arange_float": (lambda x: x + torch.arange(0, 1, 0.25), (A,)), "linspace": (lambda x: x * torch.linspace(-1, 1, 4), (A,)), "eye": (lambda x: x @ torch.eye(4), (A,)),
    "scalar_tensor": (lambda x: x * torch.tensor(2.5), (A,)), "one_hot": (lambda x: F.one_hot(x, 5), (i(0, 5, 2, 3),)),
    "tril_indices": (lambda x: torch.tril_indices(3, 3) + x, (i(0, 5, 1),)), "fill": (lambda x: x.fill_(3), (A,)),
}  # fmt: skip


def _assigned(x: torch.Tensor, where: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[where] = value
    return x


INDEXING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (F.embedding, (i(0, 10, 2, 5), r(10, 4))), "index_select": (lambda x, n: x.index_select(1, n), (A, i(0, 3, 5))),
    "gather": (lambda x, n: x.gather(2, n), (A, i(0, 4, 2, 3, 6))), "take_along_dim": (lambda x, n: torch.take_along_dim(x, n, 1), (A, i(0, 3, 2, 1, 4))),
    "index": (lambda x, n: x[n], (A, i(-2, 2, 3))), "index_second": (lambda x, n: x[:, n], (A, i(0, 3, 2, 2))), "index_two": (lambda x, n, m: x[n, m], (A, i(0, 2, 5), i(0, 3, 5))),
    "index_middle": (lambda x, n, m: x[:, n, m], (A, i(0, 3, 5, 1), i(0, 4, 2))), "index_apart": (lambda x, n, m: x[n, :, m], (A, i(0, 2, 5), i(0, 4, 5))),
    "index_put": (lambda x, n, v: x.index_put((n,), v), (A, torch.tensor([1, 0]), r(2, 3, 4))),
    "index_put_add": (lambda x, n, v: x.index_put((n,), v, accumulate=True), (A, torch.tensor([1, 1, 0]), r(3, 3, 4))),
    "index_put_middle": (lambda x, n, v: _assigned(x, (slice(None), n), v), (A, torch.tensor([2, 0]), r(2, 2, 4))),
    "index_put_two": (lambda x, n, m, v: _assigned(x, (n, m), v), (A, torch.tensor([1, 0]), torch.tensor([2, 2]), r(2, 4))),
    "index_add": (lambda x, n, v: x.index_add(1, n, v, alpha=2), (A, torch.tensor([1, 1]), r(2, 2, 4))), "index_copy": (lambda x, n, v: x.index_copy(2, n, v), (A, torch.tensor([3, 1]), r(2, 3, 2))),
    "index_fill": (lambda x, n: x.index_fill(1, n, 3.0), (A, torch.tensor([0, 2]))),
    "scatter": (lambda x, n, v: x.scatter(1, n, v), (A, torch.tensor([[[0, 1, 2, 0]], [[2, 2, 1, 0]]]), r(2, 2, 4))), "scatter_value": (lambda x, n: x.scatter(1, n, 9.0), (A, i(0, 3, 2, 1, 4))),
    "scatter_add": (lambda x, n, v: x.scatter_add(1, n, v), (A, i(0, 3, 2, 3, 4), r(2, 3, 4))),
    "scatter_reduce": (lambda x, n, v: x.scatter_reduce(1, n, v, "amax"), (A, i(0, 3, 2, 3, 4), r(2, 3, 4))),
    "scatter_prod": (lambda x, n, v: x.scatter_reduce(1, n, v, "prod"), (A, i(0, 3, 2, 3, 4), r(2, 3, 4))),
}  # fmt: skip


LINEAR: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "matmul": (torch.matmul, (r(5, 1, 2, 3), r(4, 3, 6))), "matmul_vector": (torch.matmul, (r(2, 3), r(3))), "vector_matmul": (torch.matmul, (r(3), r(2, 3, 4))),
    "dot": (torch.dot, (r(5), r(5))), "mm": (torch.mm, (r(2, 3), r(3, 4))), "bmm": (torch.bmm, (r(2, 3, 4), r(2, 4, 5))), "mv": (torch.mv, (r(2, 3), r(3))),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (r(4), r(2, 3), r(3, 4))), "baddbmm": (torch.baddbmm, (r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))),
    "outer": (torch.outer, (r(3), r(4))), "linear": (F.linear, (A, r(5, 4), r(5))), "linear_without_bias": (F.linear, (A, r(5, 4))),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (A, P)), "einsum_outer": (lambda x, y: torch.einsum("bij,bkl->bil", x, y), (A, P)),
    "bilinear": (F.bilinear, (r(3, 4), r(3, 5), r(6, 4, 5))), "tensordot": (lambda x, y: torch.tensordot(x, y, ([1, 2], [1, 2])), (A, P)),
    "attention": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 5))),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8))),
    "attention_scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.1), (r(2, 4, 8), r(2, 6, 8), r(2, 6, 8))),
    "attention_mask": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8), r(4, 6))),
    "attention_bool": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 6, 8), r(2, 3, 6, 8), torch.tensor([[True, False, True, True, False, True]] * 3 + [[False] * 6]))),
    "attention_grouped": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (r(2, 4, 5, 8), r(2, 2, 6, 8), r(2, 2, 6, 8))),
}  # fmt: skip


NORMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "batch_norm": (F.batch_norm, (IMAGE, r(4), r(4).abs(), r(4), r(4))), "batch_norm_plain": (F.batch_norm, (LINE, r(4), r(4).abs())),
    "batch_norm_rank2": (F.batch_norm, (r(5, 4), r(4), r(4).abs())), "batch_norm_1x2x1": (F.batch_norm, (r(1, 2, 1), r(2), r(2).abs())),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (A, r(4), r(4))), "layer_norm_two": (lambda x: F.layer_norm(x, (3, 4)), (A,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, r(4), r(4))), "instance_norm": (F.instance_norm, (IMAGE,)),
    "instance_norm_affine": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (IMAGE, r(4), r(4))), "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (A, r(4))),
    "rms_norm_eps": (lambda x: F.rms_norm(x, (3, 4), eps=1e-3), (A,)), "local_response_norm": (lambda x: F.local_response_norm(x, 3), (IMAGE,)),
}  # fmt: skip


FAMILIES = {"pointwise": POINTWISE, "reduction": REDUCTIONS, "views": VIEWS, "indexing": INDEXING, "linear": LINEAR, "normalisation": NORMS}


@functools.cache
def checked(family: str) -> Checked:
    return check_table(FAMILIES[family])


@pytest.mark.parametrize("family,name", [(family, name) for family, rows in FAMILIES.items() for name in rows])
def test_operator(family: str, name: str) -> None:
    checked(family).row(name)


def test_norms_and_attention_stay_whole() -> None:
    names = operators(checked("normalisation").module)
    assert {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"} <= set(names)
    assert "softmax" in operators(checked("linear").module)
