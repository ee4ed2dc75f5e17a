"""Einsums: which of them are products of batches of matrices, as in attention written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

Axes = tuple[int, ...]


@dataclass(frozen=True)
class MatrixProduct:
    """An einsum that computes left [..., row, inner] times right [..., inner, column] = result [..., row, column].

    Each field is the permutation that brings an operand, or the result, into this order. With `swapped`, the second
    operand is the left one.
    """

    left: Axes
    right: Axes
    result: Axes
    swapped: bool


@lru_cache(maxsize=256)
def matrix_product(equation: str) -> MatrixProduct | None:
    """Returns how an einsum is a product of matrices, such as `bqhd,bkhd->bhqk`; None if it is something else.

    Of the two letters that only one operand has, the row is the one that comes first in the result.
    """
    terms = re.fullmatch("([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", equation.replace(" ", ""))
    if terms is None or any(len({*term}) < len(term) for term in terms.groups()):
        return None
    one, other, result = terms.groups()
    inner = ({*one} & {*other}) - {*result}
    batch = "".join(letter for letter in result if letter in one and letter in other)
    free = [letter for letter in result if letter not in batch]
    if len(inner) != 1 or len(free) != 2 or len(batch) not in (1, 2) or (free[0] in one) == (free[1] in one):
        return None
    summed, swapped = inner.pop(), free[0] in other
    left, right = (other, one) if swapped else (one, other)
    ordered = (left, batch + free[0] + summed), (right, batch + summed + free[1]), (result, batch + free[0] + free[1])
    if any(len(term) != len(order) for term, order in ordered):
        return None
    axes = [tuple(term.index(letter) for letter in order) for term, order in ordered]
    return MatrixProduct(axes[0], axes[1], axes[2], swapped)


def back(x: Tensor, axes: Axes) -> Tensor:
    """Undoes `x.permute(axes)`."""
    return x.permute([axes.index(axis) for axis in range(len(axes))])
