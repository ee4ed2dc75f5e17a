"""Compares what code printed with what a page or notebook shows."""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def assert_same_text(found: str, stored: str) -> None:
    """Asserts equal words, and numbers equal to 5%, to 0.001 or in the last digit: processors round differently."""
    ours, theirs = (NUMBER.split(text) for text in (found, stored))
    assert [" ".join(part.split()) for part in ours] == [" ".join(part.split()) for part in theirs]
    for one, other in zip(NUMBER.findall(found), NUMBER.findall(stored), strict=True):
        unit = 10.0 ** -len(other.partition(".")[2])
        assert abs(float(one) - float(other)) <= max(1.5 * unit, 1e-3, 0.05 * abs(float(other))), (one, other)
