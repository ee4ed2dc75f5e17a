"""One number per step of a series with dims, by the name that a user writes; and predictions about such a number."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from stagelens.base import UsageError
from stagelens.experiments import score
from stagelens.timelines import pack

VALUES = np.arange(12.0).reshape(3, 2, 2)  # [step, layer, head]
TIMELINE = sl.Timeline([pack(step, [sl.Reading("p/r", VALUES[step], ("layer", "head"))]) for step in range(3)])


def test_a_name_with_brackets_picks_one_number():
    steps, values = TIMELINE.scalar("p/r[layer=1,head=0]")
    assert steps.tolist() == [0, 1, 2] and values.tolist() == VALUES[:, 1, 0].tolist()
    assert TIMELINE.scalar("p/r", {"layer": 1, "head": 0})[1].tolist() == values.tolist()
    assert TIMELINE.scalar("mean(p/r[layer=0])")[1].tolist() == VALUES[:, 0].mean(1).tolist()


def test_an_unknown_part_is_one_line_with_the_known_ones():
    for name, line in (("p/r[layr=1]", "did you mean 'layer'"), ("p/r[layer=1,head=5]", "known: 0, 1"), ("q", "p/r")):
        with pytest.raises(UsageError, match=line.replace("?", r"\?")):
            TIMELINE.scalar(name)
    with pytest.raises(UsageError, match="a single number was expected"):
        TIMELINE.scalar("p/r[layer=1]")


def test_a_prediction_names_its_series_in_the_same_way():
    line = sl.Prediction("line", "curve", lambda steps: 4 * steps + 2, "by hand", series="p/r[layer=1,head=0]")
    other = sl.Prediction("none", "curve", lambda steps: steps, "by hand", series="q/r[layer=1]")
    found, missing = score([line, other], TIMELINE)
    assert found.error == 0 and missing.measured is None and "was not recorded" in missing.note
