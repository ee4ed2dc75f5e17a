"""Numbers that change steadily: a smooth decay has no stages, alone or among other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.stages.components import LASTING, lasting
from stagelens.stages.detect import detect_stages
from stagelens.stages.pieces import Array
from stagelens.stages.tables import Table

ENOUGH = 120  # points: of more, uniformly many say whether a number has a transition


def without_decays(steps: NDArray[Any], tables: Sequence[Table], **settings: Any) -> list[Table]:
    """Returns the tables without the numbers whose change lasts but that have no transition of their own.

    `settings` are those of `detect_stages`.
    """

    points = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), ENOUGH)).round().astype(int))

    def is_decay(values: Array) -> bool:
        return not detect_stages(steps[points], values[points], **settings).transitions

    kept = []
    for table in tables:
        lasts = lasting(table.values) > LASTING
        used = [j for j, column in enumerate(table.values.T) if not (lasts[j] and is_decay(column))]
        if used:
            names = tuple(table.names[j] for j in used)
            kept.append(Table(table.series, names, np.asarray(table.values[:, used])))
    return kept
