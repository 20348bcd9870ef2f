"""What import_torch takes and refuses: kinds of models, names, dims, mutations, missing operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from aotc.errors import InvalidModel, InvalidOption, UnsupportedModel
from aotc.frontends.torch import import_torch
from aotc.ir.dims import symbol
from aotc.ops.interpret import interpret
from tests.frontends.torch.check import Wrapped, check, compare, operators

torch.manual_seed(0)
X = torch.randn(2, 3)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, image: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return self.linear(image) * factor


def test_exported_program_and_file(tmp_path: Path) -> None:
    module = Scale().eval()
    program = torch.export.export(module, (X,), dynamic_shapes={"image": {0: Dim("batch")}}, strict=False)
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    for source in (program, path, str(path)):
        imported = import_torch(source)
        for x in (X, torch.randn(5, 3)):
            compare(interpret(imported.main, [x.numpy()]), [module(x).detach()], 1e-6)
        assert imported.main.params[0].name == "image"


def test_training_mode_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    module[0].eval()
    imported = import_torch(module, (X,))
    assert [each.training for each in module] == [False, True, True] and module.training
    assert "batch_norm" in operators(imported)


def test_fixed_arguments_keywords_and_names() -> None:
    imported = import_torch(Scale(), (X,), kwargs={"factor": 3.0}, input_names=["pixels"], output_names=["scores"])
    assert [param.name for param in imported.main.params] == ["pixels"] and imported.output_names["main"] == ("scores",)
    with pytest.raises(InvalidOption, match="output_names has 2 names for 1 outputs: output"):
        import_torch(Scale(), (X,), output_names=["a", "b"])


def test_output_names() -> None:
    def names(function: Any) -> tuple[str, ...]:
        return import_torch(Wrapped(function), (X,)).output_names["main"]

    assert names(lambda x: x + 1) == ("output",)
    assert names(lambda x: (x + 1, [x + 2, x + 3])) == ("output_0", "output_1_0", "output_1_1")
    assert names(lambda x: {"scores": x + 1, "boxes": (x + 2, x + 3)}) == ("scores", "boxes_0", "boxes_1")
    assert names(lambda x: (x + 1, None)) == ("output_0",)


def test_outputs_that_are_inputs_weights_or_sizes() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> Any:
            return x, self.weight, x.shape[0], 7, x.view(-1)[1:]

    imported = import_torch(Odd(), (X,), {"x": {0: Dim("n")}})
    got = interpret(imported.main, [np.ones((4, 3), "float32")])
    assert [each.shape for each in got] == [(4, 3), (2,), (), (), (11,)] and int(got[2]) == 4 and int(got[3]) == 7


def test_inputs_fix_and_rename_dims() -> None:
    dynamic = {"image": {0: Dim("batch", max=8)}}
    assert str(import_torch(Scale(), (X,), dynamic).main.params[0].type) == "float32[batch, 3]"
    assert str(import_torch(Scale(), (X,), dynamic, inputs={"image": (5, None)}).main.body.type) == "float32[5, 4]"
    assert str(import_torch(Scale(), (X,), dynamic, inputs={"image": ("n", 3)}).main.body.type) == "float32[n, 4]"
    assert import_torch(Scale(), (X,), dynamic, inputs={"image": (symbol("n", 2, 4), 3)}).symbols["n"].upper == 4
    for entries, message in (
        ((9, 3), "out of the range from 1 to 8"),
        ((1, 4), "axis 1 of input 'image' is 3 in the model and cannot be 4"),
        ((1,), "one entry for each of its 2 axes"),
    ):
        with pytest.raises(InvalidOption, match=message):
            import_torch(Scale(), (X,), dynamic, inputs={"image": entries})
    with pytest.raises(InvalidOption, match="no input 'x'; its inputs are 'image'"):
        import_torch(Scale(), (X,), dynamic, inputs={"x": (1, 3)})


def test_dims_that_depend_on_each_other() -> None:
    half = Dim("half", min=1, max=100)
    imported = check(
        Wrapped(lambda x, y: x[:, ::2] + y),
        (torch.randn(2, 8), torch.randn(2, 4)),
        [{1: 2 * half}, {1: half}],
        [(torch.randn(2, 2), torch.randn(2, 1))],
    )
    assert [str(param.type) for param in imported.main.params] == ["float32[2, 2*half]", "float32[2, half]"]


def test_arithmetic_of_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        n, m = x.shape
        padded = nn.functional.pad(x, (0, -m % 4))
        windows = padded.view(n, (m + 3) // 4, 4).mean(-1)
        return windows * n, x[:, m // 2 :], x[: min(n, 3)], torch.arange(0, m, 2), x.sum() / (n * m), x[:, -1], x[:, -2:]

    shapes = [{0: Dim("n", min=1, max=50), 1: Dim("m", min=4, max=60)}]
    others = [(torch.randn(1, 4),), (torch.randn(2, 7),), (torch.randn(9, 30),)]
    check(Wrapped(function), (torch.randn(5, 12),), shapes, others)


def test_dims_without_a_range_take_one() -> None:
    """As torch runs what it exported so, though it says that they are 2 or more."""
    shapes = [{0: Dim.DYNAMIC, 1: Dim.AUTO}]
    imported = check(Wrapped(lambda x: (x.softmax(0), x.sum(1) + x.shape[0])), (torch.randn(5, 3),), shapes, [(torch.randn(1, 1),)])
    assert [symbol.lower for symbol in imported.symbols.values()] == [1, 1]
    imported = check(Wrapped(lambda x: x[2:4].sum(0)), (torch.randn(8, 3),), [{0: Dim("n", min=4)}], [(torch.randn(4, 3),)])
    assert imported.symbols["n"].lower == 4


def test_windows_of_an_axis_of_any_length() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.unfold(1, 4, 3), torch.stft(x, 8, 2, window=torch.hann_window(8), return_complex=True).abs()

    check(Wrapped(function), (torch.randn(2, 40),), [{1: Dim("n", min=8, max=99)}], [(torch.randn(2, 8),), (torch.randn(2, 33),)])


def test_slices_at_a_number_that_a_tensor_holds() -> None:
    """torch makes a symbol of its own for the size of each slice; a negative number counts from the end."""

    def function(x: torch.Tensor, count: torch.Tensor) -> Any:
        number = count.item()
        return x[:number], x[number:].sum(0), x[number : number + 2]

    others = [(torch.randn(6, 2), torch.tensor(number)) for number in (0, 6, -2, -9, 9)]
    check(Wrapped(function), (torch.randn(6, 2), torch.tensor(3)), None, others)


def test_in_place_and_aliasing() -> None:
    """Cases 20 and 21, and writes through views."""

    def row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (w + 1)[x]

    check(row, (torch.tensor([2]), torch.randn(4, 3).half()))

    def aliases(x: torch.Tensor) -> torch.Tensor:
        a = x + 0.25
        b = torch.ops.aten.alias(a)
        c = x + 0.125
        return b + c

    check(aliases, (X,))

    def writes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.zeros(4, 3)
        y[1:3].add_(x).mul_(2)
        y.view(-1)[0] = 5
        view = y.t()
        view[1] += 1
        return y, view.sigmoid_()

    check(writes, (X,))

    def writes_to_its_argument(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).relu_() * 2

    imported = import_torch(Wrapped(writes_to_its_argument), (X.clone(),))
    given = X.numpy().copy()
    compare(interpret(imported.main, [given]), [(X + 1).relu() * 2], 1e-6)
    assert (given == X.numpy()).all()


class Counter(nn.Module):
    def __init__(self, read: bool) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls if self.read else x * 2


def test_buffers_that_change() -> None:
    """A buffer that the results depend on is a state; one that they do not is left alone."""
    counting = import_torch(Counter(True), (X,))
    assert [param.name for param in counting.main.params] == ["x", "calls"] and list(counting.states) == ["calls"]
    compare(interpret(counting.main, [X.numpy(), np.float32([2])]), [X * 3, torch.tensor([3.0])], 1e-6)
    imported = import_torch(Counter(False), (X,))
    assert not imported.states
    compare(interpret(imported.main, [X.numpy()]), [X * 2], 1e-6)


def test_everything_missing_is_listed_at_once() -> None:
    class Lacking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x) + torch.linalg.inv(x + 1) + torch.lgamma(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Lacking(), nn.Sequential(nn.ReLU(), Lacking())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    with pytest.raises(UnsupportedModel) as error:
        import_torch(Outer(), (torch.rand(3, 3),))
    text = str(error.value)
    assert "linalg_inv_ex.default: 4 times, at first." in text and "second.1." in text
    assert "lgamma.default: 2 times" in text and "docs/custom_operators.md" in text and "add a recipe" in text


def test_uses_that_are_missing_are_listed_at_once() -> None:
    class Lacking(nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
            dropped = nn.functional.dropout(x, 0.5, training=True)
            return dropped, torch.view_as_real(z * z.conj()), torch.complex(x, x).exp().abs()

    with pytest.raises(UnsupportedModel) as error:
        import_torch(Lacking(), (torch.randn(8, 3), torch.randn(2, dtype=torch.complex64)))
    text = str(error.value)
    assert "training mode" in text and "complex inputs: take a real tensor" in text and "on complex numbers" in text


@pytest.mark.parametrize(
    "model,args,error,message",
    [
        ("missing.pt2", None, InvalidModel, "there is no such file"),
        (b"bytes", None, InvalidOption, "not bytes"),
        (Scale(), None, InvalidOption, "needs example arguments"),
        (Wrapped(lambda x: x if x.sum() > 0 else -x), (X,), UnsupportedModel, "torch.export cannot export Wrapped"),
        (Wrapped(torch.fft.fft), (X,), UnsupportedModel, "is complex: return torch.view_as_real"),
    ],
)
def test_refusals(model: Any, args: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        import_torch(model, args)


def test_damaged_files(tmp_path: Path) -> None:
    for content in (b"", b"not a zip file", b"PK\x03\x04" + bytes(100)):
        path = tmp_path / "model.pt2"
        path.write_bytes(content)
        with pytest.raises(InvalidModel, match=r"is no \.pt2 file"):
            import_torch(path)


def test_zero_sized_dims() -> None:
    """Case 35."""

    def function(x: torch.Tensor) -> Any:
        return (
            x.reshape(0, 8),
            x.flatten(1),
            torch.cat([x, torch.ones(2, 3, 4)], 1),
            x.sum(1),
            x.mean((0, 1)),
            x.transpose(1, 2) @ x,
            x.amax(0),
        )

    check(function, (torch.zeros(2, 0, 4),))


def test_half_precision_masks_and_large_constants() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x.masked_fill(mask, torch.finfo(x.dtype).min)
        return scores.softmax(-1)

    mask = torch.tensor([[True, False, False], [True, True, True]])
    check(function, (torch.randn(2, 3).half(), mask), rtol=2e-3)


def test_integer_and_boolean_outputs() -> None:
    """Case 25."""

    def function(x: torch.Tensor) -> Any:
        return x.to(torch.uint8).amax(1), x.argmax(-1), (x > 1).any(0), x.long().max(), x.bool(), x.sum().long()

    check(function, (torch.rand(3, 4) * 9,))
