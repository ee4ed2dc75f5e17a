"""How few keys a head attends to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stagelens import Probe, Reading
from stagelens.recording import Omitted, ProbeContext, Reduced, Site, layers, stack_layers
from stagelens_probes.attention import PATTERN, Weights, as_samples, over_sequences, visible_weights
from stagelens_probes.described import ATTENTION_SPARSITY

MEANS = ("entropy", "effective_keys", "top_mass", "sparsity", "first_key_mass")
THIRDS = ("first", "middle", "last")
ONE_SAMPLE = "a standard error needs two sequences, or two queries of one"
NO_THIRDS = "three thirds need three queries"
ONE_SAMPLE_OF_THIRD = "a standard error of each third needs two sequences, or six queries of one"


@dataclass(frozen=True)
class Sparsity:
    """How sparse the attention of a layer's heads is."""

    means: Tensor  # [head, statistic], in the order of MEANS
    errors: Tensor  # [head, statistic], standard errors; nan for one sample
    thirds: Tensor  # [head, third], the sparsity; nan in a third without queries
    third_errors: Tensor  # [head, third]
    first_key_chance: Tensor  # the first key's mass under uniform attention, a scalar
    n_sequences: int
    n_queries: int


@dataclass(frozen=True)
class Measured:
    """The statistics in MEANS for each query of a layer, or of a block of its queries."""

    values: Tensor  # [batch, head, query, statistic]
    first_key: Tensor  # [sequence or 1, query], the first key's mass under uniform attention


def measures_of(pattern: Tensor, site: Site, context: ProbeContext) -> Measured:
    """Returns the statistics in MEANS for each query of `pattern`. They are computed once per hook, for all probes."""
    return context.once(pattern, "sparsity", lambda: _measured(visible_weights(pattern, site, context)))


def _measured(weights: Weights) -> Measured:
    """Returns the statistics in MEANS for each query, [batch, head, query, statistic].

    They are the entropy H = -sum a log a in nats, the effective number of keys exp(H) and the largest weight. Then come
    the sparsity 1 - H / log(number of visible keys) and the weight of the first key.
    """
    a, queries = weights.values, weights.queries
    entropy = torch.cat([_entropy(step) for step in queries.steps(a)], dim=-1)  # [batch, head, query]
    sparsity = 1 - entropy / queries.count.to(a.dtype).log()[:, None]
    values = torch.stack([entropy, entropy.exp(), a.amax(-1), sparsity, a[..., 0]], dim=-1)
    return Measured(values, (queries.visible[..., 0] / queries.count).to(a.dtype))


def _entropy(a: Tensor) -> Tensor:
    """Returns -sum a log a over the keys of `a` [batch, head, query, key], [batch, head, query]; 0 log 0 = 0."""
    log_a = a.clamp(min=torch.finfo(a.dtype).tiny).log_()  # several times faster than special.entr
    return log_a.mul_(a).sum(-1).neg_()


def by_third(sparsity: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of `sparsity` [batch, head, query] over thirds of the queries, and its error: [head, third]."""
    found = []
    n = sparsity.shape[-1]
    for start, end in ((0, -(-n // 3)), (-(-n // 3), -(-2 * n // 3)), (-(-2 * n // 3), n)):
        here = as_samples(sparsity[..., start:end]).mean(-1)  # [sample, head]
        nothing = here.new_full(sparsity.shape[1:2], torch.nan)
        found.append(over_sequences(here) if end > start else (nothing, nothing))
    means, errors = zip(*found, strict=True)
    return torch.stack(means, dim=-1), torch.stack(errors, dim=-1)


def sparsity_of(blocks: Sequence[Measured]) -> Sparsity:
    """Returns the `Sparsity` of a layer from all blocks of its queries."""
    values = blocks[0].values if len(blocks) == 1 else torch.cat([block.values for block in blocks], dim=2)
    first_key = torch.cat([block.first_key for block in blocks], dim=1)
    return Sparsity(
        *over_sequences(as_samples(values).mean(2)),
        *by_third(values[..., MEANS.index("sparsity")]),
        first_key.mean(),
        n_sequences=values.shape[0],
        n_queries=values.shape[2],
    )


class AttentionSparsity(Probe):
    """Entropy, effective number of keys, largest weight, sparsity and mass of the first key, per layer and head."""

    name = "attention_sparsity"
    title = "how few keys a head attends to"
    gives = (
        *MEANS,
        *("perplexity", "sparsity_by_third", "first_key_mass_chance"),
        *(f"{name}_error" for name in (*MEANS, "perplexity", "sparsity_by_third")),
    )
    described = ATTENTION_SPARSITY
    hooks = (PATTERN,)
    samples = True
    stacks = True

    def applies(self, context: ProbeContext) -> str | None:
        return super().applies(context) or context.padding()

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Measured:
        return measures_of(activation, site, context)

    def join(self, parts: Sequence[Measured]) -> Sparsity:
        return sparsity_of(parts)

    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:  # noqa: ARG002
        found: list[Sparsity] = list(reduced.values())
        layer = {"layer": layers(reduced)}
        means, errors = stack_layers([one.means for one in found]), stack_layers([one.errors for one in found])
        perplexity = means[..., :1].exp()
        means, errors = torch.cat([means, perplexity], -1), torch.cat([errors, perplexity * errors[..., :1]], -1)
        known = any(one.n_sequences * one.n_queries > 1 for one in found)
        for index, name in enumerate((*MEANS, "perplexity")):
            yield Reading(name, means[..., index], ("layer", "head"), layer)
            error = Reading(f"{name}_error", errors[..., index], ("layer", "head"), layer)
            yield error if known else Omitted(error.name, ONE_SAMPLE)
        chance = torch.stack([one.first_key_chance for one in found])
        yield Reading("first_key_mass_chance", chance, ("layer",), layer)
        yield from self._thirds(found, layer)

    def _thirds(self, found: list[Sparsity], layer: dict[str, list[int]]) -> Iterable[Reading | Omitted]:
        """Yields the sparsity in each third of the queries, and its standard error."""
        name, dims = "sparsity_by_third", ("layer", "head", "third")
        coords: dict[str, Sequence[Any]] = {**layer, "third": THIRDS}
        if all(one.n_queries < 3 for one in found):
            yield Omitted(name, NO_THIRDS)
            yield Omitted(f"{name}_error", NO_THIRDS)
            return
        yield Reading(name, stack_layers([one.thirds for one in found]), dims, coords)
        errors = Reading(f"{name}_error", stack_layers([one.third_errors for one in found]), dims, coords)
        known = any(one.n_queries >= (3 if one.n_sequences > 1 else 6) for one in found)  # two samples in each third
        yield errors if known else Omitted(errors.name, ONE_SAMPLE_OF_THIRD)
