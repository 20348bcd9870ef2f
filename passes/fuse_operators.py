"""Cuts the graph into kernels: each becomes a primitive function, called from the entry point.

After Relay's fusion (Roesch et al., 2019; Chen et al., TVM, OSDI 2018): a call joins the group of its immediate
post-dominator when everything between the two may join too. So each group has one sink through which all its values
leave, and grouping can never make a cycle. A group has at most one anchor, a call that is more than element by element;
elementwise calls behind an anchor become its epilogue, elementwise calls before a reduction its prologue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Var, call, children, with_children
from aotc.ir.symbols import is_planned
from aotc.ir.types import TensorType, TupleType, flatten
from aotc.ir.visitor import map_functions, post_order, users, with_body
from aotc.ops.base import Fusion, OpDef
from aotc.passes.join_bfloats import PRODUCTS, is_widened
from aotc.passes.options import Options
from aotc.targets.base import Gpu

MAX_CALLS = 48  # in one kernel
MAX_INPUTS = 24  # tensors that one kernel reads
MAX_REPEATS = 3  # times that calls are computed on average when shared values are inlined at each use, as schedules do
NAMES_SHOWN = 6

ALONE = frozenset({"reshape", "layout_transform"})
"""A reshape is a view and costs nothing by itself; a layout transform has a schedule of its own."""
NO_PROLOGUE = frozenset({"concat", "pad", "resize", "scatter_elements", "scatter_nd"})
"""Injective calls that read an element several times, or behind a condition: what comes before is computed once, outside,
and they are no prologue themselves."""
ROW_WISE = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm"})
"""Anchors that pass over their input several times: a cheap prologue still beats writing a tensor and reading it back."""
GPU_PROLOGUE = frozenset({"layout_transform"})
"""What takes a cheap prologue on a GPU, where it has no schedule of its own."""
EXPENSIVE = frozenset([
    "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "softplus", "silu", "mish", "gelu", "elu", "selu", "celu",
    "power", "atan2", "divide", "modulo", "floor_divide", "hard_swish", "softsign",
])  # fmt: skip
"""Not worth computing again for each element of a larger result."""


def fuse_operators(module: Module, options: Options) -> Module:
    """Every call of an operator ends up inside a primitive function. Their parameters are named p0, p1, ... in order of
    use; scalar constants stand inside, other constants and weights are arguments. A fused function's name joins the
    operators' names and its origin the user's names. Without ``options.fuse`` each call is a function of its own."""
    gpu = options.target.gpu if options.target is not None else None
    return map_functions(module, lambda function: _fuse(function, options.fuse, gpu))


@dataclass(eq=False)
class _Group:
    """Calls that become one kernel, in order of computation; the last is the sink."""

    members: list[Call]
    anchor: Call | None = None
    expensive: bool = False
    merged_into: _Group | None = field(default=None, repr=False)

    @property
    def sink(self) -> Call:
        return self.members[-1]


def _fuse(function: Function, join: bool, gpu: Gpu | None) -> Function:
    if not any(_is_operator(node) for node in post_order(function.body)):
        return function
    grouping = _Grouping(function, gpu)
    if join:
        grouping.join()
    return with_body(function, _emit(function, grouping))


class _Grouping:
    def __init__(self, function: Function, gpu: Gpu | None) -> None:
        self.prologues = ROW_WISE if gpu is None else ROW_WISE | GPU_PROLOGUE
        self.order = post_order(function.body)
        self.number = {node: i for i, node in enumerate(self.order)}
        self.users = users(function.body)
        self.operands: set[Expr] = set()  # of products that take bfloat16s as they are
        if gpu is not None and "bfloat16" in gpu.tensor_types:
            self.operands = {node for node in self.order if is_widened(node) and any(_name(user) in PRODUCTS for user in self.users[node])}
        self.post_dominator = _post_dominators(self.order, self.users)
        self.groups = {node: _Group([node], _anchor(node), node.op.name in EXPENSIVE) for node in self.order if _is_operator(node)}  # type: ignore[union-attr, list-item]

    def join(self) -> None:
        """Makes groups as large as they may be."""
        for node in self.order:
            if node in self.groups and self.groups[node].anchor is node:
                while self.extend_anchor(self.group(node)):
                    pass
        for node in self.order:
            if node in self.groups and not self.group(node).anchor:
                self.join_consumer(self.group(node))

    def group(self, node: Expr) -> _Group:
        group = self.groups[node]
        while group.merged_into is not None:
            group = group.merged_into
        self.groups[node] = group
        return group

    def extend_anchor(self, group: _Group) -> bool:
        """Takes the next elementwise calls behind an anchor into its epilogue; they must have its result's shape."""
        target = self.post_dominator.get(group.sink)
        if target is None or group.anchor is None or _kind(group.anchor) == Fusion.OPAQUE:
            return False
        between = self.between(group.sink, target)
        if between is None:
            return False
        joining = [*between, target]
        if (reader := self.reader_of_bytes(target)) is not None:
            beyond = self.between(target, reader)
            if beyond is None:
                return False
            joining += [*beyond, reader]
        if self.operands.intersection(joining) or not all(
            _kind(node) <= Fusion.BROADCAST and _shape(node) == _shape(group.sink) for node in joining
        ):
            return False
        return self.merge([group, *(self.group(node) for node in joining)])

    def reader_of_bytes(self, node: Expr) -> Expr | None:
        """The elementwise call that all readers of a ``dequantise`` of bytes lead to: it may as well read the bytes, which are stored in a
        quarter of the memory."""
        if _name(node) != "dequantise" or flatten(cast(Call, node).args[0].type)[0].itemsize != 1:
            return None
        reader = self.post_dominator.get(node)
        return reader if reader is not None and _kind(reader) <= Fusion.BROADCAST else None

    def join_consumer(self, group: _Group) -> bool:
        """Joins elementwise and injective calls with what consumes them."""
        sink = group.sink
        target = self.post_dominator.get(sink)
        if target is None or target in self.operands or _kind(sink) > Fusion.INJECTIVE or not _is_operator(target):
            return False
        between = self.between(sink, target)
        if between is None or any(_kind(node) > Fusion.INJECTIVE or _name(node) in NO_PROLOGUE for node in between):
            return False
        joining = [group, *(self.group(node) for node in between)]
        if not self.accepts(target, joining):
            return False
        return self.merge([*joining, self.group(target)])

    def accepts(self, target: Expr, joining: list[_Group]) -> bool:
        """Whether ``target`` may compute what ``joining`` holds as it reads it."""
        if _name(target) in NO_PROLOGUE:
            return False
        expensive = any(group.expensive for group in joining)
        plain = all(_kind(member) <= Fusion.BROADCAST for group in joining for member in group.members)
        no_larger = all(_is_no_larger(target, group.sink) for group in joining)
        if _kind(target) <= Fusion.INJECTIVE:
            in_epilogue = self.group(target).anchor is not None
            return (plain or not in_epilogue) and (no_larger or not expensive)
        if any(_name(member) in NO_PROLOGUE for group in joining for member in group.members):
            return False
        reads = flatten(cast(Call, target).args[0].type)[0].size
        if _name(target) in PRODUCTS:
            return all(len(group.members) == 1 and group.sink in self.operands for group in joining)
        reads_once = all(_size(group.sink) == reads for group in joining)
        if _kind(target) == Fusion.REDUCTION:
            return reads_once
        first = cast(Call, target).args[0]
        return _name(target) in self.prologues and plain and reads_once and not expensive and any(group.sink is first for group in joining)

    def between(self, start: Expr, end: Expr) -> list[Expr] | None:
        """The nodes on the ways from ``start`` to its post-dominator ``end``, both left out; ``None`` for too many."""
        found: set[Expr] = set()
        stack: list[Expr] = [start]
        while stack:
            for user in self.users[stack.pop()]:
                if user is not end and user not in found:
                    found.add(user)
                    stack.append(user)
            if len(found) > MAX_CALLS:
                return None
        return sorted(found, key=self.number.__getitem__)

    def merge(self, groups: list[_Group]) -> bool:
        distinct = list(dict.fromkeys(groups))
        anchors = [group.anchor for group in distinct if group.anchor]
        if len(anchors) > 1:
            return False
        members = sorted({member for group in distinct for member in group.members}, key=self.number.__getitem__)
        if len(members) > MAX_CALLS or len(_inputs(members)) > MAX_INPUTS or _tree_size(members, anchors) > MAX_REPEATS * len(members):
            return False
        if _gathers_of_gathers(members):
            return False
        merged = _Group(members, anchors[0] if anchors else None, any(group.expensive for group in distinct))
        for group in distinct:
            group.merged_into = merged
        return True


def _is_operator(node: Expr) -> bool:
    """Whether ``node`` is computed by a kernel."""
    return isinstance(node, Call) and isinstance(node.op, OpDef) and not is_planned(node)


def _name(node: Expr) -> str:
    return node.op.name if isinstance(node, Call) else ""


def _kind(node: Expr) -> Fusion:
    """The fusion kind as this pass uses it: opaque for what is no operator call, or has several results."""
    if not _is_operator(node) or _name(node) in ALONE or isinstance(node.type, TupleType):
        return Fusion.OPAQUE
    return cast(OpDef, cast(Call, node).op).fusion


def _anchor(node: Expr) -> Call | None:
    return cast(Call, node) if _kind(node) > Fusion.INJECTIVE else None


def _shape(node: Expr) -> object:
    return node.type.shape if isinstance(node.type, TensorType) else None


def _size(node: Expr) -> object:
    return node.type.size if isinstance(node.type, TensorType) else None


def _is_no_larger(a: Expr, b: Expr) -> bool:
    """Whether ``a`` surely has at most as many elements as ``b``."""
    one, other = _size(a), _size(b)
    return one == other or (isinstance(one, int) and isinstance(other, int) and one < other)


def _post_dominators(order: list[Expr], uses: dict[Expr, list[Expr]]) -> dict[Expr, Expr | None]:
    """For each node the nearest one through which all its ways to the output go; ``None`` is beyond the output."""
    parent: dict[Expr, Expr | None] = {}
    depth: dict[Expr | None, int] = {None: 0}
    for node in reversed(order):
        common: Expr | None = None
        for i, user in enumerate(uses[node]):
            other: Expr | None = user
            if i == 0:
                common = other
                continue
            while common is not other:
                if depth[common] >= depth[other]:
                    common = parent[common] if common is not None else None
                else:
                    other = parent[other] if other is not None else None
        parent[node] = common
        depth[node] = depth[common] + 1
    return parent


def _inputs(members: Iterable[Call]) -> list[Expr]:
    """What a group reads from outside, in order of use, but for scalars that stand inside."""
    inside = set(members)
    found: dict[Expr, None] = {}
    for member in members:
        for arg in member.args:
            if arg not in inside and not _stands_inside(arg, member):
                found.setdefault(arg)
    return list(found)


def _stands_inside(arg: Expr, member: Call) -> bool:
    """Scalars of elementwise calls become literals in the code."""
    return isinstance(arg, Constant) and arg.data.size == 1 and cast(OpDef, member.op).fusion <= Fusion.BROADCAST


def _tree_size(members: list[Call], anchors: list[Call]) -> int:
    """How many calls a kernel computes per element when every value inside is inlined; an anchor's result is stored."""
    size: dict[Expr, int] = {}
    for member in members:
        size[member] = 1 if member in anchors else 1 + sum(size.get(arg, 0) for arg in member.args)
    return size[members[-1]]


def _gathers_of_gathers(members: list[Call]) -> bool:
    """Whether a gather along dynamic dims picks from what another one in the kernel picked. The places of the one would be worked
    out inside those of the other, by divisions within divisions: compilers take minutes over three of them."""
    behind: set[Expr] = set()
    for member in members:
        from_gather = any(arg in behind for arg in member.args)
        picks = member.op.name == "gather" and not cast(TensorType, member.type).is_static
        if picks and member.args[0] in behind:
            return True
        if picks or from_gather:
            behind.add(member)
    return False


def _emit(function: Function, grouping: _Grouping) -> Expr:
    """The body over calls of fused functions."""
    new: dict[Expr, Expr] = {}
    for node in grouping.order:
        if node not in grouping.groups:
            new[node] = with_children(node, [new[child] for child in children(node)])
        elif grouping.group(node).sink is node:
            members = grouping.group(node).members
            inputs = _inputs(members)
            fused = _primitive(members, inputs)
            new[node] = call(fused, [new[each] for each in inputs], None, fused.origin)
    return new[function.body]


def _primitive(members: list[Call], inputs: list[Expr]) -> Function:
    inside: dict[Expr, Expr] = {each: Var(f"p{i}", each.type, _source(each)) for i, each in enumerate(inputs)}
    params = tuple(cast(Var, inside[each]) for each in inputs)
    for member in members:
        args = [arg if _stands_inside(arg, member) else inside[arg] for arg in member.args]
        inside[member] = Call(member.op, tuple(args), member.attrs, member.type, member.origin)
    names = [_name(member) for member in members]
    label = "_".join(names[:NAMES_SHOWN]) + (f"_and_{len(names) - NAMES_SHOWN}" if len(names) > NAMES_SHOWN else "")
    origins = list(dict.fromkeys(member.origin for member in members if member.origin))
    shown = " + ".join(origins[:NAMES_SHOWN]) + (f" + {len(origins) - NAMES_SHOWN} more" if len(origins) > NAMES_SHOWN else "")
    return Function(params, inside[members[-1]], label, primitive=True, origin=shown)


def _source(node: Expr) -> str:
    """What a parameter of a fused function stands for, for readers."""
    return node.name if isinstance(node, (Parameter, Var)) else node.origin
