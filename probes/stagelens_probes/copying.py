"""Copying: whether a head that attends to a token raises the logit of that token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stagelens import Reading
from stagelens.recording import Omitted, ProbeContext, layers, stack_layers, wide
from stagelens_probes.attention import PATTERN
from stagelens_probes.norms import scale_of
from stagelens_probes.weight_norms import submodule


def in_units(matrix: Tensor) -> Tensor:
    """Returns each matrix of `matrix` [..., m, n] divided by the power of two next to its largest entry."""
    return matrix / scale_of(matrix, (-2, -1))


@dataclass(frozen=True)
class Tokens:
    """The map from the embedding of a token to the logits of all tokens, without the head between them.

    The product `out @ into` is W_U W_E. If there are more tokens than dimensions, `out` is this product.
    """

    out: Tensor  # [d_model, n]
    into: Tensor | None  # [n, d_model]; None: the identity
    any_out: Tensor  # [d_model], the sum of W_U over the tokens
    any_in: Tensor  # [d_model], the mean of W_E over the tokens

    @classmethod
    def of(cls, w_u: Tensor, w_e: Tensor) -> Tokens:
        """Returns the tokens of W_U [d_model, token] and W_E [token, d_model], each in units of its largest entry."""
        w_u, w_e = in_units(w_u), in_units(w_e)
        out, into = (w_u @ w_e, None) if len(w_e) > w_e.shape[1] else (w_u, w_e)
        return cls(out, into, w_u.sum(1), w_e.mean(0))

    def folded(self, before: Tensor, final: Tensor, centered: bool) -> Tokens:
        """Returns these tokens with the layer norms around the attention of a layer folded in.

        `before` and `final` [d_model] are the weights of the norm before the attention and of that before the
        unembedding, in units of their largest entry. If `centered`, they subtract the mean of their input first.
        """
        before, final = (in_units(weights.to(self.out)[None])[0] for weights in (before, final))

        def read(rows: Tensor) -> Tensor:
            """What a head reads of `rows` [..., d_model]."""
            return (rows - rows.mean(-1, keepdim=True) if centered else rows) * before

        def written(columns: Tensor) -> Tensor:
            """What becomes of `columns` [d_model, ...] if a head writes along them."""
            columns = columns * final.reshape(-1, *[1] * (columns.ndim - 1))
            return columns - columns.mean(0) if centered else columns

        out, into = written(self.out), self.into
        out, into = (read(out), None) if into is None else (out, read(into))
        return Tokens(out, into, written(self.any_out), read(self.any_in))

    def circuits(self, w_v: Tensor, w_o: Tensor) -> tuple[Tensor, Tensor]:
        """Returns W_O (W_U W_E) W_V, [head, d_head, d_head], and its mean trace over permuted outcomes, [head].

        Apart from zeros, W_E W_V W_O W_U has the same eigenvalues, so no matrix of size d_vocab is needed. `w_v` is
        [head, d_model, d_head], `w_o` is [head, d_head, d_model].
        """
        read = w_v if self.into is None else self.into @ w_v
        return (w_o @ self.out) @ read, ((w_o @ self.any_out) * (self.any_in @ w_v)).sum(-1)


def copying_scores(circuits: Tensor, of_any_token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sum(lambda) / sum|lambda| over the eigenvalues of each circuit, and its chance level, [...] each.

    `circuits` is [..., d_head, d_head] and `of_any_token` [...], as `Tokens.circuits` returns them. The sum of
    eigenvalues is the trace. Its chance level is its mean over all permutations of the outcomes. Both are 0 if all
    eigenvalues are 0, and nan if a circuit is not finite.
    """
    circuits, of_any_token = circuits.cpu(), of_any_token.cpu()
    finite = circuits.isfinite().all(-1).all(-1)
    eigenvalues = torch.linalg.eigvals(torch.where(finite[..., None, None], circuits, 0.0))  # LAPACK crashes on nan
    size = torch.where(finite, eigenvalues.abs().sum(-1), torch.nan)
    traces = circuits.diagonal(dim1=-2, dim2=-1).sum(-1), of_any_token
    score, chance = (torch.where(size == 0, 0.0, trace / torch.where(size == 0, 1.0, size)) for trace in traces)
    return score, chance


def copying(context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields `copying` and `copying_folded` [layer, head] with their chance levels, or why they are omitted."""
    sites = context.sites(PATTERN)
    attentions = [submodule(context.model, site.name.rpartition(".")[0]) for site in sites]
    named: dict[str, Any] = {name: getattr(context.model, name, None) for name in ("W_E", "W_U")}
    heads: dict[str, list[Any]] = {n: [getattr(one, n, None) for one in attentions] for n in ("W_V", "W_O")}
    given = {name: [w] for name, w in named.items()} | heads
    reason = None
    if missing := [name for name, weights in given.items() if any(w is None for w in weights)]:
        reason = f"the model has no {', '.join(missing)}"
    elif named["W_U"].shape[1] != named["W_E"].shape[0]:
        reason = f"the model's {named['W_U'].shape[1]} outcomes are not its {named['W_E'].shape[0]} tokens"
    elif len(widths := _widths(named, heads)) > 1:
        reason = f"W_E, W_U, W_V and W_O have several widths ({', '.join(map(str, widths))}), not one d_model"
    if reason:
        yield from (Omitted(name, reason) for name in ("copying", "copying_folded"))
        return
    tokens = Tokens.of(wide(named["W_U"]), wide(named["W_E"]))
    layer = {"layer": layers(dict.fromkeys(sites))}
    pairs = list(zip(*heads.values(), strict=True))
    norms = norm_weights(context, [submodule(context.model, site.name.partition(".attn.")[0]) for site in sites])
    if isinstance(norms, str):
        yield from _scores(("copying",), [[tokens] * len(pairs)], pairs, layer)
        yield Omitted("copying_folded", norms)
        return
    before, final, centered = norms
    both = [[tokens] * len(pairs), [tokens.folded(one, final, centered) for one in before]]
    yield from _scores(("copying", "copying_folded"), both, pairs, layer)


def _scores(
    names: Sequence[str],
    of: Sequence[Sequence[Tokens]],
    pairs: Sequence[tuple[Tensor, Tensor]],
    coords: dict[str, list[int]],
) -> Iterable[Reading]:
    """Yields the copying scores of each of `names` and their chance levels, [layer, head].

    `of` has the tokens of each layer for each name, and `pairs` has W_V and W_O of each layer. Each matrix is taken in
    units of its largest entry, so that products of tiny numbers do not underflow.
    """
    by_layer = []
    for pair, *tokens in zip(pairs, *of, strict=True):
        w_v, w_o = (in_units(matrix.to(tokens[0].out)) for matrix in pair)
        by_layer.append([one.circuits(w_v, w_o) for one in tokens])
    found = [circuits for of_name in zip(*by_layer, strict=True) for circuits in of_name]
    sizes = [len(circuits) for circuits, _ in found]
    if len({circuits.shape[1:] for circuits, _ in found}) == 1:  # of all layers at once
        at_once = copying_scores(*(torch.cat(parts) for parts in zip(*found, strict=True)))
        scores = list(zip(*(torch.split(part, sizes) for part in at_once), strict=True))
    else:
        scores = [copying_scores(*one) for one in found]
    for index, name in enumerate(names):
        own = scores[index * len(pairs) : (index + 1) * len(pairs)]
        for part, values in zip(("", "_chance"), zip(*own, strict=True), strict=True):
            yield Reading(name + part, stack_layers(list(values)), ("layer", "head"), coords)


def _widths(ends: Mapping[str, Tensor], heads: Mapping[str, Sequence[Tensor]]) -> list[int]:
    """Returns the different sizes of the dimension that should be d_model. A factorized embedding has its own."""
    sizes = {ends["W_E"].shape[1], ends["W_U"].shape[0]}
    return sorted(sizes | {w.shape[1] for w in heads["W_V"]} | {w.shape[2] for w in heads["W_O"]})


def norm_weights(context: ProbeContext, blocks: Sequence[Any]) -> tuple[list[Tensor], Tensor, bool] | str:
    """Returns the weights [d_model] of the norm before each attention, those of the last norm, and whether they center.

    Norms without weights (`cfg.normalization_type` ends with Pre) count as weights 1. Returns the reason if there are
    no such norms.
    """
    kind = getattr(context.model.cfg, "normalization_type", None)
    if kind not in ("LN", "LNPre", "RMS", "RMSPre"):
        return "the model's cfg names no layer norms (normalization_type) to fold in: see copying"
    norms = [*(getattr(block, "ln1", None) for block in blocks), getattr(context.model, "ln_final", None)]
    weights = [_weights(norm, context) for norm in norms]
    known = [w for w in weights if w is not None]
    if len(known) < len(weights):
        return "a layer norm before the attention or the unembedding has no weights that can be read"
    return known[:-1], known[-1], kind.startswith("LN")


def _weights(norm: nn.Module | None, context: ProbeContext) -> Tensor | None:
    """Returns the weights [d_model] of a norm, 1 if its kind has no weights; None if they cannot be read."""
    if context.model.cfg.normalization_type.endswith("Pre"):
        return torch.ones(context.model.cfg.d_model, device=next(context.model.parameters()).device)
    found = getattr(norm, "w", None)
    return wide(found) if isinstance(found, Tensor) else None
