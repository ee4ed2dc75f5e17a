"""In-context linear regression (section 2.1): its sequences, and the second moments that the loss depends on.

With the zero blocks of section 2.2 the prediction is y = beta^T M x_q, so the squared error is a quadratic form in
M = sum_i v_i k_i q_i^T. Its coefficients are moments of (beta, x_q, y_q), either of a set of sequences or, in closed
form, of their distribution. A step of descent then costs D^4, independent of the number of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stagelens.base import generator
from stagelens.experiments import Floats, haar
from stagelens_linear_icl.config import ProblemConfig


@dataclass(frozen=True)
class Covariance:
    """Lambda, given by its `eigenvalues` [D], largest first, and its `eigenvectors` e_1..e_D as rows [D, D]."""

    eigenvalues: Floats
    eigenvectors: Floats

    @property
    def matrix(self) -> Floats:
        """Lambda, [D, D]."""
        return (self.eigenvectors.T * self.eigenvalues) @ self.eigenvectors

    @property
    def root(self) -> Floats:
        """Lambda^(1/2), [D, D]."""
        return (self.eigenvectors.T * np.sqrt(self.eigenvalues)) @ self.eigenvectors


def random_covariance(eigenvalues: Floats, generator: torch.Generator) -> Covariance:
    """Returns Lambda with these eigenvalues [D] and Haar-distributed eigenvectors."""
    eigenvectors = haar(len(eigenvalues), generator).T.numpy()
    return Covariance(np.sort(eigenvalues)[::-1].copy(), eigenvectors)


def covariance_of(matrix: Floats) -> Covariance:
    """Returns the eigendecomposition of a symmetric matrix [D, D]."""
    values, vectors = np.linalg.eigh(matrix)
    return Covariance(values[::-1].copy(), vectors.T[::-1].copy())


def covariance_from(config: ProblemConfig) -> Covariance:
    """Returns the covariance that `config.spectrum` describes: eigenvalues, a power law or a matrix."""
    spectrum, stream = config.spectrum, generator(config.eigenvectors, "eigenvectors")
    if isinstance(spectrum, str):  # lambda_d is proportional to d^-exponent, with trace 1
        law = np.arange(1, config.D + 1) ** -float(spectrum.partition(":")[2])
        return random_covariance(law / law.sum(), stream)
    values = np.array(spectrum, dtype=float)
    return covariance_of(values) if values.ndim == 2 else random_covariance(values, stream)


class RegressionSequences(NamedTuple):
    """`x` [n, N+1, D] and `y` [n, N+1] of the context and, last, of the query."""

    x: Tensor
    y: Tensor

    @property
    def tokens(self) -> Tensor:
        """Eq. 1 with one token per row, [n, N+1, D+1]; y_q is replaced by 0."""
        shown = self.y.clone()
        shown[:, -1] = 0
        return torch.cat([self.x, shown[..., None]], dim=-1)


def sample_sequences(
    covariance: Covariance, N: int, n: int, generator: torch.Generator, whiten: bool = False
) -> RegressionSequences:
    """Draws n sequences: x ~ N(0, Lambda) at N + 1 positions, one w ~ N(0, I) per sequence, y = w^T x.

    With `whiten` the x of each position have mean zero over the sequences, and the w mean zero and covariance I.
    """
    D = len(covariance.eigenvalues)
    normal = torch.randn(n, N + 2, D, generator=generator, dtype=torch.float64)
    x, w = normal[:, 1:] @ torch.from_numpy(covariance.root), normal[:, 0]  # [n, N+1, D], [n, D]
    if whiten:
        x, w = x - x.mean(0), whitened(w)
    return RegressionSequences(x, (x @ w[..., None]).squeeze(-1))


def whitened(w: Tensor) -> Tensor:
    """Returns w [n, D] with its mean removed and its covariance made I, by the symmetric root of that covariance."""
    centred = w - w.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / (len(w) - 1))
    white: Tensor = centred @ (vectors / values.sqrt()) @ vectors.T
    return white


def examples(sequences: RegressionSequences, every: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns beta = 1/N sum_n y_n x_n (Eq. 2) and x [n, Q, D], and y [n, Q], of Q = 1 query: the last token.

    With `every` (Eq. 9) each token but the first is a query, and beta is over the tokens before it.
    """
    x, y = sequences
    if not every:
        beta = (y[:, :-1, None] * x[:, :-1]).mean(1, keepdim=True)  # [n, 1, D]
        return beta, x[:, -1:], y[:, -1:]
    length = torch.arange(1, x.shape[1], dtype=x.dtype, device=x.device)  # N of each query
    beta = (y[:, :-1, None] * x[:, :-1]).cumsum(1) / length[:, None]  # [n, N, D]
    return beta, x[:, 1:], y[:, 1:]


class RegressionMoments(NamedTuple):
    """The coefficients of L(M) = power - 2 <cross, M> + vec(M)^T second vec(M); vec(M) is row by row.

    power E(y_q^2) [], cross E(beta y_q x_q^T) [D, D], second E(z z^T) [D^2, D^2] with z = vec(beta x_q^T).
    """

    power: Tensor
    cross: Tensor
    second: Tensor


def moments_of(sequences: RegressionSequences, every: bool = False) -> RegressionMoments:
    """Returns the moments of a set of sequences. Their loss is the mean over the set (and the queries of Eq. 9)."""
    beta, x, y = (part.flatten(0, 1) for part in examples(sequences, every))  # [sample, D], [sample, D], [sample]
    z = (beta[:, :, None] * x[:, None, :]).flatten(1)  # [sample, D^2]
    D = x.shape[-1]
    return RegressionMoments(y.square().mean(), (z * y[:, None]).mean(0).reshape(D, D), z.T @ z / len(z))


def full_moments(sequences: RegressionSequences) -> RegressionMoments:
    """Returns the moments for attention with all blocks, in T = sum_i W^V_i (x) W^K_i (x) W^Q_i instead of M.

    The prediction is <T, X X^T / N (x) x_q> (E.1), so cross has the shape of T, [D+1, D+1, D].
    """
    tokens, y = sequences.tokens, sequences.y[:, -1]
    gram = tokens.mT @ tokens / (tokens.shape[1] - 1)  # X X^T / N, [n, D+1, D+1]
    z = torch.einsum("nab,nc->nabc", gram, sequences.x[:, -1])  # [n, D+1, D+1, D]
    flat = z.flatten(1)
    return RegressionMoments(y.square().mean(), (z * y[:, None, None, None]).mean(0), flat.T @ flat / len(flat))


def population_moments(covariance: Covariance, inverse_length: float) -> RegressionMoments:
    """Returns the moments of the distribution: tr Lambda, Lambda^2, E(Lambda_hat^2) (x) Lambda (Eqs. 16-19, 23).

    `inverse_length` is E(1/N), which is 1/N if every context has length N.
    """
    Lambda = covariance.matrix
    hat_squared = Lambda @ Lambda + inverse_length * (Lambda + np.trace(Lambda) * np.eye(len(Lambda))) @ Lambda  # 16
    parts = (np.trace(Lambda), Lambda @ Lambda, np.kron(hat_squared, Lambda))
    return RegressionMoments(*(torch.from_numpy(np.asarray(part)) for part in parts))


def mean_inverse_length(N: int, every: bool = False) -> float:
    """Returns E(1/N) of contexts of length N; with `every` (Eq. 9), of lengths 1..N with equal probability."""
    return float(np.mean(1 / np.arange(1, N + 1))) if every else 1 / N
