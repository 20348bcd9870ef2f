"""Operators of the user's own: a shape rule, and a tensor expression or a C source file. See docs/custom_operators.md."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np

from aotc.errors import InvalidModel, InvalidOption
from aotc.ir.dims import Dim, DimExpr
from aotc.ir.expr import Attributes, Call, Expr
from aotc.ir.types import TensorType, TupleType, Type
from aotc.ops.base import Fusion, OpDef

FUSIONS = {kind.name.lower(): kind for kind in (Fusion.ELEMENTWISE, Fusion.BROADCAST, Fusion.INJECTIVE, Fusion.REDUCTION, Fusion.OPAQUE)}
_SCALARS = (bool, int, float, str, type(None), DimExpr)


@dataclass(frozen=True, slots=True)
class CustomAttributes(Attributes):
    """The attributes of one call, by name in alphabetical order; sequences are tuples."""

    values: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class CustomOperator:
    """An operator that a model has and aotc lacks, or that the user wants computed otherwise.

    ``name`` is that of the torch.library operator, or ONNX's domain and operator: ``"mydomain::my_op"``, ``"ai.onnx::Erf"``.
    ``shape(*inputs, **attributes)`` takes the types of the inputs and returns that of the result, or a list of several.
    Then one of the first two, or the third, or both:

    - ``expression(*inputs, **attributes)`` takes ``tvm.te`` tensors and returns one, or a list of several. ``fusion`` says what
      it may share a kernel with: ``"elementwise"`` (element i needs elements i only, whatever the rank), ``"broadcast"`` (the same
      after numpy's broadcasting), ``"injective"`` (each element comes from one element of each input), ``"reduction"``, or
      ``"opaque"`` (a kernel of its own).
    - ``source`` is a C file that includes ``aotc_operator.h`` and defines ``aotc_operator``. ``tasks(*inputs, **attributes)`` is the
      number of parts that threads may share out; without it there is one.
    - ``cuda`` is a CUDA file of the same form, for builds for a GPU: a block of ``threads`` threads computes each of the ``tasks``.

    ``reference(*arrays, **attributes)`` computes it with numpy; only the interpreter and constant folding ask for it.
    ``attributes`` are the defaults of what a node may leave out. Raises InvalidOption for what does not fit together.
    """

    name: str
    shape: Callable[..., TensorType | Sequence[TensorType]]
    expression: Callable[..., Any] | None = None
    source: str | os.PathLike[str] | None = None
    fusion: str = "opaque"
    tasks: Callable[..., Dim] | None = None
    reference: Callable[..., Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    cuda: str | os.PathLike[str] | None = None
    threads: int = 256

    def __post_init__(self) -> None:
        if "::" not in self.name:
            raise InvalidOption(f"a custom operator is named 'domain::operator', not {self.name!r}")
        if (self.expression is not None and self.source is not None) or (self.expression, self.source, self.cuda) == (None, None, None):
            raise InvalidOption(f"the custom operator {self.name} needs either an expression or a source, and not both, or cuda")
        if self.fusion not in FUSIONS:
            raise InvalidOption(f"the custom operator {self.name} has the fusion {self.fusion!r}; expected one of {', '.join(FUSIONS)}")
        if (self.source is not None or self.cuda is not None) and self.fusion != "opaque":
            raise InvalidOption(f"the custom operator {self.name} is written in C or CUDA, which does not fuse: leave fusion out")
        if self.source is None and self.cuda is None and self.tasks is not None:
            raise InvalidOption(f"the custom operator {self.name} is an expression, whose tasks the schedule finds: leave tasks out")
        for file in (self.source, self.cuda):
            if file is not None and not Path(file).is_file():
                raise InvalidOption(f"the custom operator {self.name}: there is no file {os.fspath(file)!r}")
        if not 1 <= self.threads <= 1024:
            raise InvalidOption(f"the custom operator {self.name} has {self.threads} threads; a block has 1 to 1024")

    @property
    def key(self) -> tuple[str, str]:
        """Domain and operator as the ONNX frontend has them: '' is ONNX's own domain."""
        domain, _, operator = self.name.rpartition("::")
        return ("" if domain == "ai.onnx" else domain), operator

    @cached_property
    def operator(self) -> CustomOpDef:
        """The operator as the rest of the compiler sees it."""
        return CustomOpDef(
            self.name, self._relation, self._reference, FUSIONS[self.fusion], CustomAttributes, arity=None, definition=self,
        )  # fmt: skip

    def call(self, inputs: Sequence[Expr], attributes: Mapping[str, Any], origin: str) -> Call:
        """A call with these attributes over the defaults. Raises InvalidModel where the shape rule refuses them."""
        values = {**self.attributes, **attributes}
        return self.operator(*inputs, origin=origin, values=tuple((name, self._plain(name, values[name])) for name in sorted(values)))

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, (list, tuple)):
            return tuple(self._plain(name, each) for each in value)
        if not isinstance(value, _SCALARS):
            raise InvalidModel(f"the attribute {name!r} is of {type(value).__name__}; numbers, texts and sequences of them can be")
        return value

    def _relation(self, types: Sequence[TensorType], attrs: CustomAttributes) -> Type:
        try:
            result = self.shape(*types, **dict(attrs.values))
        except Exception as error:  # the user's own function may raise anything
            raise InvalidModel(f"its shape rule failed: {type(error).__name__}: {error}") from error
        results = [result] if isinstance(result, TensorType) else result
        if not isinstance(results, (list, tuple)) or not results or not all(isinstance(each, TensorType) for each in results):
            raise InvalidModel(f"its shape rule returned {result!r}; expected an aotc.TensorType or a list of them")
        return result if isinstance(result, TensorType) else TupleType(tuple(results))

    def _reference(self, attrs: CustomAttributes, *arrays: np.ndarray) -> Any:
        if self.reference is None:
            raise InvalidModel(f"the custom operator {self.name} has no reference: give it one to interpret or to compare with numpy")
        result = self.reference(*arrays, **dict(attrs.values))
        return tuple(result) if isinstance(result, (list, tuple)) else result


@dataclass(frozen=True, slots=True)
class CustomOpDef(OpDef):
    """``definition``: what the user wrote."""

    definition: CustomOperator | None = None

    @property
    def source(self) -> Path | None:
        """The C file, for operators that have one."""
        assert self.definition is not None
        return None if self.definition.source is None else Path(self.definition.source)

    @property
    def cuda(self) -> Path | None:
        """The CUDA file, for operators that have one."""
        assert self.definition is not None
        return None if self.definition.cuda is None else Path(self.definition.cuda)


def operators_by_key(operators: Sequence[CustomOperator]) -> dict[tuple[str, str], CustomOperator]:
    """Raises InvalidOption where two have one name, or something is no CustomOperator."""
    found: dict[tuple[str, str], CustomOperator] = {}
    for each in operators:
        if not isinstance(each, CustomOperator):
            raise InvalidOption(f"operators takes aotc.CustomOperator objects, not {type(each).__name__}")
        if each.key in found:
            raise InvalidOption(f"two custom operators are named {each.name!r}")
        found[each.key] = each
    return found


def load_operators(path: str | os.PathLike[str]) -> list[CustomOperator]:
    """The CustomOperator objects in the Python file ``path``, which is run. Raises InvalidOption where there are none."""
    path = Path(path)
    if not path.is_file():
        raise InvalidOption(f"there is no file {str(path)!r} with custom operators")
    loader = SourceFileLoader(path.stem, str(path))  # whatever the file's name ends in
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except InvalidOption:
        raise
    except Exception as error:  # the user's own file may raise anything
        raise InvalidOption(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    found = [each for each in vars(module).values() if isinstance(each, CustomOperator)]
    if not found:
        raise InvalidOption(f"{path} defines no aotc.CustomOperator at its top level")
    return found
