"""One number per step of a series with dims, by the name that a user writes; and predictions about such a number."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from stagelens.base import UsageError
from stagelens.experiments import score
from stagelens.timelines import element_names, pack

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


def test_a_star_is_one_line_here_too_because_one_number_is_wanted():
    star = sl.Prediction("all", "level", 1.0, "by hand", series="p/r[layer=1,head=*]")
    with pytest.raises(
        UsageError, match=r"has 2 curves; give one of them: p/r\[layer=1,head=0\], p/r\[layer=1,head=1\]"
    ):
        TIMELINE.scalar("p/r[layer=1,head=*]")
    with pytest.raises(UsageError, match="has 2 curves"):
        score([star], TIMELINE)


@pytest.mark.parametrize("name", ["p/r[layer=0,layer=1]", "p/r[head=1, head=1]"])
def test_a_dim_that_is_given_twice_is_refused(name):
    for read in (TIMELINE.scalar, TIMELINE.__getitem__):
        with pytest.raises(UsageError, match="a dim is given twice"):
            read(name)


@pytest.mark.parametrize("name", ["p/r[layer=0", "p/r layer=0]", "mean(p/r[layer=0)", "[layer=0]"])
def test_wrong_brackets_are_shown_the_right_form(name):
    for read in (TIMELINE.scalar, TIMELINE.__getitem__):
        with pytest.raises(UsageError, match=r"the brackets are wrong; expected .*PROBE/READING\[layer=1,head=0\]"):
            read(name)


def test_a_series_without_dims_has_no_elements():
    line = sl.Timeline([pack(step, [sl.Reading("loss", 1.0 - step)]) for step in range(3)])
    for read in (line.scalar, line.__getitem__):
        with pytest.raises(UsageError, match=r"series 'loss' is one number per step; leave out \[head=0\]"):
            read("loss[head=0]")


def test_labels_with_commas_and_equal_signs_are_found_by_their_names():
    labels = ["a,b", "x=1", "a,b=1", "a,b=1,c=2", "[3]", "I(1)", "lag 2"]
    values = np.arange(7.0)
    line = sl.Timeline(
        [pack(step, [sl.Reading("p/m", values + step, ("group",), {"group": labels})]) for step in (0, 1)]
    )
    for name, value in zip(element_names(line.column("p/m")), values, strict=True):
        assert line.scalar(name)[1].tolist() == [value, value + 1]
        assert line[name].values.tolist() == [value, value + 1]
    with pytest.raises(UsageError, match="unknown group 'a'"):
        line.scalar("p/m[group=a,c=1]")


def test_what_was_never_measured_is_empty():
    line = sl.Timeline([pack(0, [sl.Reading("x", float("nan")), sl.Reading("loss", 1.0)])])
    assert line.scalar("x")[1].tolist() == []
