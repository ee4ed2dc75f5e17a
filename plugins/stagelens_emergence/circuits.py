"""Where the transformers look: at the relevant token, from a value to its key, from the query to its answer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced, Site, layers, stack_layers, wide
from stagelens_emergence.sequences import Examined, Located, Recalled, answering_pair

PATTERN = "attn.hook_pattern"


def attention_to(pattern: Tensor, keys: Tensor) -> Tensor:
    """[head]: mean attention of the last query of `pattern` [batch, head, query, key] to `keys` bool [batch, key]."""
    last = wide(pattern[:, :, -1])  # [batch, head, key]
    return torch.einsum("bhk,bk->h", last, keys.to(last.dtype)) / len(last)


def copying(pattern: Tensor, pair: Tensor) -> Tensor:
    """[head]: the mean attention from a value to its key, of the pairs bool [batch, pair] of k1 v1 k2 v2 ... q."""
    to_own_key = wide(pattern[:, :, 1::2, :-1:2].diagonal(dim1=-2, dim2=-1))  # [batch, head, pair]
    return torch.einsum("bhp,bp->h", to_own_key, pair.to(to_own_key.dtype)) / pair.sum()


def selecting(pattern: Tensor, pair: Tensor) -> Tensor:
    """[head]: the mean attention from the query q to the values of the pairs bool [batch, pair]."""
    to_values = wide(pattern[:, :, -1, 1::2])  # [batch, head, pair]
    return torch.einsum("bhp,bp->h", to_values, pair.to(to_values.dtype)) / len(to_values)


class RelevantAttention(Probe):
    """How much the place where the answer is read looks at the relevant token, all of its copies together."""

    name = "relevant_attention"
    title = "attention from the last token to the relevant one, per layer and head"
    gives = ("mass",)
    hooks = (PATTERN,)
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if not isinstance(context.batch, Located):
            return "the batch does not say which token is relevant"
        return super().applies(context)

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Tensor:  # noqa: ARG002
        return attention_to(activation, context.batch.relevant)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        yield Reading("mass", stack_layers(reduced), ("layer", "head"), {"layer": layers(reduced)})


class KeyValue(Probe):
    """The induction circuit on sequences without repetition (C.2), and the accuracy on the ones that are trained on.

    `copying`: from the value that answers to its key; `selecting`: from the query to the value that answers.
    """

    name = "key_value"
    title = "copying and selecting attention per layer and head; accuracy on the training distribution"
    gives = ("copying", "selecting", "train_loss", "train_accuracy")
    hooks = (PATTERN,)
    passes = "1"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if not isinstance(context.batch, Examined | Recalled):
            return "the batch is not one of keys, values and a query"
        return super().applies(context)

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> dict[str, Tensor]:  # noqa: ARG002
        pair = answering_pair(context.batch.tokens)
        return {"copying": copying(activation, pair), "selecting": selecting(activation, pair)}

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        for name in ("copying", "selecting"):
            values = stack_layers([found[name] for found in reduced.values()])
            yield Reading(name, values, ("layer", "head"), {"layer": layers(reduced)})
        if isinstance(context.batch, Examined):
            answer = context.batch.train_answer
            logits = context.output_of(context.batch.train_tokens)[:, -1]  # [n, token]
            yield Reading("train_loss", cross_entropy(logits, answer))
            yield Reading("train_accuracy", (logits.argmax(-1) == answer).float().mean())
        else:
            for name in ("train_loss", "train_accuracy"):
                yield Omitted(name, "the batch has no sequences of the training distribution")
