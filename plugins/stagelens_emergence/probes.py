"""Probes: the toy model's state and plateau, and the attention of the transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced, Site, layers, stack_layers, wide
from stagelens.timelines import ReadingInfo, first_crossing
from stagelens_emergence.data.transformers import KeyValueBatch, KeyValueEvalBatch, RegressionBatch, answering_pair
from stagelens_emergence.theory import PLATEAU_END

PATTERN = "attn.hook_pattern"


class SingleLocation(Probe):
    """Reads w, W along W* (footnote 1); alpha, the attention to one relevant token; relevant, to all B of them.

    `w_repeated` and `w_rest` are w~ and w of A.4.1: along the first column of W*, and along the others.
    """

    name = "single_location"
    title = "W along the target, and the attention to the relevant token"
    described = {
        "w": ReadingInfo("W along the target W*, over the norm of W*"),
        "w_repeated": ReadingInfo("W along the first column of W*: w~ of A.4.1"),
        "w_rest": ReadingInfo("W along the other columns of W*: w of A.4.1"),
        "alpha": ReadingInfo("attention to one relevant token", (), "fraction", 0, 1, "1 / T"),
        "relevant": ReadingInfo("attention to all B relevant tokens", (), "fraction", 0, 1, "B / T"),
    }
    default = False
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return None if hasattr(context.model, "W_star") else "the model is not the emergence plugin's toy"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        model: Any = context.model
        along, norms = model.along_target(), model.W_star.norm(dim=0)  # [d]
        yield Reading("w", along.sum() / model.W_star.norm())
        yield Reading("w_repeated", along[0] / norms[0])
        yield Reading("w_rest", along[1:].sum() / norms[1:].norm())
        yield Reading("alpha", model.alpha[-1])
        yield Reading("relevant", model.alpha[-model.B :].sum())


class PlateauSteps(Probe):
    """Reads the step at which the loss has fallen to a fifth of its start (D.1); before that there is no reading."""

    name = "plateau_length"
    title = "steps until the loss has fallen to a fifth of its start"
    described = {"steps": ReadingInfo("step at which the loss has fallen to a fifth of its start", (), "steps", 0)}
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        return None if context.loss_function is not None else "there is no loss to measure"

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        assert context.loss is not None
        now = torch.tensor([float(context.step), float(context.loss)], dtype=torch.float64)
        state = self.state
        state.setdefault("first", now)
        before = state.get("before", now)
        if "length" not in state:
            steps, losses = torch.stack([before, now]).T.tolist()
            length = first_crossing(steps, losses, PLATEAU_END * float(state["first"][1]), rising=False)
            if length is not None:
                state["length"] = torch.tensor(length, dtype=torch.float64)
            state["before"] = now
        if "length" in state:
            yield Reading("steps", state["length"])
        else:
            yield Omitted("steps", "the loss has not fallen to a fifth of its start")


def attention_to(pattern: Tensor, keys: Tensor) -> Tensor:
    """Returns the mean attention of the last query to `keys` bool [batch, key]: [head].

    `pattern` is [batch, head, query, key].
    """
    last = wide(pattern[:, :, -1])  # [batch, head, key]
    return torch.einsum("bhk,bk->h", last, keys.to(last.dtype)) / len(last)


def copying(pattern: Tensor, pair: Tensor) -> Tensor:
    """Returns the mean attention from a value to its key, over the pairs bool [batch, pair] of k1 v1 ... q: [head]."""
    to_own_key = wide(pattern[:, :, 1::2, :-1:2].diagonal(dim1=-2, dim2=-1))  # [batch, head, pair]
    return torch.einsum("bhp,bp->h", to_own_key, pair.to(to_own_key.dtype)) / pair.sum()


def selecting(pattern: Tensor, pair: Tensor) -> Tensor:
    """Returns the mean attention from the query q to the values of the pairs bool [batch, pair]: [head]."""
    to_values = wide(pattern[:, :, -1, 1::2])  # [batch, head, pair]
    return torch.einsum("bhp,bp->h", to_values, pair.to(to_values.dtype)) / len(to_values)


class RelevantAttention(Probe):
    """Reads the attention from the last position, where the answer is read, to all copies of the relevant token."""

    name = "relevant_attention"
    title = "attention from the last token to the relevant one, per layer and head"
    described = {
        "mass": ReadingInfo("attention to all copies of the relevant token", ("layer", "head"), "fraction", 0, 1)
    }
    hooks = (PATTERN,)
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if not isinstance(context.batch, RegressionBatch):
            return "the batch does not say which token is relevant"
        return super().applies(context)

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Tensor:  # noqa: ARG002
        return attention_to(activation, context.batch.relevant)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
        yield Reading("mass", stack_layers(reduced), ("layer", "head"), {"layer": layers(reduced)})


class KeyValue(Probe):
    """Reads the induction circuit on sequences without repetition (C.2): `copying` and `selecting`.

    `copying` is the attention from the answering value to its key; `selecting`, from the query to that value.
    `train_loss` and `train_accuracy` are measured on the training distribution.
    """

    name = "key_value"
    title = "copying and selecting attention per layer and head; accuracy on the training distribution"
    described = {
        "copying": ReadingInfo("attention from the answering value to its key", ("layer", "head"), "fraction", 0, 1),
        "selecting": ReadingInfo(
            "attention from the query to the answering value", ("layer", "head"), "fraction", 0, 1
        ),
        "train_loss": ReadingInfo("loss on the training distribution", (), "nats", 0),
        "train_accuracy": ReadingInfo("accuracy on the training distribution", (), "fraction", 0, 1),
    }
    hooks = (PATTERN,)
    passes = "1"
    default = False

    def applies(self, context: ProbeContext) -> str | None:
        if not isinstance(context.batch, KeyValueEvalBatch | KeyValueBatch):
            return "the batch is not one of keys, values and a query"
        return super().applies(context)

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> dict[str, Tensor]:  # noqa: ARG002
        pair = answering_pair(context.batch.tokens)
        return {"copying": copying(activation, pair), "selecting": selecting(activation, pair)}

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        for name in ("copying", "selecting"):
            values = stack_layers([found[name] for found in reduced.values()])
            yield Reading(name, values, ("layer", "head"), {"layer": layers(reduced)})
        if isinstance(context.batch, KeyValueEvalBatch):
            answer, logits = (
                context.batch.train_answer,
                context.output_of(context.batch.train_tokens)[:, -1],
            )  # [n, token]
            yield Reading("train_loss", cross_entropy(logits, answer))
            yield Reading("train_accuracy", (logits.argmax(-1) == answer).float().mean())
        else:
            for name in ("train_loss", "train_accuracy"):
                yield Omitted(name, "the batch has no sequences of the training distribution")
