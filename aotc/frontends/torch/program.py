"""From what users have to an exported program in which every operator is one that we have a recipe for, if there is one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from aotc.errors import InvalidModel, InvalidOption, UnsupportedModel
from aotc.frontends.torch import complexes
from aotc.frontends.torch.builder import Recipe
from aotc.frontends.torch.control import is_control
from aotc.frontends.torch.functional import functional_form, needs_no_decomposition, with_identities_marked
from aotc.frontends.torch.recurrent import WholeLayers
from aotc.frontends.torch.table import RECIPES

CHECKS = {"_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_async"}

Model = Any
"""A torch.nn.Module, an ExportedProgram or the path of a .pt2 file."""


def exported_program(model: Model, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> ExportedProgram:
    """``model`` as an exported program. A module is exported as it is in eval mode, and comes back as it was.

    Raises InvalidOption for arguments that do not belong to ``model``, InvalidModel where the file cannot be read, and
    UnsupportedModel where torch cannot export the module.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.export.ExportedProgram):
        return _export(model, args, kwargs, dynamic_shapes)
    if args is not None or kwargs is not None or dynamic_shapes is not None:
        raise InvalidOption("example arguments and dynamic_shapes belong to a module; an exported program has its own")
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, (str, os.PathLike)):
        return _load(Path(model))
    raise InvalidOption(f"expected a torch.nn.Module, an ExportedProgram or the path of a .pt2 file, not {type(model).__name__}")


def decomposed(program: ExportedProgram, recipes: dict[Any, Recipe] = RECIPES) -> ExportedProgram:
    """``program`` with torch's decompositions of all that we have no recipe for, and with no in-place operators but
    those that ``functional`` can read; the same program where it is so already."""
    if needs_no_decomposition(program, recipes, lambda node: is_known(node, recipes)):
        return program
    table = torch.export.default_decompositions()
    for operator in (*recipes, *complexes.RECIPES):
        table.pop(operator, None)
    with _quiet():
        try:
            return with_identities_marked(program).run_decompositions(table)
        except Exception as error:  # of many kinds, from deep inside torch
            raise UnsupportedModel(f"torch cannot decompose the model's operators into simpler ones: {_brief(error)}") from error


def is_known(node: torch.fx.Node, recipes: dict[Any, Recipe] = RECIPES) -> bool:
    """Whether we have a recipe for a node, or it needs none: sizes, picking one of several results, checks."""
    if (
        is_control(node.target)
        or node.target in recipes
        or node.target in complexes.RECIPES
        or functional_form(node.target) in recipes
        or "getitem" in str(node.target)
        or is_check(node)
    ):
        return True
    return isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymBool, torch.SymFloat))


def is_check(node: torch.fx.Node) -> bool:
    """Whether a node only checks what torch assumed, and computes nothing."""
    return getattr(node.target, "_opname", "") in CHECKS


def _export(module: torch.nn.Module, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> ExportedProgram:
    if args is None and not kwargs:
        raise InvalidOption("a module needs example arguments, as in args=(torch.randn(1, 3, 224, 224),)")
    positional = tuple(args or ()) if args is None or isinstance(args, (tuple, list)) else (args,)
    positional, kwargs = _distinct((positional, dict(kwargs or {})))
    with _eval_mode(module), torch.no_grad(), _quiet(), WholeLayers():
        try:
            return torch.export.export(
                module,
                positional,
                kwargs,
                dynamic_shapes=dynamic_shapes,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except Exception as error:  # torch raises errors of some ten kinds here, all of them about the module
            raise UnsupportedModel(f"torch.export cannot export {type(module).__name__}: {_brief(error)}") from error


def _distinct(examples: Any) -> Any:
    """``examples`` with a copy of each tensor that occurs twice: torch.export would take two such inputs for one."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.clone()

    return pytree.tree_map(own, examples)


@contextmanager
def _quiet() -> Any:
    """Without torch's warnings about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export")  # of torch's recurrent layers
        yield


@contextmanager
def _eval_mode(module: torch.nn.Module) -> Any:
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True


def _load(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise InvalidModel(f"{path}: there is no such file")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise InvalidModel(f"{path} is no .pt2 file that torch {torch.__version__} can read: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:8])}"
