"""A small transformer for tests of vectorized seeds, and the distance of two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import stagelens as sl
from stagelens.models import build_transformer

STEPS, PHASE = 8, 4  # updates, and the one that begins the second training phase
SEEDS = (0, 1)
NEAR = 2e-5  # relative to the largest number of a parameter or reading
PROBES = ("weight_norms", "gradient")


class Sizes(sl.TaskConfig):
    steps: int = STEPS
    batch_size: int = 4
    eval_size: int = 4
    heads: int = 2


class Small(sl.Task):
    """A transformer of one layer on random tokens."""

    id = "small/heads"
    title = "a small transformer"
    Config = Sizes
    presets: ClassVar[Any] = {"quick": {}}
    probes: ClassVar[Sequence[str]] = ("attention_sparsity", *PROBES)

    def build_model(self) -> Any:
        c = self.config
        sizes = {"n_layers": 1, "n_heads": c.heads, "d_model": 6, "n_ctx": 5, "d_vocab": 4, "d_mlp": 5}
        return build_transformer(**sizes, activation="gelu", seed=self.seed)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randint(4, (n, 6), generator=generator)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def apart(one: Any, other: Any, scale: float = 1e-30) -> float:
    """The largest difference, relative to the largest number of `other`, or to `scale` if that is larger."""
    one, other = (np.asarray(torch.as_tensor(x).detach().double()) for x in (one, other))
    return float(np.abs(one - other).max(initial=0) / max(np.abs(other).max(initial=0), scale))
