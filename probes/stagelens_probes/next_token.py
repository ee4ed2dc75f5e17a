"""The tokens of a batch and the next-token loss at each scored position, for the probes that use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens.recording import DoesNotApply, ProbeContext, wide
from stagelens_probes.attention import is_causal
from stagelens_probes.positions import as_index, rows_of

AGREE = {torch.float64: 1e-6, torch.float32: 1e-4}  # relative difference of two equal losses; 2e-2 in half precision


def batch_tokens(batch: Any) -> Tensor | None:
    """Returns the batch itself, or its `tokens` or `input_ids`, if that is int [batch, position]; else None."""
    if isinstance(batch, Mapping):
        batch = batch.get("tokens", batch.get("input_ids"))
    is_tokens = isinstance(batch, Tensor) and batch.ndim == 2 and not (batch.is_floating_point() or batch.is_complex())
    return batch if is_tokens else None


def no_next_token(context: ProbeContext) -> str | None:
    """Returns why the batch has no next tokens to predict; None if it has."""
    tokens = batch_tokens(context.batch)
    if tokens is None:
        return "the batch is not tokens: int [batch, position], or a dict with them as 'tokens' or 'input_ids'"
    if tokens.shape[1] < 2:
        return f"the batch has {tokens.shape[1]} position: there is no next token to predict"
    if not is_causal(context):
        return "the model is bidirectional: it sees the token it would have to predict"
    if context.random_batch:
        return "the batch is random tokens, whose next token nothing predicts; give a batch of real text"
    return context.padding()


def no_logits(context: ProbeContext, tokens: Tensor) -> str | None:
    """Returns why the output is not logits [batch, position, token] of the tokens; None if it is."""
    output = context.output
    if not isinstance(output, Tensor) or output.ndim != 3 or len(output) != len(tokens):
        return "the model's output is not logits [batch, position, token]"
    if output.shape[-1] <= int(tokens.max()):
        return f"the model has {output.shape[-1]} outcomes, fewer than there are tokens"
    shapes = f"the output has {output.shape[1]} positions for {tokens.shape[1]} tokens"
    if output.shape[1] > tokens.shape[1]:
        return f"{shapes}: which tokens they predict is not known"
    if context.loss_function is None and output.shape[1] < tokens.shape[1]:
        return f"{shapes}, and no loss is known to tell which tokens they predict: give the recorder loss="
    return None


def scored_losses(context: ProbeContext) -> tuple[list[int], Tensor]:
    """Returns the scored positions t that have a next token, and the losses there, [batch, position].

    The losses are -log p(token t + 1 | tokens up to t) in nats. Raises DoesNotApply if there are none, or if their mean
    is not the loss that the recorder records. Then the tokens were paired with the wrong logits.
    """
    return context.once(context.output, "next-token losses", lambda: _scored_losses(context))


def _scored_losses(context: ProbeContext) -> tuple[list[int], Tensor]:
    tokens = batch_tokens(context.batch)
    reason = no_next_token(context) or (no_logits(context, tokens) if tokens is not None else None)
    if reason or tokens is None:
        raise DoesNotApply(str(reason))
    n_logits, n_tokens = context.output.shape[1], tokens.shape[1]
    n_inputs = n_tokens if n_logits == n_tokens else n_tokens - 1  # fewer logits belong to the last inputs
    first = n_inputs - n_logits
    rows = rows_of(context.queries, n_logits, n_inputs, "the output")
    positions = [row + first for row in rows if row + first < n_tokens - 1]
    if not positions:
        raise DoesNotApply("no scored position has a next token in the batch")
    logits = wide(
        context.output[:, as_index([t - first for t in positions], tokens.device)]
    )  # [batch, position, token]
    targets = tokens[:, as_index([t + 1 for t in positions], tokens.device)].long()
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").reshape(targets.shape)
    if context.loss is not None:
        _compare(losses.mean(), context.loss, context.output.dtype)
    return positions, losses


def _compare(mean: Tensor, loss: Tensor, dtype: torch.dtype) -> None:
    """Raises DoesNotApply unless the `mean` of the losses by position is the recorded `loss`."""
    found, recorded = float(mean), float(loss)
    near = max(AGREE.get(dtype, 2e-2), AGREE.get(loss.dtype, 2e-2))
    if math.isnan(found) and math.isnan(recorded):
        return
    if not math.isclose(found, recorded, rel_tol=near, abs_tol=near / 100):
        raise DoesNotApply(
            f"the next-token loss at the scored positions is {found:.5g} on average, but the recorded loss is "
            f"{recorded:.5g}: the loss pairs logits and tokens, or weights them, in another way"
        )
