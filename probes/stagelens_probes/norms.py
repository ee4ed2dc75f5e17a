"""Norms of tensors whose squares would underflow or overflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.linalg import vector_norm

from stagelens.recording import wide

SMALL = 1e-8  # its fourth power is a normal number of float32


def norm(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of all entries of `tensor`, a scalar, in float32 or better."""
    return row_norms(tensor.reshape(1, -1))[0]


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Returns `norm` of each tensor, [tensor]."""
    sizes = torch.stack([vector_norm(wide(tensor)) for tensor in tensors])
    return torch.stack(
        [size if fine else norm(x) for size, fine, x in zip(sizes, ordinary(sizes), tensors, strict=True)]
    )


def row_norms(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of each `tensor[i]`, [row]; `tensor` is [row, ...].

    The square of 1e-23 is 0 in float32. If a norm is not of ordinary size, each row is divided by its scale before it
    is squared.
    """
    rows = wide(tensor).flatten(1)
    if not rows.shape[1]:
        return rows.new_zeros(len(rows))
    sizes: Tensor = vector_norm(rows, dim=1)
    if all(ordinary(sizes)) or is_zero(rows):
        return sizes
    scale = scale_of(rows, (1,))  # [row, 1]
    return torch.mul(vector_norm(rows / scale, dim=1), scale[:, 0])


def ordinary(sizes: Tensor) -> list[bool]:
    """Returns for each of `sizes` if squares of numbers of that size neither underflow nor overflow in float32.

    Returns False for all under `torch.vmap`, where values cannot be inspected.
    """
    try:
        found: list[bool] = ((sizes > SMALL) & (sizes < 1 / SMALL)).tolist()
    except RuntimeError:
        return [False] * len(sizes)
    return found


def is_zero(tensor: Tensor) -> bool:
    """Returns True if all entries are 0; False under `torch.vmap`, where values cannot be inspected."""
    try:
        return not tensor.any()
    except RuntimeError:
        return False


def scale_of(tensor: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Returns the power of two just below the largest |entry| over `dim`; 1 if that entry is 0 or not finite.

    The dimensions `dim` stay, with size 1. Dividing by a power of two is exact, so that equal variances stay equal.
    """
    largest = vector_norm(tensor, torch.inf, dim=dim, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest.log2().floor().exp2(), 1.0)


def joint_norm(norms: Iterable[Tensor]) -> Tensor:
    """Returns the norm of a vector that consists of parts with these `norms`, each a scalar."""
    return norm(torch.stack(list(norms)))


def product_norms(a: Tensor, b: Tensor) -> Tensor:
    """Returns the Frobenius norms of a b^T, [row], of `a` and `b` [row, m, n], without making the product [m, m].

    |a b^T|^2 = tr (a^T a) (b^T b). If they are not of ordinary size, both are scaled first, because the fourth power of
    1e-12 is 0 in float32.
    """
    a, b = wide(a), wide(b)
    grams = [x.mT @ x for x in (a, b)]
    sizes: Tensor = (grams[0] * grams[1]).sum((1, 2)).clamp(min=0).sqrt()
    if all(all(ordinary(one)) for one in (*(gram.diagonal(dim1=1, dim2=2).sum(-1) for gram in grams), sizes)):
        return sizes
    scales = scale_of(a, (1, 2)), scale_of(b, (1, 2))
    grams = [(x / scale).mT @ (x / scale) for x, scale in zip((a, b), scales, strict=True)]
    return (grams[0] * grams[1]).sum((1, 2)).clamp(min=0).sqrt() * (scales[0] * scales[1])[:, 0, 0]
