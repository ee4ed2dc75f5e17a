"""Copying: whether a head that attends to a token raises the logit of that token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigvals
from torch import Tensor, nn

from stagelens import Reading
from stagelens.recording import Omitted, ProbeContext, layers, stack_layers, wide
from stagelens_probes.attention import PATTERN
from stagelens_probes.norms import scale_of


def in_units(matrix: Tensor) -> Tensor:
    """Returns each matrix of `matrix` [..., m, n] divided by the power of two next to its largest entry."""
    return matrix / scale_of(matrix, (-2, -1))


@dataclass(frozen=True)
class Tokens:
    """How the embedding of a token becomes the logits of all tokens, without the head between them.

    The product `out @ into` is W_U W_E. If there are more tokens than dimensions, `out` is this product and `into` the
    identity.
    """

    out: Tensor  # [d_model, n]
    into: Tensor  # [n, d_model]
    any_out: Tensor  # [d_model], the sum of W_U over the tokens
    any_in: Tensor  # [d_model], the mean of W_E over the tokens

    @classmethod
    def of(cls, w_u: Tensor, w_e: Tensor) -> Tokens:
        """Returns the tokens of W_U [d_model, token] and W_E [token, d_model]."""
        many = len(w_e) > w_e.shape[1]
        out, into = (w_u @ w_e, torch.eye(w_e.shape[1]).to(w_e)) if many else (w_u, w_e)
        return cls(out, into, w_u.sum(1), w_e.mean(0))

    def through_norms(self, before: Tensor, final: Tensor, centered: bool) -> Tokens:
        """Returns these with a layer norm after W_E and one before W_U folded in.

        `before` and `final` [d_model] are their weights. If `centered`, they subtract the mean of their input first.
        """
        before, final = before.to(self.out), final.to(self.out)
        outs = [(final * one.mT).mT for one in (self.out, self.any_out[:, None])]
        ins = [self.into, self.any_in[None]]
        if centered:
            outs = [one - one.mean(0, keepdim=True) for one in outs]
            ins = [one - one.mean(1, keepdim=True) for one in ins]
        return Tokens(outs[0], ins[0] * before, outs[1][:, 0], ins[1][0] * before)


def copying_scores(tokens: Tokens, w_v: Tensor, w_o: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sum(lambda) / sum|lambda| over the eigenvalues of W_E W_V W_O W_U, and its chance level, each [head].

    `w_v` is [head, d_model, d_head], `w_o` is [head, d_head, d_model]. Apart from zeros, W_O (W_U W_E) W_V has the same
    eigenvalues, so no matrix of size d_vocab is needed. In the sum of eigenvalues, which is a trace, the chance level
    has the mean of W_U W_E over all permutations of the outcomes, `any_out` times `any_in`. The matrices are scaled
    first, which does not change the ratios: otherwise products of tiny numbers would underflow. Both are 0 if all
    eigenvalues are 0.
    """
    out, into = scale_of(tokens.out, (-2, -1)), scale_of(tokens.into, (-2, -1))
    w_v, w_o = (in_units(matrix.to(tokens.out)) for matrix in (w_v, w_o))
    core = ((w_o @ (tokens.out / out)) @ ((tokens.into / into) @ w_v)).cpu()  # [head, d_head, d_head]
    if not core.isfinite().all():
        return core.new_full((len(core),), torch.nan), core.new_full((len(core),), torch.nan)  # LAPACK crashes on nan
    of_any_token = (w_o @ (tokens.any_out / out[0]) * ((tokens.any_in / into[0]) @ w_v)).sum(-1).cpu()
    # scipy's takes half as long as torch's, and is most of the time that this probe takes.
    size = torch.tensor([float(np.abs(eigvals(one, check_finite=False)).sum()) for one in core.numpy()]).to(core)
    traces = core.diagonal(dim1=-2, dim2=-1).sum(-1), of_any_token
    score, chance = (torch.where(size > 0, trace / torch.where(size > 0, size, 1.0), 0.0) for trace in traces)
    return score, chance


def copying(context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields `copying` and `copying_folded` [layer, head] with their chance levels, or why they are omitted."""
    sites = context.sites(PATTERN)
    modules = dict(context.model.named_modules())
    attentions = [modules.get(site.name.rpartition(".")[0]) for site in sites]
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
    w_u, w_e = (in_units(wide(named[name])) for name in ("W_U", "W_E"))
    tokens = Tokens.of(w_u, w_e)
    layer = {"layer": layers(dict.fromkeys(sites))}
    plain = [copying_scores(tokens, v, o) for v, o in zip(*heads.values(), strict=True)]
    yield from _both("copying", plain, layer)
    norms = norm_weights(context, [modules.get(site.name.partition(".attn.")[0]) for site in sites])
    if isinstance(norms, str):
        yield Omitted("copying_folded", norms)
        return
    before, final, centered = norms
    folded = [
        copying_scores(tokens.through_norms(w, final, centered), v, o)
        for w, v, o in zip(before, *heads.values(), strict=True)
    ]
    yield from _both("copying_folded", folded, layer)


def _widths(ends: Mapping[str, Tensor], heads: Mapping[str, Sequence[Tensor]]) -> list[int]:
    """Returns the different sizes of the dimension that should be d_model. A factorized embedding has its own."""
    sizes = {ends["W_E"].shape[1], ends["W_U"].shape[0]}
    return sorted(sizes | {w.shape[1] for w in heads["W_V"]} | {w.shape[2] for w in heads["W_O"]})


def norm_weights(context: ProbeContext, blocks: Sequence[Any]) -> tuple[list[Tensor], Tensor, bool] | str:
    """Returns the weights [d_model] of the norm before each attention, those of the last norm, and if they center.

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
    """Returns the weights [d_model] of a norm, 1 if it has none by its kind; None if they cannot be read."""
    if context.model.cfg.normalization_type.endswith("Pre"):
        return torch.ones(context.model.cfg.d_model, device=next(context.model.parameters()).device)
    found = getattr(norm, "w", None)
    return wide(found) if isinstance(found, Tensor) else None


def _both(name: str, scores: Sequence[tuple[Tensor, Tensor]], coords: dict[str, list[int]]) -> Iterable[Reading]:
    """Yields a score and its chance level of all layers, [layer, head]."""
    for part, values in zip(("", "_chance"), zip(*scores, strict=True), strict=True):
        yield Reading(name + part, stack_layers(list(values)), ("layer", "head"), coords)
