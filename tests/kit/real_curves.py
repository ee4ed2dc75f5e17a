"""Curves of the project's own training runs, with transitions labelled by eye."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Window = tuple[float, float]  # steps
FOLDER = Path(__file__).parents[1] / "stages" / "real"


@dataclass(frozen=True)
class Labelled:
    name: str
    steps: Array  # [point]
    values: Array  # [point]
    transitions: list[Window] | None  # None: not clear by eye
    optional: list[Window]  # further transitions may be found in each, or not

    def agrees(self, found: Sequence[float]) -> bool:
        """True if exactly one found time lies in each window, and no other lies outside the optional ones."""
        windows = self.transitions or []
        once = all(sum(low <= at <= high for at in found) == 1 for low, high in windows)
        return once and all(any(low <= at <= high for low, high in [*windows, *self.optional]) for at in found)


def labelled(split: str) -> list[Labelled]:
    """Returns the curves of a split, "development" or "hold-out", whose transitions are clear by eye."""
    labels = json.loads((FOLDER / "labels.json").read_text())["curves"]
    with np.load(FOLDER / "curves.npz") as file:
        return [
            Labelled(
                name,
                file[f"{name}:steps"].astype(float),
                file[f"{name}:values"].astype(float),
                label["transitions"],
                label["optional"],
            )
            for name, label in labels.items()
            if label["split"] == split and label["transitions"] is not None
        ]
