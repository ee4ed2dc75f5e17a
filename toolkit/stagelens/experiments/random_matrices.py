"""Random matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def haar(n: int, generator: torch.Generator, count: int | None = None) -> torch.Tensor:
    """Returns a random orthogonal matrix, uniform over all of them (Haar measure), float64 [n, n].

        >>> from stagelens.base import generator
        >>> q = haar(3, generator(0, "rotation"))
        >>> bool((q @ q.T - q.new_ones(3).diag()).abs().max() < 1e-12)
        True

    With `count`, that many independent ones, [count, n, n]. The same generator state gives the same matrices.
    """
    import torch

    shape = (n, n) if count is None else (count, n, n)
    gaussian = torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()
    q, r = np.linalg.qr(gaussian)
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))  # without them, q would not be uniform
    return torch.from_numpy(q * signs[..., None, :])
