"""What both transformer tasks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stagelens import Task
from stagelens.models import HookedRootModule


class TransformerTask(Task):
    """A transformer that is read at its last position and trained at a constant learning rate."""

    unpredicted = "the paper's theory is about the toy model; for transformers it gives power laws over a sweep only"

    def optimizer(self, model: HookedRootModule) -> torch.optim.Optimizer:
        """Returns plain Adam or plain SGD."""
        kind = torch.optim.Adam if self.config.optimizer == "adam" else torch.optim.SGD
        return kind(model.parameters(), lr=self.config.lr)

    def queries(self) -> slice:
        return slice(-1, None)

    def stage_names(self) -> Sequence[str]:
        return ["emergence"]
