"""Tracing: turns a function of tensors into a flat list of its operations, without those that are not needed.

Small models spend their time between operations: in Python, in autograd, in views, and in operations that compute the
same tensor at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
# Operations that give another view of their first argument.
VIEWS = {
    *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.transpose.int),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.t.default),
    *(aten.select.int, aten.slice.Tensor, aten.alias.default, aten.detach.default, aten.diagonal.default),
}
# Operations whose result depends on the shape of their argument alone.
LIKE = {
    *(aten.ones_like.default, aten.zeros_like.default, aten.full_like.default),
    *(aten.new_ones.default, aten.new_zeros.default, aten.new_full.default),
}
# The same in place, which changes no number.
IN_PLACE = {aten.squeeze_.dim: aten.squeeze.dim, aten.squeeze_.dims: aten.squeeze.dims}


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], fixed: Collection[int] = ()) -> Callable[..., Any]:
    """Returns `function` as a traced graph, for inputs of the shapes of `inputs`.

    Inputs with an index in `fixed` are constants. The function must be called without gradients, and must return
    tensors, or lists and tuples of them. A function that cannot be traced is returned unchanged. Decisions that depend
    on anything but the inputs are made once, while tracing.
    """
    try:
        graph: GraphModule = make_fx(function)(*(tensor.detach() for tensor in inputs))
    except Exception:
        return function
    for node in graph.graph.nodes:
        node.target = IN_PLACE.get(node.target, node.target)
    if not any(_changes_its_input(node) for node in graph.graph.nodes):
        interpreter = Interpreter(graph, garbage_collect_values=False)
        with torch.no_grad():
            interpreter.run(*inputs)
        _fold(graph, interpreter.env, fixed)
        _join_views(graph, interpreter.env)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph.forward


def _changes_its_input(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _fold(graph: GraphModule, values: Mapping[Node, Any], fixed: Collection[int]) -> None:
    """Replaces what is the same at every call by the `values` computed once."""
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    same = {placeholders[index] for index in fixed} | {node for node in nodes if node.op == "get_attr"}
    for node in nodes:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op == "call_function" and not random:
            same |= {node} if node.target in LIKE or same.issuperset(node.all_input_nodes) else set()
    for node in same:
        if node.op == "call_function" and isinstance(values[node], Tensor) and not same.issuperset(node.users):
            setattr(graph, f"_{node.name}", values[node].detach())
            with graph.graph.inserting_after(node):
                node.replace_all_uses_with(graph.graph.create_node("get_attr", f"_{node.name}"))


def _join_views(graph: GraphModule, values: Mapping[Node, Any]) -> None:
    """Merges a chain of views into one operation, and removes a view that does not change its tensor."""
    roots: dict[Node, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.target not in VIEWS:
            continue
        source = node.args[0]
        root = roots.get(source, source)
        if root not in values or not _shares_memory(values[node], values[root]):
            continue
        roots[node] = root
        form = _form(values[node])
        if form == _form(values[root]):
            node.replace_all_uses_with(root)
        elif root is not source:
            with graph.graph.inserting_after(node):
                joined = graph.graph.call_function(aten.as_strided.default, (root, *form))
            node.replace_all_uses_with(joined)
            roots[joined] = root


def _form(tensor: Tensor) -> tuple[list[int], list[int], int]:
    return list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
