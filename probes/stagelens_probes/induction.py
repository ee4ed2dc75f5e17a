"""Induction: attention to what came after a token, and the heads that make it possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformer_lens import FactoredMatrix

from stagelens import Probe, Reading
from stagelens.probing import DoesNotApply, layers, stack_layers
from stagelens.scene import Scene, Site
from stagelens.seeds import generator
from stagelens_probes.attention import PATTERN, is_causal, normalized, wide
from stagelens_probes.next_token import batch_losses, next_token_loss, no_logits

SEQUENCES = 4
LONGEST_HALF = 32


def repeated_tokens(d_vocab: int, n_ctx: int, seed: int = 0) -> Tensor:
    """[r_1..r_S, r_1..r_S] for 4 sequences of random tokens, int [4, 2S].

    S is as large as n_ctx and the vocabulary allow, up to 32, and the tokens of a half are distinct: each
    token of the second half has one earlier occurrence.
    """
    half = min(n_ctx // 2, d_vocab, LONGEST_HALF)
    stream = generator(seed, "induction")
    halves = torch.stack([torch.randperm(d_vocab, generator=stream)[:half] for _ in range(SEQUENCES)])
    return halves.repeat(1, 2)


def pattern_scores(weights: Tensor) -> Tensor:
    """weights [batch, head, query, key] on repeated tokens -> [head, 3]: prefix, previous, duplicate.

    Each is a mean over batch and queries of the attention to one key. For a query q of the second half, whose
    token stood at q - S before, the key is q - S + 1 (what came next) or q - S (the duplicate); for every
    query but the first it is q - 1.
    """
    second = weights[:, :, weights.shape[-1] // 2 :]  # [batch, head, S, 2S]; row q - S
    scores = (second.diagonal(1, -2, -1), weights.diagonal(-1, -2, -1), second.diagonal(0, -2, -1))
    return torch.stack([score.mean((0, 2)) for score in scores], dim=-1)


def copying_scores(around: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """sum(lambda) / sum|lambda| of the eigenvalues of W_E W_V W_O W_U, [head]; 0 where all are 0.

    around = W_U W_E [d_model, d_model], w_v [head, d_model, d_head], w_o [head, d_head, d_model]. Apart from
    zeros, W_V W_O (W_U W_E) has the same eigenvalues, so nothing as large as d_vocab is formed.
    """
    circuit = FactoredMatrix(w_v.to(around), w_o.to(around) @ around)
    core: Tensor = circuit.BA.cpu()  # [head, d_head, d_head], with the circuit's eigenvalues
    if not core.isfinite().all():
        return core.new_full((len(core),), torch.nan)  # LAPACK crashes on nan
    eigenvalues = torch.linalg.eigvals(core)  # [head, d_head]; FactoredMatrix' own makes eigenvectors too
    size = eigenvalues.abs().sum(-1)
    return torch.where(size > 0, eigenvalues.sum(-1).real / size, 0.0)


def icl_score(losses: Tensor) -> Tensor:
    """Loss late minus early in the context: mean of the last quarter of losses [position] minus the first."""
    quarter = max(1, len(losses) // 4)
    return losses[-quarter:].mean() - losses[:quarter].mean()


class Induction(Probe):
    """Where heads look on repeated random tokens, whether they copy, and what the model gains by context."""

    name = "induction"
    title = "prefix matching, previous-token and duplicate-token attention, and copying, per head"
    gives = ("prefix_matching", "previous_token", "duplicate_token", "copying", "icl_score")
    passes = "1"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._tokens: Tensor | None = None

    def applies(self, scene: Scene) -> str | None:
        cfg = getattr(scene.model, "cfg", None)
        d_vocab, n_ctx = getattr(cfg, "d_vocab", None), getattr(cfg, "n_ctx", None)
        if not d_vocab or d_vocab < 2:
            return "the model has no vocabulary (cfg.d_vocab): there are no tokens to repeat"
        if n_ctx is not None and n_ctx < 4:
            return f"the context is too short to repeat anything: n_ctx = {n_ctx}, and 4 is the least"
        if not scene.sites(PATTERN):
            return f"the model has no hook {PATTERN!r}"
        return None

    def tokens(self, scene: Scene) -> Tensor:
        """The repeated tokens, int [batch, position], on the model's device; drawn once."""
        if self._tokens is None:
            cfg: Any = scene.model.cfg
            self._tokens = repeated_tokens(cfg.d_vocab, getattr(cfg, "n_ctx", None) or 2 * LONGEST_HALF, self.seed)
        parameter = next(scene.model.parameters(), None)
        return self._tokens if parameter is None else self._tokens.to(parameter.device)

    def readings(self, reduced: Any, scene: Scene) -> Iterable[Reading]:  # noqa: ARG002
        tokens = self.tokens(scene)
        scores, output = self._attention(tokens, scene)  # {site: [head, 3]}
        coords = {"layer": layers(scores)}
        for name, values in zip(self.gives, stack_layers(scores).unbind(-1), strict=False):
            yield Reading(name, values, ("layer", "head"), coords)
        if (copying := _copying(scene, list(scores))) is not None:
            yield Reading("copying", copying, ("layer", "head"), coords)
        if (losses := _losses(scene, tokens, output)) is not None:
            yield Reading("icl_score", icl_score(losses))

    def _attention(self, tokens: Tensor, scene: Scene) -> tuple[dict[Site, Tensor], Any]:
        """One pass over `tokens`: the scores at each site, and the model's output."""
        scores: dict[Site, Tensor] = {}

        def score_at(site: Site) -> Any:
            def score(pattern: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
                if pattern.shape[-2:] != (tokens.shape[1], tokens.shape[1]):
                    raise DoesNotApply(
                        f"{site.name!r} has shape {tuple(pattern.shape)} on {tokens.shape[1]} tokens; "
                        f"a query and a key at every token are needed"
                    )
                scores[site] = pattern_scores(normalized(pattern, scene.visible(pattern, site.layer)))

            return score

        sites = scene.sites(PATTERN)
        try:
            with scene.model.hooks(fwd_hooks=[(site.name, score_at(site)) for site in sites]):
                output = scene.model(tokens)
        except DoesNotApply:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise DoesNotApply(f"the model does not run on {list(tokens.shape)} repeated tokens ({reason})") from error
        return scores, output


def _copying(scene: Scene, sites: list[Site]) -> Tensor | None:
    """`copying_scores`, [layer, head]; None where a matrix is missing or the outcomes are not the tokens."""
    modules = dict(scene.model.named_modules())
    attentions = [modules.get(site.name.rpartition(".")[0]) for site in sites]
    w_e, w_u = (getattr(scene.model, name, None) for name in ("W_E", "W_U"))
    w_v, w_o = ([getattr(attention, name, None) for attention in attentions] for name in ("W_V", "W_O"))
    if any(w is None for w in (w_e, w_u, *w_v, *w_o)):
        return None
    if w_u.shape[1] != w_e.shape[0]:  # type: ignore[union-attr]
        return None
    around = wide(w_u @ w_e)  # type: ignore[operator]
    return stack_layers([copying_scores(around, v, o) for v, o in zip(w_v, w_o, strict=True)])  # type: ignore[arg-type]


def _losses(scene: Scene, repeated: Tensor, repeated_output: Any) -> Tensor | None:
    """Next-token losses [position]: of the batch where it has them, else of the repeated tokens, or None."""
    try:
        losses = batch_losses(scene)
        if len(losses) >= 2:
            return losses
    except DoesNotApply:
        pass
    if is_causal(scene) and no_logits(repeated_output, repeated) is None:
        return next_token_loss(repeated_output, repeated)
    return None
