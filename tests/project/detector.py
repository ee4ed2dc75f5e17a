"""Pins the stages that the detector finds in curves of real training runs, in `detector.json` with its `DETECTOR`.

Runs store their stages with the number `DETECTOR`. If stages changed without a new number, old runs would show the old
stages and new runs the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.real_curves import labelled
from stagelens.runs import DETECTOR
from stagelens.stages import Stage, detect_stages

FILE = Path(__file__).with_name("detector.json")
TOLERANCE = 1e-6  # of the largest number of a curve's stages
NUMBERS = ("start", "end", "level")

Found = dict[str, list[dict[str, Any]]]  # the stages of each curve


def measure() -> Found:
    """Returns the stages of every labelled curve: the kind of each, where it starts and ends, and its level."""
    curves = [*labelled("development"), *labelled("hold-out")]
    return {curve.name: [_shortened(stage) for stage in detect_stages(curve.steps, curve.values)] for curve in curves}


def _shortened(stage: Stage) -> dict[str, Any]:
    return {"kind": stage.kind} | {key: float(f"{getattr(stage, key):.9g}") for key in NUMBERS}


def load() -> tuple[int, Found]:
    """Returns the pinned number of the detector and what it found."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    return document["detector"], document["curves"]


def save(found: Found) -> None:
    """Writes one line for each curve."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(stages)}" for name, stages in found.items())
    FILE.write_text(f'{{"detector": {DETECTOR}, "curves": {{\n{lines}\n}}}}\n', encoding="utf-8")


def differences(pinned: Found, found: Found) -> Iterator[str]:
    """Yields one line for each curve whose stages are not as pinned."""
    for name in pinned.keys() | found.keys():
        before, after = pinned.get(name, []), found.get(name, [])
        if [stage["kind"] for stage in before] != [stage["kind"] for stage in after]:
            yield f"{name}: {len(after)} stages, pinned: {len(before)}"
            continue
        numbers = [[stage[key] for stage in stages for key in NUMBERS] for stages in (before, after)]
        off = max((abs(one - other) for one, other in zip(*numbers, strict=True)), default=0.0)
        if off > TOLERANCE * max(map(abs, numbers[0]), default=1.0):
            yield f"{name}: a number of its stages differs by {off:.3g}"
