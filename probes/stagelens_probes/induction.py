"""Induction: heads that attend to the token after the last occurrence of the current one, and the heads they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformer_lens import FactoredMatrix

from stagelens import Probe, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, Site, layers, stack_layers, wide
from stagelens_probes.attention import PATTERN, normalized
from stagelens_probes.next_token import scored_losses
from stagelens_probes.norms import scale_of
from stagelens_probes.repeats import (
    FEWEST_TOKENS,
    LONGEST,
    SCORES,
    SHORTEST,
    Repeats,
    chance,
    mean_and_error,
    repeated_tokens,
    sequence_scores,
)

FEWEST_POSITIONS = 4  # positions that a task must score for `icl_score`, which compares quarters of them
ROUNDING = 0.01  # rounding error of a row's sum; that of 256 weights in bfloat16 is smaller


def attention(pattern: Tensor, visible: Tensor) -> Tensor:
    """Returns the weights of `pattern` [sequence, head, query, key] on the `visible` keys [query, key].

    Softmax attention is returned unchanged, also if a sink takes a part of each row. Unnormalized (linear) attention,
    which has negative weights or rows with a sum above 1, is returned as |a| / sum |a|.
    """
    weights = wide(pattern)
    if (weights >= 0).all() and (weights.sum(-1) <= 1 + ROUNDING).all():
        return weights
    return normalized(pattern, visible)


def in_units(matrix: Tensor) -> Tensor:
    """Returns each matrix of `matrix` [..., m, n] divided by the power of two next to its largest entry."""
    return matrix / scale_of(matrix, (-2, -1))


def copying_scores(around: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """Returns sum(lambda) / sum|lambda| over the eigenvalues of W_E W_V W_O W_U, [head]; 0 if all of them are 0.

    `around` is W_U W_E [d_model, d_model], `w_v` is [head, d_model, d_head], `w_o` is [head, d_head, d_model]. Apart
    from zeros, W_V W_O (W_U W_E) has the same eigenvalues, so no matrix of size d_vocab is needed. The matrices are
    scaled first, which does not change the ratio: otherwise products of tiny numbers would underflow.
    """
    around, w_v, w_o = (in_units(matrix.to(around)) for matrix in (around, w_v, w_o))
    circuit = FactoredMatrix(w_v, w_o @ around)
    core: Tensor = circuit.BA.cpu()  # [head, d_head, d_head], with the circuit's eigenvalues
    if not core.isfinite().all():
        return core.new_full((len(core),), torch.nan)  # LAPACK crashes on nan
    eigenvalues = torch.linalg.eigvals(core)  # [head, d_head]; those of FactoredMatrix come with eigenvectors
    size = eigenvalues.abs().sum(-1)
    return torch.where(size > 0, eigenvalues.sum(-1).real / size, 0.0)


def icl_score(losses: Tensor) -> Tensor:
    """Returns the mean loss of the last quarter of positions minus that of the first: [...] from [..., position]."""
    quarter = max(1, losses.shape[-1] // 4)
    return losses[..., -quarter:].mean(-1) - losses[..., :quarter].mean(-1)


class Induction(Probe):
    """The attention of heads when random tokens repeat, their copying scores, and the gain from context."""

    name = "induction"
    title = "prefix matching, previous-token and duplicate-token attention, and copying, per head"
    gives = (
        *(f"{score}{part}" for score in SCORES for part in ("", "_error", "_chance")),
        *("copying", "icl_score", "icl_score_error"),
    )
    passes = "1"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._repeats: Repeats | None = None

    def applies(self, context: ProbeContext) -> str | None:
        if not (getattr(getattr(context.model, "cfg", None), "d_vocab", None) or 0) > 1:
            return "the model has no vocabulary (cfg.d_vocab): there are no tokens to repeat"
        if not context.sites(PATTERN):
            return f"the model has no hook {PATTERN!r}"
        return None

    def repeats(self, context: ProbeContext) -> Repeats:
        """Returns the sequences with a repeated segment, on the model's device. They are drawn once."""
        if self._repeats is None:
            cfg: Any = context.model.cfg
            self._repeats = repeated_tokens(cfg.d_vocab, getattr(cfg, "n_ctx", None) or LONGEST, self.seed)
        parameter = next(context.model.parameters(), None)
        return self._repeats if parameter is None else self._repeats.to(parameter.device)

    def readings(self, reduced: Any, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        try:
            yield from self._scores(context)
        except DoesNotApply as reason:
            yield from (Omitted(name, str(reason)) for name in SCORES)
        yield _copying(context)
        yield from _icl_score(context)

    def _scores(self, context: ProbeContext) -> Iterable[Reading]:
        """Yields the scores of the pass over repeated tokens. If it raises DoesNotApply, it yields nothing."""
        if reason := _too_small(context):
            raise DoesNotApply(reason)
        found = self._attention(self.repeats(context), context)
        coords = {"layer": layers(found)}
        mean, error = (stack_layers([parts[i] for parts in found.values()]) for i in (0, 1))  # [layer, head, score]
        uniform = torch.stack([parts[2] for parts in found.values()])  # [layer, score]
        for i, name in enumerate(SCORES):
            yield Reading(name, mean[..., i], ("layer", "head"), coords)
            yield Reading(f"{name}_error", error[..., i], ("layer", "head"), coords)
            yield Reading(f"{name}_chance", uniform[..., i], ("layer",), coords)

    def _attention(self, repeats: Repeats, context: ProbeContext) -> dict[Site, tuple[Tensor, Tensor, Tensor]]:
        """Runs the model once. Returns each site's scores and standard errors [head, score], and chance [score]."""
        found: dict[Site, tuple[Tensor, Tensor, Tensor]] = {}
        n, size = repeats.tokens.shape

        def score_at(site: Site) -> Any:
            def score(pattern: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
                if pattern.shape[0] not in (1, n) or pattern.shape[-2:] != (size, size):
                    raise DoesNotApply(
                        f"{site.name!r} has shape {tuple(pattern.shape)} on {size} tokens; "
                        f"a query and a key at every token are needed"
                    )
                visible = context.visible(pattern, site.layer)
                weights = attention(pattern, visible).expand(n, *pattern.shape[1:])
                found[site] = (*mean_and_error(sequence_scores(weights, repeats)), chance(visible, repeats))

            return score

        sites = context.sites(PATTERN)
        try:
            with context.model.hooks(fwd_hooks=[(site.name, score_at(site)) for site in sites]):
                context.output_of(repeats.tokens)
        except DoesNotApply:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise DoesNotApply(f"the model does not run on {[n, size]} repeated tokens ({reason})") from error
        return found


def _too_small(context: ProbeContext) -> str | None:
    """Returns why segments of two lengths cannot repeat in the model's context; None if they can."""
    cfg: Any = context.model.cfg
    n_ctx = getattr(cfg, "n_ctx", None) or LONGEST
    if n_ctx < SHORTEST:
        return f"the context is too short to repeat segments of two lengths: n_ctx = {n_ctx}, {SHORTEST} is the least"
    if cfg.d_vocab < FEWEST_TOKENS:
        return f"{cfg.d_vocab} tokens are too few to repeat segments of two lengths: {FEWEST_TOKENS} is the least"
    return None


def _copying(context: ProbeContext) -> Reading | Omitted:
    """Returns `copying_scores`, [layer, head]; omitted if a matrix is missing or the outcomes are not the tokens."""
    sites = context.sites(PATTERN)
    modules = dict(context.model.named_modules())
    attentions = [modules.get(site.name.rpartition(".")[0]) for site in sites]
    named: dict[str, Any] = {name: getattr(context.model, name, None) for name in ("W_E", "W_U")}
    heads = {name: [getattr(attention, name, None) for attention in attentions] for name in ("W_V", "W_O")}
    given = {name: [w] for name, w in named.items()} | heads
    if missing := [name for name, weights in given.items() if any(w is None for w in weights)]:
        return Omitted("copying", f"the model has no {', '.join(missing)}")
    w_e, w_u = named.values()
    if w_u.shape[1] != w_e.shape[0]:
        return Omitted("copying", f"the model's {w_u.shape[1]} outcomes are not its {w_e.shape[0]} tokens")
    around = in_units(wide(w_u)) @ in_units(wide(w_e))
    scores = [copying_scores(around, v, o) for v, o in zip(*heads.values(), strict=True)]
    return Reading("copying", stack_layers(scores), ("layer", "head"), {"layer": layers(dict.fromkeys(sites))})


def _icl_score(context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields the `icl_score` of the positions that the task scores, and its standard error over sequences.

    Both are omitted if there are few positions or no next tokens; the error also if the batch is one sequence.
    """
    try:
        positions, losses = scored_losses(context)
    except DoesNotApply as error:
        yield Omitted("icl_score", str(error))
        return
    if len(positions) < FEWEST_POSITIONS:
        scored = f"the task scores {len(positions)} position{'s' * (len(positions) > 1)}"
        reason = f"{scored}, and at least {FEWEST_POSITIONS} are needed to compare late with early ones"
        yield Omitted("icl_score", reason)
        return
    yield Reading("icl_score", icl_score(losses.mean(0)))
    if len(losses) > 1:
        yield Reading("icl_score_error", mean_and_error(icl_score(losses))[1])
    else:
        yield Omitted("icl_score_error", "the batch is one sequence: there is no spread over sequences")
