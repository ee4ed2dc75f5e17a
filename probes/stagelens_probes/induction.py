"""Induction: heads that attend to the token after the last occurrence of the current one, and the heads they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import DoesNotApply, Omitted, ProbeContext, layers, stack_layers
from stagelens_probes import gaps
from stagelens_probes.attention import PATTERN
from stagelens_probes.copying import copying
from stagelens_probes.described import INDUCTION
from stagelens_probes.gaps import Gapped, gapped_tokens, run_scores
from stagelens_probes.next_token import scored_losses
from stagelens_probes.own_sequences import prefix_matching
from stagelens_probes.repeats import (
    FEW,
    FEWEST_TOKENS,
    LARGE,
    LONGEST,
    ONE_SEQUENCE,
    SCORES,
    SEQUENCES,
    SHORTEST,
    Repeats,
    asked_keys,
    chance,
    mean_and_error,
    repeated_tokens,
    sequence_scores,
)
from stagelens_probes.token_pass import attention, read_patterns

FEWEST_POSITIONS = 4  # positions that a task must score for `icl_score`, which compares quarters of them
EARLY, LATE = 50, 500  # positions of `icl_score_fixed`
BY_GAP = "prefix_matching_by_gap"
OTHERS = (*SCORES[1:], BY_GAP, "copying", "copying_folded", "icl_score", "icl_score_fixed")  # than prefix_matching
OWN = "the task names the induction target of its own sequences, on which prefix matching alone is measured"


def icl_score(losses: Tensor) -> Tensor:
    """Returns the mean loss of the last quarter of positions minus that of the first: [...] from [..., position]."""
    quarter = max(1, losses.shape[-1] // 4)
    return losses[..., -quarter:].mean(-1) - losses[..., :quarter].mean(-1)


class Induction(Probe):
    """The attention of heads when random tokens repeat, their copying scores, and the gain from context."""

    name = "induction"
    title = "prefix matching, previous-token and duplicate-token attention, and copying, per head"
    gives = (
        *(f"{score}{part}" for score in (*SCORES, BY_GAP) for part in ("", "_error", "_chance")),
        *("copying", "copying_chance", "copying_folded", "copying_folded_chance"),
        *("icl_score", "icl_score_error", "icl_score_fixed", "icl_score_fixed_error"),
    )
    described = INDUCTION
    passes = "1, and 1 if the context is longer than 128"

    def __init__(self, seed: int = 0, sequences: int = SEQUENCES) -> None:
        super().__init__()
        self.seed, self.sequences = seed, sequences
        self._repeats: Repeats | None = None
        self._gapped: Gapped | None = None

    def applies(self, context: ProbeContext) -> str | None:
        if context.induction_target is not None:
            return super().applies(context)
        if not (getattr(getattr(context.model, "cfg", None), "d_vocab", None) or 0) > 1:
            return "the model has no vocabulary (cfg.d_vocab): there are no tokens to repeat"
        if not context.sites(PATTERN):
            return f"the model has no hook {PATTERN!r}"
        return None

    def repeats(self, context: ProbeContext) -> Repeats:
        """Returns the sequences with a repeated segment, on the model's device. They are drawn once."""
        if self._repeats is None:
            cfg: Any = context.model.cfg
            n_ctx = getattr(cfg, "n_ctx", None) or LONGEST
            large = sum(p.numel() for p in context.model.parameters()) > LARGE
            self._repeats = repeated_tokens(cfg.d_vocab, min(n_ctx, FEW) if large else n_ctx, self.seed, self.sequences)
        return self._repeats.to(_device(context))

    def gapped(self, size: int, context: ProbeContext) -> Gapped:
        """Returns sequences of `size` tokens with repeats after several gaps, on the model's device; drawn once."""
        if self._gapped is None or self._gapped.tokens.shape[1] != size:
            n = max(1, min(self.sequences, gaps.MOST_TOKENS // size))
            self._gapped = gapped_tokens(context.model.cfg.d_vocab, size, n, self.seed)
        return self._gapped.to(_device(context))

    def readings(self, reduced: Any, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        if context.induction_target is not None:
            yield from prefix_matching(context.induction_target, context)
            yield from (Omitted(name, OWN) for name in OTHERS)
            return
        try:
            yield from self._scores(context)
        except DoesNotApply as reason:
            yield from (Omitted(name, str(reason)) for name in SCORES)
        try:
            yield from self._by_gap(context)
        except DoesNotApply as reason:
            yield Omitted(BY_GAP, str(reason))
        yield from copying(context)
        yield from _icl_scores(context)

    def _scores(self, context: ProbeContext) -> Iterable[Reading]:
        """Yields the scores of the pass over repeated tokens. If it raises DoesNotApply, it yields nothing."""
        if reason := _too_small(context):
            raise DoesNotApply(reason)
        repeats = self.repeats(context)

        def read(pattern: Tensor, visible: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
            weights = attention(pattern, visible)
            key = ("asked", self.seed, self.sequences, weights.dtype)
            asked = context.constant(key, lambda: asked_keys(repeats).to(weights.dtype))
            uniform = context.constant((*key, id(visible)), lambda: chance(visible.to(weights.dtype), asked))
            return *mean_and_error(sequence_scores(weights, asked)), uniform

        found = read_patterns(repeats.tokens, context, read)
        coords = {"layer": layers(found)}
        mean, error = (stack_layers([parts[i] for (parts,) in found.values()]) for i in (0, 1))  # [layer, head, score]
        uniform = torch.stack([parts[2] for (parts,) in found.values()])  # [layer, score]
        for i, name in enumerate(SCORES):
            yield Reading(name, mean[..., i], ("layer", "head"), coords)
            yield Reading(f"{name}_error", error[..., i], ("layer", "head"), coords)
            yield Reading(f"{name}_chance", uniform[..., i], ("layer",), coords)

    def _by_gap(self, context: ProbeContext) -> Iterable[Reading]:
        """Yields prefix matching after short and long gaps. If it raises DoesNotApply, it yields nothing."""
        size = _context_length(context)
        if reason := _no_gaps(size, context):
            raise DoesNotApply(reason)
        gapped = self.gapped(size, context)

        def read(pattern: Tensor, visible: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
            runs, uniform = run_scores(pattern, visible, gapped.key[block])
            return *mean_and_error(runs), uniform

        found = read_patterns(gapped.tokens, context, read, gapped.query)
        coords = {"layer": layers(found), "gap": gapped.gaps}
        by_gap = [[torch.stack(part, dim=-1) for part in zip(*gap, strict=True)] for gap in found.values()]
        mean, error, uniform = (list(column) for column in zip(*by_gap, strict=True))  # of each layer, [(head), gap]
        yield Reading(BY_GAP, stack_layers(mean), ("layer", "head", "gap"), coords)
        yield Reading(f"{BY_GAP}_error", stack_layers(error), ("layer", "head", "gap"), coords)
        yield Reading(f"{BY_GAP}_chance", torch.stack(uniform), ("layer", "gap"), coords)


def _device(context: ProbeContext) -> torch.device:
    """Returns the device of the model's first parameter; the CPU if there is none."""
    parameter = next(context.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _context_length(context: ProbeContext) -> int:
    """Returns the positions of the measured sequences, or the model's context if that is shorter."""
    n_ctx = getattr(context.model.cfg, "n_ctx", None)
    return min(size for size in (n_ctx, context.n_inputs or gaps.SHORT) if size)


def _no_gaps(size: int, context: ProbeContext) -> str | None:
    """Returns why repeats after several gaps are not measured; None if they are."""
    if size <= gaps.SHORT:
        return f"the sequences have {size} positions; gaps are compared in sequences of more than {gaps.SHORT}"
    if context.model.cfg.d_vocab < gaps.FEWEST_TOKENS:
        few = f"{context.model.cfg.d_vocab} tokens are too few to repeat segments after several gaps"
        return f"{few}: {gaps.FEWEST_TOKENS} is the least"
    return None


def _too_small(context: ProbeContext) -> str | None:
    """Returns why segments of two lengths cannot repeat in the model's context; None if they can."""
    cfg: Any = context.model.cfg
    n_ctx = getattr(cfg, "n_ctx", None) or LONGEST
    if n_ctx < SHORTEST:
        return f"the context is too short to repeat segments of two lengths: n_ctx = {n_ctx}, {SHORTEST} is the least"
    if cfg.d_vocab < FEWEST_TOKENS:
        return f"{cfg.d_vocab} tokens are too few to repeat segments of two lengths: {FEWEST_TOKENS} is the least"
    return None


def _icl_scores(context: ProbeContext) -> Iterable[Reading | Omitted]:
    """Yields `icl_score` and `icl_score_fixed`, with standard errors over sequences, or why they are omitted."""
    try:
        positions, losses = scored_losses(context)
    except DoesNotApply as error:
        yield from (Omitted(name, str(error)) for name in ("icl_score", "icl_score_fixed"))
        return
    if len(positions) < FEWEST_POSITIONS:
        scored = f"the task scores {len(positions)} position{'s' * (len(positions) > 1)}"
        reason = f"{scored}, and at least {FEWEST_POSITIONS} are needed to compare late with early ones"
        yield Omitted("icl_score", reason)
    else:
        yield from _with_error("icl_score", icl_score(losses))
    if not {EARLY, LATE} <= set(positions):
        reason = f"the loss is scored up to position {positions[-1]}, and not at both {EARLY} and {LATE}"
        yield Omitted("icl_score_fixed", reason)
    else:
        late, early = (losses[:, positions.index(position)] for position in (LATE, EARLY))
        yield from _with_error("icl_score_fixed", late - early)


def _with_error(name: str, values: Tensor) -> Iterable[Reading | Omitted]:
    """Yields the mean of `values` [sequence], and its standard error; that is omitted if there is one sequence."""
    yield Reading(name, values.mean())
    if len(values) > 1:
        yield Reading(f"{name}_error", mean_and_error(values)[1])
    else:
        yield Omitted(f"{name}_error", ONE_SEQUENCE)
