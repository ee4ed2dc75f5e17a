"""The norm of each parameter, of each head's part of it, of its QK and OV matrices, and the distance from the start."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced, layers, stack_layers
from stagelens_probes.attention import PATTERN
from stagelens_probes.described import WEIGHT_NORMS
from stagelens_probes.norms import norms, product_norms, stacked_row_norms

HEAD_WEIGHTS = {"W_Q", "W_K", "W_V", "W_O"}  # TransformerLens' names, [head, d_model, d_head] or the like
HEAD_BIASES = {"b_Q", "b_K", "b_V"}  # [head, d_head]
MOST_STORED = 2**24  # parameters of a model whose start is stored, for the distance from it


def has_heads(name: str, parameter: Tensor, context: ProbeContext) -> bool:
    """Returns True if the first dimension of `parameter` is the head.

    It must have `cfg.n_heads` rows. A module may list the names of such parameters as `head_parameters`. In other
    modules they are TransformerLens' biases of heads, and some parameters of three or more dimensions. These have
    TransformerLens' names, or belong to a module with a hook of the attention pattern. A matrix does not count: it may
    have as many rows as there are heads by chance.
    """
    owner, _, last = name.rpartition(".")
    if parameter.ndim < 2 or parameter.shape[0] != getattr(getattr(context.model, "cfg", None), "n_heads", None):
        return False
    declared = getattr(context.model.get_submodule(owner), "head_parameters", None)
    if declared is not None:
        return last in declared
    in_attention = last in HEAD_WEIGHTS or f"{owner}.hook_pattern" in context.model.hook_dict
    return last in HEAD_BIASES or (in_attention and parameter.ndim >= 3)


def head_matrices(context: ProbeContext, one: str, other: str) -> list[tuple[Tensor, Tensor]] | str:
    """Returns two matrices [head, ...] of each layer, such as W_Q and W_K, or why there are none.

    W_Q, W_K and W_V are [head, d_model, d_head], W_O is [head, d_head, d_model]. If heads share keys and values, W_K
    and W_V have fewer heads. A user's model may have matrices of these names in another layout. So they count
    only if the model has `cfg.d_model`, or is watched.
    """
    found = []
    for site in context.sites(PATTERN):
        attention = submodule(context.model, site.name.rpartition(".")[0])
        pair = [w for name in (one, other) if isinstance(w := getattr(attention, name, None), Tensor) and w.ndim == 3]
        if len(pair) < 2:
            break
        d_model = pair[0].shape[1]
        if d_model != getattr(context.model.cfg, "d_model", d_model if is_watched(context) else None):
            break
        found.append((pair[0], pair[1]))
    if not found or len(found) < len(context.sites(PATTERN)):
        layout = "[head, d_head, d_model]" if other == "W_O" else "[head, d_model, d_head]"
        return f"the layers do not have {one} as [head, d_model, d_head] and {other} as {layout}"
    return found


def submodule(model: nn.Module, path: str) -> nn.Module | None:
    """Returns the part of `model` at `path`; None if there is none."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def is_watched(context: ProbeContext) -> bool:
    """Returns True if `stagelens.watch` has found the model's attention and the matrices of its heads."""
    return hasattr(context.model, "head_matrices")


class WeightNorms(Probe):
    """Frobenius norms of each parameter, of each head's part of it, of each head's QK and OV matrix, and of the change.

    The norms of a head's W_Q W_K^T and W_V W_O do not depend on the basis of its keys and values.
    """

    name = "weight_norms"
    title = "Frobenius norm of each parameter, and of each head's part of it"
    described = WEIGHT_NORMS
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return None if next(context.model.parameters(), None) is not None else "the model has no parameters"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        parameters = dict(context.model.named_parameters())
        yield Reading("norm", norms(list(parameters.values())), ("parameter",), {"parameter": list(parameters)})

        with_heads = context.constant("parameters with heads", lambda: _with_heads(parameters, context))
        heads = {name: parameters[name] for name in with_heads}
        heads = heads or getattr(context.model, "head_matrices", dict)()  # of a watched model: parts of its matrices
        if heads:
            per_head = stacked_row_norms(list(heads.values()))
            yield Reading("head_norm", per_head, ("head_parameter", "head"), {"head_parameter": list(heads)})
        else:
            yield Omitted("head_norm", "no parameter has a row for each head (cfg.n_heads)")
        yield from _of_products(context)
        yield self._from_start(parameters)

    def _from_start(self, parameters: dict[str, Tensor]) -> Reading | Omitted:
        """Returns |p - p at the first measurement| of each parameter p, [parameter]."""
        size = sum(p.numel() for p in parameters.values())
        if size > MOST_STORED:
            return Omitted(
                "from_start", f"the model has {size:,} parameters; the start of more than {MOST_STORED:,} is not stored"
            )
        if not self.state:
            self.state = {name: p.detach().clone() for name, p in parameters.items()}
        moved = norms([p.detach() - self.state[name].to(p) for name, p in parameters.items()])
        return Reading("from_start", moved, ("parameter",), {"parameter": list(parameters)})


def _with_heads(parameters: dict[str, Tensor], context: ProbeContext) -> list[str]:
    return [name for name, parameter in parameters.items() if has_heads(name, parameter, context)]


def _of_products(context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields `qk_norm` = |W_Q W_K^T| and `ov_norm` = |W_V W_O|, [layer, head], or why they are omitted."""
    coords = {"layer": layers(dict.fromkeys(context.sites(PATTERN)))}
    for name, one, other in (("qk_norm", "W_Q", "W_K"), ("ov_norm", "W_V", "W_O")):
        pairs = head_matrices(context, one, other)
        if isinstance(pairs, str):
            yield Omitted(name, pairs)
            continue
        if name == "ov_norm":
            pairs = [(w_o.mT, w_v) for w_v, w_o in pairs]  # the first of a pair has all heads
        yield Reading(name, _by_layer(pairs), ("layer", "head"), coords)


def _by_layer(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns `product_norms` of the pair of each layer, [layer, head]; at once if the layers have equal shapes."""
    if len({(a.shape, b.shape) for a, b in pairs}) == 1:
        return product_norms(pairs)
    return stack_layers([product_norms([pair])[0] for pair in pairs])
