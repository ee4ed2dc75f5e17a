"""What probes of next-token prediction share: the batch's tokens and the loss at each position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens.probing import DoesNotApply
from stagelens.scene import Scene
from stagelens_probes.attention import is_causal, wide


def batch_tokens(batch: Any) -> Tensor | None:
    """int [batch, position]: the batch itself, or its `tokens` or `input_ids`; None where there are none."""
    if isinstance(batch, Mapping):
        batch = batch.get("tokens", batch.get("input_ids"))
    is_tokens = isinstance(batch, Tensor) and batch.ndim == 2 and not (batch.is_floating_point() or batch.is_complex())
    return batch if is_tokens else None


def no_next_token(scene: Scene) -> str | None:
    """Why the batch has no next tokens to predict, or None where it has."""
    tokens = batch_tokens(scene.batch)
    if tokens is None:
        return "the batch is not tokens: int [batch, position], or a dict with them as 'tokens' or 'input_ids'"
    if tokens.shape[1] < 2:
        return f"the batch has {tokens.shape[1]} position: there is no next token to predict"
    if not is_causal(scene):
        return "the model is bidirectional: it sees the token it would have to predict"
    return None


def no_logits(output: Any, tokens: Tensor) -> str | None:
    """Why `output` is not logits [batch, position, token] of the tokens, or None where it is."""
    if not isinstance(output, Tensor) or output.ndim != 3 or len(output) != len(tokens):
        return "the model's output is not logits [batch, position, token]"
    if output.shape[-1] <= int(tokens.max()):
        return f"the model has {output.shape[-1]} outcomes, fewer than there are tokens"
    return None


def batch_losses(scene: Scene) -> Tensor:
    """`next_token_loss` of the shared pass, computed once for all probes that ask; says why where there is none."""
    tokens = batch_tokens(scene.batch)
    reason = no_next_token(scene) or (no_logits(scene.output, tokens) if tokens is not None else None)
    if reason or tokens is None:
        raise DoesNotApply(str(reason))
    return scene.once(scene.output, "next-token loss", lambda: next_token_loss(scene.output, tokens))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """[position]: mean over the batch of -log p(token t+1 | tokens to t) in nats, wherever there is a t+1.

    logits: [batch, position, token]; tokens: [batch, position]. Logits as many as tokens belong to each token, and the
    last of them has no target. Fewer logits belong to the last tokens: a model may predict only the end of a sequence.
    """
    if logits.shape[1] >= tokens.shape[1]:
        logits = logits[:, : tokens.shape[1] - 1]
    targets = tokens[:, -logits.shape[1] :].long()
    return cross_entropy(wide(logits).transpose(1, 2), targets, reduction="none").mean(0)
