"""The components of a head's attention scores, from the moments of its queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from stagelens.recording import wide
from stagelens_probes.norms import ordinary, scale_of

GROUPS = 8  # groups of sequences whose spread gives the standard errors
MODERATE = 1e-3  # the errors contain eighth powers, which are normal in float32 for sizes from this to its inverse
DRAWS = 64  # draws of the chance levels
SAME = 1e-6  # vectors that differ by less than this fraction of their largest entry are the same up to rounding
ROUNDING = 1e-12  # keys whose variance is below this fraction of their mean square are constant up to rounding


@dataclass(frozen=True)
class Moments:
    """Moments of the vectors of each head. Tiny and huge vectors are in units of the head's largest entry.

    Attention scores are inner products. A softmax over keys does not depend on the common part of all keys. So the
    keys of scores are centered, and the queries are not.
    """

    mean: Tensor  # [head, d]
    groups: Tensor  # [group, head, d, d]: the mean of x x^T over the vectors of a group of sequences
    weights: Tensor  # [group]: the fraction of the sequences that are in each group
    n: int  # number of vectors
    centered: bool  # whether the mean was subtracted from x
    varies: bool = True  # whether the vectors of any head differ

    @classmethod
    def of(cls, activation: Tensor, centered: bool) -> Moments:
        """Returns the moments of `activation` [sequence, position, head, d]."""
        x = wide(activation)
        found = replace(cls._of(x, centered), varies=differ(x))
        sizes = found.groups.diagonal(dim1=-2, dim2=-1).mean((0, 2)).sqrt()  # [head]
        if all(ordinary(sizes[None], MODERATE)):
            return found
        return replace(cls._of(x / scale_of(x, (0, 1, 3)), centered), varies=found.varies)

    @classmethod
    def _of(cls, x: Tensor, centered: bool) -> Moments:
        n, positions, heads, d = x.shape
        mean = x.mean((0, 1))
        x = x - mean if centered else x
        size = -(-n // min(GROUPS, n))  # sequences of a group; the last group may have fewer
        count = -(-n // size)
        sizes = torch.tensor([min(size, n - size * i) for i in range(count)], dtype=torch.float64)
        x = pad(x, (0, 0, 0, 0, 0, 0, 0, size * count - n)) if size * count > n else x
        x = x.reshape(count, size * positions, heads, d).transpose(1, 2).contiguous()  # [group, head, sample, d]
        groups = x.mT @ x / (sizes.to(x) * positions)[:, None, None, None]
        return cls(mean.cpu(), groups.cpu(), sizes / n, n * positions, centered)

    @cached_property
    def total(self) -> Tensor:
        """The mean of x x^T over all vectors, [head, d, d], in float64."""
        return torch.einsum("g,ghij->hij", self.weights, self.groups.double())

    def not_centered(self) -> Tensor:
        """Returns the second moment about 0, [head, d, d], in float64."""
        mean = self.mean.double()
        return self.total + mean[:, :, None] * mean[:, None, :] if self.centered else self.total

    @property
    def form(self) -> tuple[Any, ...]:
        """Moments of equal form can be `joined`."""
        return (*self.groups.shape, self.groups.dtype, *self.weights.tolist())

    @classmethod
    def joined(cls, layers: Sequence[Moments]) -> Moments:
        """Returns the moments of the heads of several layers, which have equal forms."""
        mean, groups = torch.cat([one.mean for one in layers]), torch.cat([one.groups for one in layers], dim=1)
        return replace(layers[0], mean=mean, groups=groups)

    def heads(self, n: int) -> Moments:
        """Returns the moments of `n` heads, several of which share each head of these."""
        times = n // len(self.mean)
        if times == 1:
            return self
        return replace(self, mean=self.mean.repeat_interleave(times, 0), groups=self.groups.repeat_interleave(times, 1))


def differ(x: Tensor) -> bool:
    """True if the vectors `x` [sequence, position, head, d] of a head differ by more than rounding, or if all are 0."""
    first = x[:1, :1]
    size = first.abs().amax((0, 1, 3))  # [head]
    for others in (x[-1:, -1:], x):  # the last vector nearly always answers at once
        if not bool(((others - first).abs().amax((0, 1, 3)) <= SAME * size).all()):
            return True
    return not bool(size.any())


def shares(variances: Tensor) -> Tensor:
    """Returns `variances` [..., component] as fractions of their sum; 0 if all variances are 0."""
    total = variances.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, variances / total.clamp(min=torch.finfo(total.dtype).tiny))


def effective_rank(explained: Tensor) -> Tensor:
    """Returns exp of the entropy of the fractions [..., component]; 0 if all variances are 0."""
    entropy: Tensor = torch.special.entr(explained).sum(-1)
    return entropy.exp() * (explained.sum(-1) > 0)


def principal_components(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Returns variances [..., component], largest first, and components [..., component, d] of `moment` [..., d, d]."""
    finite = moment.isfinite().all(-1).all(-1)[..., None]  # LAPACK may crash on nan
    values, vectors = torch.linalg.eigh(torch.where(finite[..., None], moment, 0.0))
    values = torch.where(finite, values, torch.nan)
    return values.flip(-1).clamp(min=0), vectors.flip(-1).transpose(-1, -2)


def varying(key: Moments) -> Tensor:
    """Returns the covariance of the keys, [head, d, d]; 0 if they are constant up to rounding."""
    covariance = key.total
    trace, mean_square = (matrix.diagonal(dim1=-2, dim2=-1).sum(-1) for matrix in (covariance, key.not_centered()))
    return torch.where((trace <= ROUNDING * mean_square)[:, None, None], 0.0, covariance)


def score_components(query: Moments, key: Moments, factor: Tensor) -> dict[str, Tensor]:
    """Returns the components of the scores: `score_spectrum`, and `score_top` and `score_rank` with standard errors.

    The scores of all queries and keys are s = sum_i sigma_i y_i z_i, where y_i depends on the query and z_i on the key.
    The y_i have mean square 1 and are uncorrelated, and so are the z_i. The sigma_i are the singular values of
    M^(1/2) C^(1/2), where M is the second moment of the queries and C the covariance of the keys. `factor` F
    [head, component, d] has F^T F = M, so the mean squares sigma_i^2 of the components are the eigenvalues of F C F^T.
    """
    C = varying(key)
    values, vectors = principal_components(factor @ C @ factor.mT)
    explained = shares(values)
    rank = effective_rank(explained)
    # To first order, the relative change of sigma_i^2 is the sum of the changes of the mean squares of y_i and z_i.
    of_key = vectors @ factor  # [head, component, d]: its product with a key is sigma_i z_i
    of_query = of_key @ C  # its product with a query is sigma_i^2 y_i
    z, y = mean_squares(of_key, key), mean_squares(of_query, query)
    there = explained > ROUNDING
    change = torch.where(there, z + y / torch.where(there, values, 1.0) - 2 * values, 0.0)  # [group, head, component]
    of_shares = ratio_change(change, change.sum(-1, keepdim=True), explained, values.sum(-1, keepdim=True))
    of_rank = -rank * (of_shares * torch.where(there, explained, 1.0).log()).sum(-1)
    return {
        "score_spectrum": explained,
        "score_top": explained[..., 0],
        "score_top_error": standard_error(of_shares[..., 0], query, key),
        "score_rank": rank,
        "score_rank_error": standard_error(of_rank, query, key),
    }


def score_reference(query: Moments, key: Moments, units: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how far the scores' components lie along directions, and its standard error, [head, side, direction].

    The components of the keys, weighted with their mean squares sigma_i^2, have the second moment X = C M C, and those
    of the queries X = M C M. The fraction along a unit vector u of `units` [d, direction] is u^T X u / tr X.
    """
    M, C = query.total, varying(key)
    values, errors = [], []
    for outer, inner, outer_groups, inner_groups in ((C, M, key, query), (M, C, query, key)):
        half = outer @ inner
        outside, inside = outer_groups.groups.double(), inner_groups.groups.double()
        X = half @ outer  # [head, d, d]
        change = half @ outside + outside @ half.mT + outer @ inside @ outer - 3 * X  # [group, head, d, d]
        along, total = along_units(X, units)
        share = torch.where(total == 0, 0.0, along / torch.where(total == 0, 1.0, total))  # [head, direction]
        influence = ratio_change(*along_units(change, units), share, total)
        values.append(share)
        errors.append(standard_error(influence, query, key))
    return torch.stack(values, 1), torch.stack(errors, 1)


def along_units(matrix: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Returns u^T X u, [..., direction], for each u of `units` [d, direction], and tr X, [..., 1]; X is [..., d, d]."""
    return ((matrix @ units) * units).sum(-2), matrix.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)


def mean_squares(rows: Tensor, moments: Moments) -> Tensor:
    """Returns the mean squares of the products of `rows` [head, component, d] with x, [group, head, component]."""
    groups = moments.groups.permute(1, 2, 0, 3)  # [head, d, group, d]
    rows = rows.to(groups)
    products = (rows @ groups.flatten(2)).reshape(*rows.shape[:2], *groups.shape[2:])  # [head, component, group, d]
    return (products * rows[:, :, None]).sum(-1).permute(2, 0, 1).double()


def ratio_change(part: Tensor, total: Tensor, ratio: Tensor, whole: Tensor) -> Tensor:
    """Returns the first-order change of `ratio` if its numerator changes by `part` and its denominator by `total`."""
    return (part - ratio * total) / torch.where(whole == 0, 1.0, whole)


def standard_error(influence: Tensor, *moments: Moments) -> Tensor:
    """Returns the standard error of a function of `moments`, [...]; nan if the sequences are one group.

    `influence` [group, ...] is its change, to first order, if all moments were those of one group of sequences.
    """
    n = len(influence)
    if n == 1:
        return torch.full_like(influence[0], torch.nan)
    weights = next(one.weights for one in moments if len(one.weights) == n)
    weighted = weights.reshape(-1, *[1] * (influence.ndim - 1)) * influence
    return (weighted.square().sum(0) * n / (n - 1)).sqrt()


@lru_cache(maxsize=256)
def isotropic_scores(d: int, n_queries: int, n_keys: int) -> tuple[float, float]:
    """Returns the means of `score_top` and `score_rank` over 64 draws of normal queries and keys in d dimensions.

    All are independent, with covariance 1. A sample is drawn by the triangular factor of its second moment (Bartlett):
    its diagonal is chi-distributed, and the entries above it are normal. Centering the keys removes one of them.
    """
    stream = np.random.default_rng(0)
    tops, ranks = [], []
    for _ in range(DRAWS):
        factors = []
        for n in (n_queries, n_keys - 1):
            k = min(n, d)
            factor = np.triu(stream.standard_normal((k, d)), 1)
            factor[range(k), range(k)] = np.sqrt(stream.chisquare(n - np.arange(k)))
            factors.append(factor)
        if not min(map(len, factors)):
            return 0.0, 0.0  # a single key does not vary
        explained = shares(torch.from_numpy(np.linalg.svd(factors[0] @ factors[1].T, compute_uv=False) ** 2))
        tops.append(float(explained[0]))
        ranks.append(float(effective_rank(explained)))
    return float(np.mean(tops)), float(np.mean(ranks))
