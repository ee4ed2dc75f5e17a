"""Structure: which modules of a watched model are its blocks, projections, embedding and unembedding.

Nothing is guessed from names. Modules are identified by what they computed in one pass. For example, the projection of
values is the linear map whose output is the values. The unembedding is the one whose output is the logits. If two
modules computed the same, as they do if all weights are zero, neither is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from stagelens.models.watching.branches import find_branches
from stagelens.models.watching.discovery import Call
from stagelens.models.watching.projections import (
    Heads,
    Linear,
    Linears,
    Used,
    find_heads,
    increasing,
    linear_of,
    same,
)


@dataclass(frozen=True)
class Structure:
    """The parts of a model that one pass showed."""

    embedding: Linear | None = None  # its matrix is [token, d_model]
    unembedding: Linear | None = None
    heads: Sequence[Heads] = ()  # of each layer
    blocks: Sequence[str] = ()  # the path of each layer's block; empty if there are none
    branches: Sequence[tuple[str, str] | None] = ()  # of each block: the paths of attention and MLP
    final_norm: str | None = None


def find_structure(
    model: nn.Module,
    calls: Sequence[Call],
    tokens: Tensor | None,
    run: Callable[[], tuple[Any, Sequence[Mapping[str, Tensor]]]],
) -> Structure:
    """Returns the parts that play a role in a pass.

    Args:
        calls: The attention of each layer.
        run: Makes the pass. Returns the logits, and `hook_q`, `hook_k`, `hook_v`, `hook_z` of each layer at the first
            and the last position, [batch, 2, head, d_head].
    """
    modules = dict(model.named_modules())
    with recording(modules) as used:
        logits, caught = run()
    linears = [(one, linear) for one in used if (linear := linear_of(one, modules[one.path])) is not None]
    embeddings = [one for one in used if isinstance(modules[one.path], nn.Embedding)]
    embedding = next((one.path for one in embeddings if tokens is not None and same(one.given, tokens)), None)
    first: dict[str, Used] = {}
    for one in used:
        first.setdefault(one.path, one)
    blocks = find_blocks([call.path for call in calls], first)
    return Structure(
        embedding=Linear(f"{embedding}.weight") if embedding else None,
        unembedding=find_unembedding(ends(logits), linears) if isinstance(logits, Tensor) else None,
        heads=[
            find_heads(call.path, modules[call.path], one, linears) for call, one in zip(calls, caught, strict=True)
        ],
        blocks=blocks,
        branches=[find_branches(block, call.path, first) for block, call in zip(blocks, calls, strict=False)],
        final_norm=find_final_norm(blocks, modules, first),
    )


@contextmanager
def recording(modules: Mapping[str, nn.Module]) -> Iterator[list[Used]]:
    """Notes what every call of `modules` takes and gives while the block lasts, in the order of the calls' ends."""
    used: list[Used] = []

    def note(path: str) -> Callable[..., None]:
        def ended(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG001
            given, made = first_tensor((*args, *kwargs.values())), first_tensor(output)
            if given is not None and made is not None:
                used.append(Used(path, ends(given), ends(made)))

        return ended

    handles = [module.register_forward_hook(note(path), with_kwargs=True) for path, module in modules.items()]
    try:
        yield used
    finally:
        for handle in handles:
            handle.remove()


def find_unembedding(logits: Tensor, linears: Linears) -> Linear | None:
    """Returns the last linear map that gives the logits, or what they are an increasing function of."""
    last_first = list(reversed(linears))
    return next((linear for equal in (same, increasing) for one, linear in last_first if equal(one.made, logits)), None)


def ends(x: Tensor) -> Tensor:
    """Returns a copy of the first and last position of activations [batch, position, width], or of all of `x`.

    Two positions are enough to tell modules apart, and little to store.
    """
    return (x[:, [0, -1]] if x.ndim == 3 else x).detach().clone()


def first_tensor(value: Any) -> Tensor | None:
    """Returns the first tensor in `value`: itself, or of a tuple, list or mapping."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((x for x in map(first_tensor, value) if x is not None), None)
    return None


def find_blocks(paths: Sequence[str], used: Mapping[str, Used]) -> list[str]:
    """Returns the block of each attending module, such as `h.0`; an empty list if some module has none.

    A block is in a list of modules, contains one attending module, and keeps the shape of the residual stream. An
    attending module in a list, such as `layers.0`, is a block itself if the next one takes what it gives.
    """
    blocks = [next((block for block in _around(path) if _is_block(block, paths, used)), "") for path in paths]
    if not all(blocks) or len(set(blocks)) < len(blocks):
        return []
    if any(block in paths for block in blocks):
        chained = (same(used[one].made, used[other].given) for one, other in pairwise(blocks))
        return blocks if len(blocks) > 1 and all(chained) else []
    return blocks


def _around(path: str) -> Iterator[str]:
    """Yields the modules around `path`, and itself, that are in a list, from the outermost to the innermost."""
    parts = path.split(".")
    prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return (prefix for prefix in prefixes if prefix.rpartition(".")[2].isdigit())


def _is_block(block: str, paths: Sequence[str], used: Mapping[str, Used]) -> bool:
    one = used.get(block)
    if one is None or one.given.shape != one.made.shape or not one.given.is_floating_point():
        return False
    return sum(path == block or path.startswith(f"{block}.") for path in paths) == 1


def find_final_norm(blocks: Sequence[str], modules: Mapping[str, nn.Module], used: Mapping[str, Used]) -> str | None:
    """Returns the path of the module that normalizes the last block's output, whatever the scale of it."""
    for path, one in used.items():
        inside = any(path == block or path.startswith(f"{block}.") for block in blocks)
        if blocks and not inside and not list(modules[path].children()):
            stream, module = used[blocks[-1]].made, modules[path]
            if same(one.given, stream) and one.made.shape == stream.shape and _has_no_scale(module, stream):
                return path
    return None


def _has_no_scale(module: nn.Module, x: Tensor) -> bool:
    with suppress(Exception):  # a module that cannot be called on `x` alone is not a norm
        return same(module(100 * x), module(1000 * x))
    return False
