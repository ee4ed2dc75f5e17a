"""Moves of several curves that happen together: each time explains as many of them as possible.

A move is an interval on the axis. Moves that share a point belong together. The fewest points that touch all
intervals are found by going through them in the order of their ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NARROW = 0.01  # of the axis: on either side of its steepest point a move takes this much at least


@dataclass(frozen=True)
class Move:
    """One transition of one curve, in positions on the axis; `size` is how far it goes."""

    curve: int
    start: float
    at: float
    end: float
    size: float


@dataclass(frozen=True)
class Together:
    """Moves that belong together. Start, steepest point and end are means, weighted by the squared sizes."""

    moves: tuple[Move, ...]

    @property
    def size(self) -> float:
        """The length of the move in the space of all curves."""
        return float(np.sqrt(sum(move.size**2 for move in self.moves)))

    @property
    def start(self) -> float:
        return self._mean([move.start for move in self.moves])

    @property
    def at(self) -> float:
        return self._mean([move.at for move in self.moves])

    @property
    def end(self) -> float:
        return self._mean([move.end for move in self.moves])

    def _mean(self, values: Sequence[float]) -> float:
        return float(np.average(values, weights=[move.size**2 for move in self.moves]))


def together(moves: Sequence[Move]) -> list[Together]:
    """Returns the fewest groups of moves of which each shares a point of the axis, in the order of time.

    Two groups with no plateau between them, because one starts before the other ends, become one.
    """
    left = sorted(moves, key=_last)
    found = []
    while left:
        point = _last(left[0])
        found.append(Together(tuple(move for move in left if _first(move) <= point)))
        left = [move for move in left if _first(move) > point]
    joined: list[Together] = []
    for group in sorted(found, key=lambda group: group.at):
        while joined and joined[-1].end >= group.start:
            group = Together(joined.pop().moves + group.moves)
        joined.append(group)
    return joined


def _first(move: Move) -> float:
    return min(move.start, move.at - NARROW)


def _last(move: Move) -> float:
    return max(move.end, move.at + NARROW)
