"""Branches: which modules of a block give what attention and MLP add to the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from torch import Tensor

from stagelens.models.watching.projections import Used, same


def find_branches(block: str, attention: str, used: Mapping[str, Used]) -> tuple[str, str] | None:
    """Returns the paths of the two modules in a block that give attn_out and mlp_out; None if there are none.

    Args:
        block: The path of the block.
        attention: The path of the attending module in it.
        used: The first call of each module, in the order in which the calls ended.
    """
    if attention not in used:
        return None
    whole, order = used[block], list(used)
    inside = {
        path: one
        for path, one in used.items()
        if path.startswith(f"{block}.") and one.made.shape == whole.made.shape and one.made.is_floating_point()
    }
    after = {path: one for path, one in inside.items() if order.index(path) >= order.index(attention)}
    children = [path for path in inside if path.rpartition(".")[0] == block]
    own = ".".join(attention.split(".")[: block.count(".") + 2])  # the child with the attention
    pairs = [(own, path) for path in reversed(children) if own in children and path != own]
    pairs += reversed(list(combinations([path for path in children if path in after], 2)))
    return _that_add(whole, pairs, inside) or _anywhere(whole, inside) or _before_norms(whole, after)


def _that_add(whole: Used, pairs: Sequence[tuple[str, str]], inside: Mapping[str, Used]) -> tuple[str, str] | None:
    """Returns the first pair of modules with resid_pre + attn_out + mlp_out = resid_post; None if there is none.

    Pairs with the last modules come first: a dropout, or a norm, after the MLP gives what is added.
    """
    sums = ((pair, whole.given + inside[pair[0]].made + inside[pair[1]].made) for pair in pairs)
    return next((pair for pair, total in sums if same(total, whole.made)), None)


def _anywhere(whole: Used, inside: Mapping[str, Used]) -> tuple[str, str] | None:
    """Does what `_that_add` does for modules at any depth: some add to the residual stream inside the block's parts."""
    order = list(inside)
    for attn in reversed(order):
        mlp = _that_made(whole.made - whole.given - inside[attn].made, inside)
        if mlp is not None and order.index(attn) < order.index(mlp):
            return attn, mlp
    return None


def _before_norms(whole: Used, after: Mapping[str, Used]) -> tuple[str, str] | None:
    """Returns two modules of a post-norm block: norm2(norm1(resid_pre + attn_out) + mlp_out) = resid_post."""
    norms = [one for one in after.values() if one.given.shape == one.made.shape]
    last = next((one for one in reversed(norms) if same(one.made, whole.made)), None)
    if last is None:
        return None
    for first in norms:
        attn = _that_made(first.given - whole.given, after)
        mlp = _that_made(last.given - first.made, after)
        if attn is not None and mlp is not None and first is not last:
            return attn, mlp
    return None


def _that_made(x: Tensor, used: Mapping[str, Used]) -> str | None:
    """Returns the last module that gave `x`; None if there is none, or `x` is zero."""
    if not x.any():
        return None
    return next((path for path in reversed(list(used)) if same(used[path].made, x)), None)
