"""Norms of tensors whose squares would underflow or overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.linalg import vector_norm

from stagelens.recording import wide

SMALL = 1e-8  # its fourth power is a normal number of float32


def norm(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of all entries of `tensor`, a scalar, in float32 or better."""
    return norms([tensor])[0]


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Returns `norm` of each tensor, [tensor].

    Entries are summed in their logical order, so a permuted tensor and its contiguous copy have the same norm.
    """
    sizes = torch.stack([vector_norm(wide(tensor).reshape(-1)) for tensor in tensors])
    return _or_scaled(sizes[:, None], tensors, lambda tensor: tensor.reshape(1, -1))[:, 0]


def row_norms(tensor: Tensor) -> Tensor:
    """Returns the Euclidean norm of each `tensor[i]`, [row]; `tensor` is [row, ...]."""
    return stacked_row_norms([tensor])[0]


def stacked_row_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Returns `row_norms` of each tensor, [tensor, row]. All tensors have the same number of rows."""
    sizes = torch.stack([vector_norm(wide(tensor).flatten(1), dim=1) for tensor in tensors])
    return _or_scaled(sizes, tensors, lambda tensor: tensor.flatten(1))


def _or_scaled(sizes: Tensor, tensors: Sequence[Tensor], rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns `sizes` [tensor, row], the norms of the `rows` of each tensor; scaled ones if they are not ordinary.

    The square of 1e-23 is 0 in float32. If a norm is too small or too large, each row of that tensor is divided by its
    scale before it is squared.
    """
    fine = ordinary(sizes)
    if all(fine):
        return sizes
    if all_zero([one for right, one in zip(fine, tensors, strict=True) if not right]):
        return sizes
    found = zip(sizes, fine, tensors, strict=True)
    return torch.stack([size if right else _scaled_row_norms(wide(rows(one))) for size, right, one in found])


def _scaled_row_norms(rows: Tensor) -> Tensor:
    scale = scale_of(rows, (1,))  # [row, 1]
    return torch.mul(vector_norm(rows / scale, dim=1), scale[:, 0])


def ordinary(sizes: Tensor, small: float = SMALL) -> list[bool]:
    """Returns for each row of `sizes` [row, ...] whether its entries are between `small` and 1 / `small`.

    With the default `small`, their squares then neither underflow nor overflow in float32.

    Returns False for all under `torch.vmap`, where values cannot be inspected.
    """
    try:
        found: list[bool] = ((sizes > small) & (sizes < 1 / small)).flatten(1).all(1).tolist()
    except RuntimeError:
        return [False] * len(sizes)
    return found


def all_zero(tensors: Sequence[Tensor]) -> bool:
    """Returns True if all entries of `tensors` are 0; False under `torch.vmap`, where values cannot be inspected."""
    try:
        return not torch.cat([tensor.flatten() for tensor in tensors]).any()
    except RuntimeError:
        return False


def scale_of(tensor: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Returns the power of two just below the largest |entry| over `dim`; 1 if that entry is 0 or not finite.

    The dimensions `dim` have size 1 in the result. Dividing by a power of two is exact, so equal variances stay equal.
    """
    largest = tensor.abs().amax(dim, keepdim=True)  # many times faster than a norm of order infinity
    return largest.log2().floor().nan_to_num(0.0, 0.0, 0.0).exp2()  # the logarithm of 0 is infinite, too


def joint_norm(norms: Iterable[Tensor]) -> Tensor:
    """Returns the norm of a vector that consists of parts with these `norms`, each a scalar."""
    return norm(torch.stack(list(norms)))


def product_norms(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns the Frobenius norms of a b^T, [pair, row], of `pairs` of a and b [row, m, n].

    It makes no product [m, m]: |a b^T|^2 = tr (a^T a) (b^T b). If several rows of a share one row of b, b has fewer.
    Tiny and huge matrices are scaled first, because the fourth power of 1e-12 is 0 in float32.
    """
    grams = [torch.stack(side) for side in zip(*(_grams(a, b) for a, b in pairs), strict=True)]  # [pair, row, n, n]
    sizes: Tensor = (grams[0] * grams[1]).sum((2, 3)).clamp(min=0).sqrt()  # [pair, row]
    traces = [gram.diagonal(dim1=2, dim2=3).sum(-1) for gram in grams]
    fine = ordinary(torch.stack([*traces, sizes], dim=-1))
    if all(fine):
        return sizes
    found = zip(sizes, fine, pairs, strict=True)
    return torch.stack([size if right else _scaled_product_norms(*pair) for size, right, pair in found])


def _scaled_product_norms(a: Tensor, b: Tensor) -> Tensor:
    scales = [scale_of(wide(x), (1, 2)) for x in (a, b)]
    grams = _grams(*(wide(x) / scale for x, scale in zip((a, b), scales, strict=True)))
    scale_b = scales[1].repeat_interleave(len(a) // len(b), 0)
    return (grams[0] * grams[1]).sum((1, 2)).clamp(min=0).sqrt() * (scales[0] * scale_b)[:, 0, 0]


def _grams(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a^T a and b^T b, [row, n, n] each. Several rows of a may share one row of b."""
    gram_a, gram_b = (x.mT @ x for x in (wide(a), wide(b)))
    return gram_a, gram_b if len(a) == len(b) else gram_b.repeat_interleave(len(a) // len(b), 0)
