"""ATen operators that sample, scatter, search, draw, transform, or whose size depends on data, against torch itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import aotc
from aotc.frontends.torch import import_torch
from aotc.ops.interpret import interpret
from tests.frontends.torch.check import Checked, Table, Wrapped, check_table, compare
from tests.frontends.torch.test_operators import i, r

torch.manual_seed(1)
A, N, SHORT = r(2, 3, 4), i(-9, 9, 2, 3, 4), torch.tensor([1, 1, 0])
IMAGE, GRID = r(2, 3, 5, 7), r(2, 4, 6, 2).clamp(-1.3, 1.3)
BAGS, OFFSETS = i(0, 10, 9), torch.tensor([0, 3, 3, 7])
NAN = torch.tensor([[1.0, float("nan"), 2.0, 0.5], [3.0, -1.0, 3.0, 7.0]])
Rows = dict[str, tuple[Any, tuple[Any, ...]]]


def scatter_reduce(reduce: str, include_self: bool) -> Any:
    return lambda x, n, v: x.scatter_reduce(1, n, v, reduce, include_self=include_self)


def index_reduce(reduce: str, include_self: bool) -> Any:
    return lambda x, n, v: x.index_reduce(1, n, v, reduce, include_self=include_self)


def put(x: torch.Tensor, where: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[where] = value
    return x


REDUCES = ("sum", "prod", "mean", "amax", "amin")
SCATTER: Rows = {
    **{f"scatter_{how}_{own}": (scatter_reduce(how, own), (A, i(0, 3, 2, 3, 4), r(2, 3, 4))) for how in REDUCES for own in (False, True)},
    **{f"index_{how}_{own}": (index_reduce(how, own), (A, SHORT, r(2, 3, 4))) for how in REDUCES[1:] for own in (False, True)},
    "scatter_mean_int": (scatter_reduce("mean", True), (N, i(0, 3, 2, 3, 4), i(-9, 9, 2, 3, 4))),
    "scatter_amax_int": (scatter_reduce("amax", False), (N, i(0, 3, 2, 3, 4), i(-9, 9, 2, 3, 4))),
    "take": (torch.take, (A, i(0, 24, 5))), "put": (lambda x, n, v: x.put(n, v), (A, torch.tensor([3, 20]), r(2))),
    "put_add": (lambda x, n, v: x.put(n, v, True), (A, torch.tensor([3, 3, 20]), r(3))),
    "index_put_apart": (lambda x, n, m, v: put(x, (n, slice(None), m), v), (A, torch.tensor([1, 0]), torch.tensor([2, 3]), r(2, 3))),
    "index_put_apart_add": (lambda x, n, m, v: torch.ops.aten.index_put(x, [n, None, m], v, True), (A, torch.tensor([1, 1]), torch.tensor([2, 2]), r(2, 3))),
    "mask_put_rows": (lambda x, v: put(x, torch.tensor([True, False]), v), (A, r(1, 3, 4))), "masked_scatter": (lambda x, v: x.masked_scatter(x > 0, v), (A, r(30))),
    "mask_put_values": (lambda x, v: x.index_put((torch.tensor([[True, False, True], [False, True, False]]),), v), (A, r(3, 4))),
    "embedding_bag": (F.embedding_bag, (BAGS, r(10, 4), OFFSETS)), "embedding_bag_max": (lambda n, w, o: F.embedding_bag(n, w, o, mode="max"), (BAGS, r(10, 4), OFFSETS)),
    "embedding_bag_sum": (lambda n, w, o, s: F.embedding_bag(n, w, o, mode="sum", per_sample_weights=s), (BAGS, r(10, 4), OFFSETS, r(9))),
    "embedding_bag_rows": (lambda n, w: F.embedding_bag(n, w, padding_idx=2), (i(0, 4, 3, 5), r(4, 6))),
    "embedding_renorm": (lambda w, n: torch.ops.aten.embedding_renorm(w, n, 1.5, 2.0), (r(10, 4), BAGS)),
    "embedding_bag_last": (lambda n, w, o: F.embedding_bag(n, w, o, include_last_offset=True), (BAGS, r(10, 4), torch.tensor([0, 3, 9]))),
}  # fmt: skip

SEARCH: Rows = {
    "round": (lambda x: torch.round(x * 100, decimals=2), (A,)), "round_tens": (lambda x: torch.round(x * 100, decimals=-1), (A,)),
    "gather_nothing": (lambda x: x.gather(0, torch.zeros(2, 0, dtype=torch.int64)), (r(5),)), "prod_of_one": (lambda x: x.prod(0), (torch.tensor(3.0),)),
    "cummax": (lambda x: x.cummax(1), (A,)), "cummin_int": (lambda x: x.cummin(-1), (N,)), "cummax_nan": (lambda x: x.cummax(1), (NAN,)),
    "cumprod": (lambda x: x.cumprod(0), (A,)), "logcumsumexp": (lambda x: x.logcumsumexp(2), (A,)),
    "kthvalue": (lambda x: x.kthvalue(2, 1), (A,)), "kthvalue_keep": (lambda x: x.kthvalue(1, -1, True), (N,)), "median": (torch.median, (A,)),
    "median_dim": (lambda x: x.median(2), (A,)), "median_nan": (lambda x: x.median(1), (NAN,)),
    "searchsorted": (torch.searchsorted, (r(2, 6).sort(-1)[0], r(2, 4))), "bucketize": (lambda x, t: torch.bucketize(x, t, right=True, out_int32=True), (N, i(-9, 9, 5).sort()[0])),
    "isin": (torch.isin, (N, i(-9, 9, 4))), "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=30), (A,)),
    "cdist": (torch.cdist, (r(2, 5, 3), r(2, 4, 3))), "cdist_1": (lambda x, y: torch.cdist(x, y, p=1), (r(5, 3), r(4, 3))),
    "cdist_3": (lambda x, y: torch.cdist(x, y, p=3), (r(5, 3), r(4, 3))), "pdist": (F.pdist, (r(5, 3),)), "topk_all": (lambda x: x.topk(4), (A,)),
    "batch_norm_own": (lambda x, w, v: F.batch_norm(x, None, None, w, v, True), (IMAGE, r(3), r(3))),
}  # fmt: skip

SAMPLING: Rows = {
    **{
        f"grid_{mode}_{outside}_{align}": (
            functools.partial(F.grid_sample, mode=mode, padding_mode=outside, align_corners=align), (IMAGE, GRID),
        )
        for mode in ("bilinear", "nearest", "bicubic") for outside in ("zeros", "border", "reflection") for align in (False, True)
    },
    "grid_3d": (lambda x, g: F.grid_sample(x, g, align_corners=False), (r(1, 2, 3, 4, 5), r(1, 2, 3, 2, 3).clamp(-1, 1))),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=False), (r(2, 2, 3),)),
    "determinant": (torch.linalg.det, (r(3, 4, 4),)),
    "max_unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (r(2, 3, 6, 8),)),
    "fold": (lambda x: F.fold(x, (6, 7), 3, padding=1, stride=2), (r(2, 18, 12),)), "fold_unbatched": (lambda x: F.fold(x, (4, 4), 2, stride=2), (r(8, 4),)),
}  # fmt: skip


def rotary(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(2, 5, 3, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(2)


real = torch.view_as_real
COMPLEX: Rows = {
    "rotary": (rotary, (r(2, 5, 6), r(5, 3))), "rfft": (lambda x: real(torch.fft.rfft(x)), (r(3, 16),)),
    "rfft_ortho": (lambda x: torch.fft.rfft(x, norm="ortho", dim=0).abs(), (r(12, 3),)), "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=15), (r(3, 15),)),
    "fft2": (lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real, (r(3, 8, 6),)), "fftn": (lambda x: real(torch.fft.fftn(x)), (r(4, 8, 6),)),
    "rfft2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x, norm="forward"), norm="forward"), (r(3, 8, 6),)),
    "stft": (lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(), (r(2, 64),)),
    "divide": (lambda x, y: (torch.complex(x, y) / torch.complex(y, x + 3)).angle(), (r(5), r(5))),
    "arithmetic": (lambda x, y: real((torch.complex(x, y).conj() + x) * 2 - y), (r(5), r(5))),
}  # fmt: skip

FAMILIES = {"scatter": SCATTER, "search": SEARCH, "sampling": SAMPLING, "complex": COMPLEX}


@functools.cache
def checked(family: str) -> Checked:
    return check_table(FAMILIES[family])


@pytest.mark.parametrize("family,name", [(family, name) for family, rows in FAMILIES.items() for name in rows])
def test_operator(family: str, name: str) -> None:
    checked(family).row(name, 3e-5 if "bicubic" in name else 1e-5)


def first_rows(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    size = count.item()
    torch._check(size >= 0)
    torch._check(size <= x.shape[0])
    return x[:size] * 2


X, TIMES = r(5, 4), torch.tensor([0, 2, 1, 3, 0])
SIZED: Rows = {
    "nonzero": (lambda x: (x > 0).nonzero(), (X,)), "mask": (lambda x, m: x[m] + 1, (X, X > 0.3)), "row_mask": (lambda x: x[x[:, 0] > 0], (X,)),
    "masked_select": (lambda x, m: torch.masked_select(x, m).sum(), (X, X[:, :1] > 0)), "item": (first_rows, (X, torch.tensor(3))),
    "float_item": (lambda x: x * x[0, 0].item(), (X,)), "where": (lambda x: torch.where(x > 0)[1], (X,)),
    "unique": (lambda n: torch.unique(n, return_inverse=True, return_counts=True), (i(0, 5, 12),)),
    "unique_consecutive": (lambda n: torch.unique_consecutive(n, return_inverse=True, return_counts=True), (i(0, 2, 12),)),
    "bincount": (lambda n: torch.bincount(n, minlength=3), (i(0, 5, 9),)), "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0), (X, TIMES)),
}  # fmt: skip


Outcome = dict[str, list[tuple[list[np.ndarray], list[Any]]]]


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What one built file with all rows gives for three sets of values, beside torch, by row."""
    path = tmp_path_factory.mktemp("sized") / "model.so"
    table = Table(SIZED)
    aotc.compile(table, "host", path, args=tuple(arg for _, own in SIZED.values() for arg in own), jobs=0)
    model = aotc.load(path)
    found: Outcome = {name: [] for name in SIZED}
    for change in (lambda x: x, lambda x: x[torch.randperm(len(x))] if x.ndim else x, torch.zeros_like):
        args = tuple(change(arg) for _, own in SIZED.values() for arg in own)
        results = iter(model.run({each.name: arg.numpy() for each, arg in zip(model.inputs, args, strict=True)}).values())
        for name, value in table(*args).items():
            leaves = torch.utils._pytree.tree_leaves(value)
            found[name].append(([next(results).copy() for _ in leaves], leaves))
    return found


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_depend_on_values(name: str, sized: Outcome) -> None:
    for got, want in sized[name]:
        compare(got, want, 1e-6)


def test_bounds_of_sizes_are_checked(tmp_path: Path) -> None:
    aotc.compile(Wrapped(first_rows), "host", tmp_path / "model.so", args=(X, torch.tensor(3)), jobs=0)
    model = aotc.load(tmp_path / "model.so")
    for count in (-1, 6):
        with pytest.raises(Exception, match=r"item|u0"):
            model.run({each.name: value for each, value in zip(model.inputs, (X.numpy(), np.asarray(count)), strict=True)})


@pytest.mark.parametrize(
    "function", [lambda x: (x.bfloat16() * 2 + 1).softmax(-1), lambda x: x.bfloat16() @ x.bfloat16().T], ids=["softmax", "matmul"]
)
def test_bfloat16(function: Any) -> None:
    imported = import_torch(Wrapped(lambda x: function(x).float()), (X,))
    compare(interpret(imported.main, [X.numpy()]), [function(X).float()], 2**-7)


def test_bfloat16_weights() -> None:
    layer = torch.nn.Linear(4, 3).bfloat16()
    imported = import_torch(layer, (X.bfloat16(),))
    got = interpret(imported.main, [X.bfloat16().view(torch.int16).numpy().view("bfloat16")])
    compare([got[0].astype("float32")], [layer(X.bfloat16()).float().detach()], 2**-7)


def test_random_numbers_have_their_distribution_and_repeat() -> None:
    def draw(x: torch.Tensor) -> Any:
        return (
            torch.rand(4000),
            torch.randn(4000) + x,
            torch.randint(3, 9, (4000,)),
            torch.randperm(50),
            torch.bernoulli(torch.full((4000,), 0.3)),
        )

    imported = import_torch(Wrapped(draw), (torch.zeros(1),))
    uniform, normal, whole, order, coins = interpret(imported.main, [np.zeros(1, "float32")])
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
    assert set(whole) == set(range(3, 9)) and sorted(order) == list(range(50)) and abs(coins.mean() - 0.3) < 0.05
    again = interpret(imported.main, [np.zeros(1, "float32")])
    assert (again[0] == uniform).all()
