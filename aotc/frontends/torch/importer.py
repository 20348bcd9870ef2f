"""Imports PyTorch programs: ``import_torch`` turns what torch.export captured into a Module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from aotc import ops
from aotc.errors import InvalidModel, InvalidOption, UnsupportedModel
from aotc.frontends.torch.builder import (
    Builder,
    Recipe,
    array_of_tensor,
    dtype_name,
    dtype_of,
    is_narrow,
    shape_of,
    wide,
    widened,
)  # fmt: skip
from aotc.frontends.torch.complexes import Complex, complex_recipe, holds_complex, is_complex, of_parts
from aotc.frontends.torch.control import import_control, is_control
from aotc.frontends.torch.custom import custom_recipes
from aotc.frontends.torch.dynamic import scalar_value, size_value
from aotc.frontends.torch.functional import functional_form
from aotc.frontends.torch.program import Model, decomposed, exported_program, is_check, is_known
from aotc.frontends.torch.quantised import quantised_recipes
from aotc.frontends.torch.signature import kept_buffers, module_path, node_origins, output_names, symbol_names
from aotc.frontends.torch.symbols import SymbolTable
from aotc.frontends.torch.table import RECIPES
from aotc.ir.dims import Dim
from aotc.ir.expr import Constant, Expr, Function, Module, Parameter, Tuple, Var
from aotc.ir.types import TensorType
from aotc.ir.visitor import substitute
from aotc.ops.bind import bind_inputs
from aotc.ops.custom import CustomOperator

ITEMS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default}
"""Operators that take a number out of a tensor."""


def import_torch(
    model: Model,
    args: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    inputs: Mapping[str, Sequence[Dim | str | None]] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Module:
    """A Module from a ``torch.nn.Module`` with example arguments, an ``ExportedProgram``, or the path of a .pt2 file.

    ``args``, ``kwargs`` and ``dynamic_shapes`` are those of ``torch.export.export``. A module is exported in eval mode
    and keeps its own mode. ``inputs`` fixes or renames dynamic dims afterwards, by input name (see ``bind_inputs``);
    a dynamic dim is at least 1 otherwise. Inputs are named as the parameters of ``forward``, outputs as in ``output_names``, by default
    ``output``, ``output_0`` .. or the keys of the dict that comes back. Weights are not copied: they share memory with
    the module's tensors where those are on the CPU and contiguous.

    ``operators`` are the user's own, and come before aotc's.

    Raises UnsupportedModel, which lists all that is missing at once, InvalidModel and InvalidOption.
    """
    program = exported_program(model, args, kwargs, dynamic_shapes)
    recipes = {**RECIPES, **quantised_recipes(program), **custom_recipes(program, operators)}
    module = import_program(decomposed(program, recipes), dynamic_shapes, input_names, output_names, recipes)
    return bind_inputs(module, inputs) if inputs else module


def import_program(
    program: ExportedProgram,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    recipes: dict[Any, Recipe] = RECIPES,
) -> Module:
    """A Module from a program that ``decomposed`` has prepared."""
    importer = _Importer(program, SymbolTable(program.range_constraints, symbol_names(program, dynamic_shapes)), recipes)
    importer.refuse_missing_operators()
    importer.inputs()
    importer.nodes(program.graph)
    results, labels = importer.results()
    if importer.problems:
        raise UnsupportedModel(_listed("the model uses operators in ways that aotc lacks", importer.problems))
    if names is not None:
        if len(names) != len(results):
            raise InvalidOption(f"output_names has {len(names)} names for {len(results)} outputs: {', '.join(labels)}")
        labels = list(names)
    params = _renamed(importer.params, input_names)
    states = {name: _initial(program, name) for name in importer.kept}
    taken = sorted({*labels, *(param.name for param in params)} & set(states))
    if taken:
        raise InvalidOption(f"the buffers {', '.join(taken)}, which the model changes, have names of inputs or outputs: rename one of them")
    results += importer.states_after()
    body = results[0] if len(results) == 1 else Tuple(tuple(results))
    if input_names is not None:
        body = substitute(body, dict(zip(importer.params, params, strict=True)))
    main = Function((*params, *importer.state_params), body, "main")
    return Module({"main": main}, {"main": (*labels, *states)}, {}, states)


def _initial(program: ExportedProgram, name: str) -> Constant:
    source = program.state_dict if name in program.state_dict else program.constants
    return Constant(array_of_tensor(source[name].detach()).copy(), name)


def _renamed(params: list[Var], names: Sequence[str] | None) -> list[Var]:
    if names is None:
        return params
    if len(names) != len(params):
        raise InvalidOption(f"input_names has {len(names)} names for {len(params)} inputs: {', '.join(p.name for p in params)}")
    return [Var(name, param.type) for name, param in zip(names, params, strict=True)]


def _listed(headline: str, problems: Mapping[str, list[str]]) -> str:
    lines = [f"{headline}:"]
    for problem, places in sorted(problems.items()):
        shown = ", ".join(dict.fromkeys(places[:6])) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        lines.append(f"  {problem}: {len(places)} time{'s' if len(places) > 1 else ''}, at {shown}")
    lines.append(
        "Replace them in the module by operators that exist, define whole ones as custom operators (docs/custom_operators.md), "
        "or add a recipe to aotc/frontends/torch (see CONTRIBUTING)."
    )
    return "\n".join(lines)


class _Importer:
    """The state of one import: the expression of each node so far, and what could not be imported."""

    def __init__(self, program: ExportedProgram, symbols: SymbolTable, recipes: dict[Any, Recipe]) -> None:
        self.program = program
        self.recipes = recipes
        self.symbols = symbols
        self.params: list[Var] = []
        self.problems: dict[str, list[str]] = defaultdict(list)
        self._values: dict[torch.fx.Node, Any] = {}
        self._origins = node_origins(program)
        self._live = _live_nodes(program.graph)
        self._shared: dict[Any, Parameter | Constant] = {}
        self.kept = kept_buffers(program)
        self.state_params: list[Var] = []
        self._definers: list[list[Expr]] = [[]]

    def refuse_missing_operators(self) -> None:
        missing: dict[str, list[str]] = defaultdict(list)
        for node in _all_nodes(self.program.graph):
            if (node in self._live or node.graph is not self.program.graph) and not is_known(node, self.recipes):
                missing[str(node.target)].append(self._origins.get(node.name) or module_path(node) or node.name)
        if missing:
            raise UnsupportedModel(_listed("the model uses operators that aotc lacks", missing))

    # Inputs -------------------------------------------------------------------------------------------------------

    def inputs(self) -> None:
        """User inputs become variables, parameters and buffers named weights, tensors met in the code constants."""
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                try:
                    self._values[node] = self._user_input(node, spec) if spec.kind is InputKind.USER_INPUT else self._weight(node, spec)
                except UnsupportedModel as error:
                    self.problems[str(error)].append(node.name)
                    self._values[node] = self._stand_in(node.meta.get("val"))

    def _user_input(self, node: torch.fx.Node, spec: Any) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                raise UnsupportedModel("complex inputs: take a real tensor [.., 2] and begin with torch.view_as_complex of it")
            var = Var(node.name, TensorType(self.symbols.shape(value.shape), dtype_name(value.dtype)), node.name)
            self.params.append(var)
            return var
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise UnsupportedModel(f"inputs of type {type(value).__name__}: pass tensors, or fix the value when exporting")

    def _weight(self, node: torch.fx.Node, spec: Any) -> Parameter | Constant | Var | Complex | None:
        if not node.users:
            return None
        name = str(spec.target)
        if name in self.kept:
            meta = node.meta["val"]
            self.state_params.append(Var(name, TensorType(self.symbols.shape(meta.shape), dtype_name(meta.dtype)), name))
            return self.state_params[-1]
        constant = spec.kind is InputKind.CONSTANT_TENSOR
        source = self.program.constants if constant or spec.persistent is False else self.program.state_dict
        if name not in source or not isinstance(source[name], torch.Tensor):
            raise UnsupportedModel(f"objects of type {type(source.get(name)).__name__} as parts of a model")
        value = source[name].detach()
        if value.is_complex():
            pair = torch.view_as_real(value.resolve_conj())
            return Complex(*(self._shared_weight(f"{name}.{part}", pair[..., i], constant) for i, part in enumerate(("real", "imag"))))
        return self._shared_weight(name, value, constant)

    def _shared_weight(self, name: str, value: torch.Tensor, constant: bool) -> Parameter | Constant:
        key = (value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride())) if value.numel() else name
        if key not in self._shared:
            dtype_name(value.dtype)
            array = array_of_tensor(value)
            self._shared[key] = Constant(array, name) if constant else Parameter(name, array, name)
        return self._shared[key]

    # Nodes --------------------------------------------------------------------------------------------------------

    def nodes(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node in self._live:
                try:
                    self._values[node] = self._node(node)
                except UnsupportedModel as error:
                    self.problems[str(error)].append(self._origins.get(node.name, node.name))
                    self._values[node] = self._stand_in(node.meta.get("val"))

    def _node(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if node.target in ITEMS:
            return self._item(node, value)
        if isinstance(value, (bool, int, torch.SymInt)):
            return value if isinstance(value, bool) else self.symbols.dim(value)
        if isinstance(value, (torch.SymBool, torch.SymFloat)):
            return None  # conditions are what torch has decided; floats are refused where they are used
        if "getitem" in str(node.target):
            return self._values[node.args[0]][node.args[1]]
        if is_control(node.target):
            return import_control(self, node, self._origin(node))
        builder = self._builder(node)
        functional = functional_form(node.target)
        args = [self._argument(arg, node) for arg in node.args]
        kwargs = {key: self._argument(arg, node) for key, arg in node.kwargs.items()}
        recipe, builder, args, kwargs = self._suited(functional or node.target, builder, args, kwargs)
        try:
            result = recipe(builder, *args, **kwargs)
        except InvalidModel as error:
            raise InvalidModel(f"{node.target} at {builder.origin!r}: {error}") from error
        settled = self._settled(builder, result, value, node)
        if functional is not None:
            self._values[node.args[0]] = settled  # from here on the written tensor is this
        return settled

    def _suited(self, operator: Any, b: Builder, args: list[Any], kwargs: dict[str, Any]) -> tuple[Recipe, Builder, Any, Any]:
        """The recipe of an operator and what to call it with: complex numbers are pairs, bfloat16 is computed in float32."""
        if is_complex(b.meta) or holds_complex([*args, *kwargs.values()]):
            recipe = complex_recipe(operator, self.recipes)
            if recipe is None:
                raise UnsupportedModel(f"{operator} on complex numbers: write it with view_as_real")
            return recipe, b, args, kwargs
        if operator not in self.recipes:
            raise UnsupportedModel(f"{operator} on real numbers")
        if is_narrow(b.meta) or any(is_narrow(each) for each in (*args, *kwargs.values())):
            return self.recipes[operator], widened(b), [wide(b, arg) for arg in args], {key: wide(b, arg) for key, arg in kwargs.items()}
        return self.recipes[operator], b, args, kwargs

    def _builder(self, node: torch.fx.Node) -> Builder:
        unbacked = list(node.meta.get("unbacked_bindings") or {})
        return Builder(self.symbols, self._origin(node), node.meta.get("val"), self._used_outputs(node), unbacked, self._definers[-1])

    def _item(self, node: torch.fx.Node, value: Any) -> Any:
        """A number out of a tensor: an integer is a dim, anything else stays a scalar tensor."""
        x = self._values[node.args[0]]
        return (size_value if isinstance(value, torch.SymInt) else scalar_value)(self._builder(node), x)

    def value(self, node: Any) -> Any:
        """What an argument stands for: a node's value, or the argument itself."""
        return self._values[node] if isinstance(node, torch.fx.Node) else node

    def subgraph(self, node: torch.fx.Node, values: Sequence[Any]) -> list[Expr]:
        """The results of the graph that ``node`` names, over ``values`` for its inputs."""
        graph = _graph_of(node)
        self._live |= _live_nodes(graph)
        self._values.update(zip((each for each in graph.nodes if each.op == "placeholder"), values, strict=True))
        self._definers.append([])
        self.nodes(graph)
        results = next(each for each in graph.nodes if each.op == "output").args[0]
        return self._anchored([self.value(each) for each in (results if isinstance(results, (list, tuple)) else [results])])

    def _anchored(self, results: list[Any]) -> list[Any]:
        """The results of a function that ends here; its first keeps alive what defines dims in it."""
        definers = self._definers.pop()
        return [ops.anchor(results[0], *definers), *results[1:]] if definers else results

    def _origin(self, node: torch.fx.Node) -> str:
        return self._origins.get(node.name) or module_path(node) or node.name

    def _used_outputs(self, node: torch.fx.Node) -> frozenset[int]:
        return frozenset(user.args[1] for user in node.users if user in self._live and "getitem" in str(user.target))

    def _argument(self, arg: Any, node: torch.fx.Node) -> Any:
        if isinstance(arg, torch.fx.Node):
            value = self._values[arg]
            if value is None and isinstance(arg.meta.get("val"), torch.SymFloat):
                raise UnsupportedModel(f"floats computed from sizes, as {arg.meta['val']}")
            return value
        if isinstance(arg, (list, tuple)):
            return [self._argument(each, node) for each in arg]
        if isinstance(arg, complex):
            raise UnsupportedModel("complex numbers")
        return arg

    def _settled(self, b: Builder, result: Any, meta: Any, node: torch.fx.Node) -> Any:
        """``result`` in the shape that torch found, which may be simpler than ours by what torch proved about sizes."""
        if isinstance(meta, (tuple, list)):
            parts = list(result) + [None] * (len(meta) - len(result))
            return [None if part is None else self._settled(b, part, m, node) for part, m in zip(parts, meta, strict=True)]
        if isinstance(result, Complex):
            return Complex(*(self._settled(b, part, of_parts(meta), node) for part in (result.real, result.imag)))
        self.symbols.meet(meta.shape, shape_of(result))
        shape, dtype = self.symbols.shape(meta.shape), dtype_name(meta.dtype)
        if dtype == "bfloat16":
            result = b.cast(result, dtype)
        if dtype_of(result) != dtype or len(shape_of(result)) != len(shape):
            found = TensorType(shape, dtype)
            raise InvalidModel(f"the recipe of {node.target} at {b.origin!r} gives {result.type}, where torch finds {found}")
        return b.reshape(result, shape)

    def _stand_in(self, meta: Any) -> Any:
        """A value of the right type for a node that could not be imported, so that the rest is looked at too."""
        if isinstance(meta, (tuple, list)):
            return [self._stand_in(each) for each in meta]
        if is_complex(meta):
            return Complex(*(self._stand_in(of_parts(meta)) for _ in range(2)))
        try:
            return Var("missing", TensorType(self.symbols.shape(meta.shape), dtype_name(meta.dtype)))
        except (UnsupportedModel, AttributeError):
            return Var("missing", TensorType((), "float32"))

    def states_after(self) -> list[Expr]:
        """What the states become, in the order of ``kept``."""
        return [self._values[node] for node in self.kept.values()]

    # Outputs ------------------------------------------------------------------------------------------------------

    def results(self) -> tuple[list[Expr], list[str]]:
        """The expressions and names of the outputs that are tensors or sizes; ``None`` is left out."""
        output = next(node for node in self.program.graph.nodes if node.op == "output")
        specs = self.program.graph_signature.output_specs
        user = [node for node, spec in zip(output.args[0], specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
        results: list[Expr] = []
        labels: list[str] = []
        for node, label in zip(user, output_names(self.program, len(user)), strict=True):
            value = self._values[node] if isinstance(node, torch.fx.Node) else node
            if value is None:
                continue
            if isinstance(value, Complex):
                raise UnsupportedModel(f"the output {label} is complex: return torch.view_as_real of it")
            builder = Builder(self.symbols, label)
            if isinstance(value, (bool, int, float)):
                value = Constant(np.asarray(value, "int64" if isinstance(value, int) and not isinstance(value, bool) else None), label)
            elif not hasattr(value, "type"):
                value = builder.tensor(value, "int64")
            results.append(value)
            labels.append(label)
        if not results:
            raise InvalidModel("the model has no outputs")
        return self._anchored(results), labels


def _graph_of(node: torch.fx.Node) -> torch.fx.Graph:
    """The graph that a ``get_attr`` node names."""
    module: Any = node.graph.owning_module
    return module.get_submodule(str(node.target)).graph


def _all_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The calls of a graph and of all graphs that it holds."""
    found = [node for node in graph.nodes if node.op == "call_function"]
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(graph.owning_module, str(node.target), None), torch.fx.GraphModule):
            found += _all_nodes(_graph_of(node))
    return found


def _live_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The calls that results depend on, and those that write in place. Checks of what torch assumed are not among them."""
    live: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        used = functional_form(node.target) is not None or any(user in live or user.op == "output" for user in node.users)
        if used and node.op == "call_function" and not is_check(node):
            live.add(node)
    return live
