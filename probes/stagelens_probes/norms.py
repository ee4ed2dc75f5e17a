"""Norms of tensors whose squares would underflow or overflow."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.linalg import vector_norm

from stagelens.recording import wide


def norm(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of all entries of `tensor`, a scalar, in float32 or better."""
    return row_norms(tensor.reshape(1, -1))[0]


def row_norms(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of each `tensor[i]`, [row]; `tensor` is [row, ...].

    Each row is divided by its scale before it is squared: the square of 1e-23 is 0 in float32.
    """
    rows = wide(tensor).flatten(1)
    if not rows.shape[1]:
        return rows.new_zeros(len(rows))
    scale = scale_of(rows, (1,))  # [row, 1]
    sizes: Tensor = vector_norm(rows / scale, dim=1) * scale[:, 0]
    return sizes


def scale_of(tensor: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Returns the power of two just below the largest |entry| over `dim`; 1 if that entry is 0 or not finite.

    The dimensions `dim` stay, with size 1. Dividing by a power of two is exact, so that equal variances stay equal.
    """
    largest = vector_norm(tensor, torch.inf, dim=dim, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest.log2().floor().exp2(), 1.0)


def joint_norm(norms: Iterable[Tensor]) -> Tensor:
    """Returns the norm of a vector that consists of parts with these `norms`, each a scalar."""
    return norm(torch.stack(list(norms)))
