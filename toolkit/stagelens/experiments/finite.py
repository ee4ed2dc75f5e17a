"""Finds the first loss that is not finite, without waiting for the device at every step."""

from __future__ import annotations

import torch
from torch import Tensor

MANY = 100  # losses that are checked together, at most


class FirstBad:
    """The first step at which a loss was nan or infinite; -1 if none was. One training: []; vectorized seeds: [seed].

    Losses are stored at each step and checked many at a time, so that no step waits for the device.
    """

    def __init__(self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self.step = torch.full(shape, -1, dtype=torch.int64, device=device)
        self._unseen: list[tuple[int, Tensor]] = []

    def note(self, step: int, loss: Tensor) -> None:
        self._unseen.append((step, loss))
        if len(self._unseen) == MANY:
            self.look()

    def look(self) -> Tensor:
        """Checks the losses since the last call. Returns the first bad step so far."""
        if self._unseen:
            steps = torch.tensor([step for step, _ in self._unseen], device=self.step.device)
            bad = ~torch.stack([loss for _, loss in self._unseen]).isfinite()  # [step, ...]
            here = torch.where(bad.any(0), steps[bad.int().argmax(0)], -1)
            self.step = torch.where(self.step < 0, here, self.step)
            self._unseen = []
        return self.step
