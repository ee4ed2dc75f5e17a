"""Checks: what each constructor accepts, and no check is made without a measurement."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from stagelens.base.errors import StagelensError
from stagelens.claims import (
    Check,
    NoMeasurement,
    Result,
    at_least,
    at_most,
    close,
    equal,
    in_every_seed,
    on_average,
    ordered,
    per_seed,
    reached,
    reported,
    seed_mean,
)
from stagelens.claims.claim import verdict_of


@pytest.mark.parametrize(
    ("measured", "expected", "relative", "holds"),
    [
        (1.029, 1.0, True, True),
        (1.031, 1.0, True, False),
        (10.2, 10.0, True, True),
        (10.2, 10.0, False, False),
        (0.02, 0.0, False, True),
        (0.02, 0.0, True, False),
        ([1.0, 2.0], [1.01, 1.99], True, True),
        ([1.0, 2.0], [1.0, 2.5], True, False),
        (["never", 2.0], [1.0, 2.0], True, False),
    ],
)
def test_close_is_relative_by_default_and_goes_item_by_item(measured, expected, relative, holds):
    assert close("x", measured, expected, 0.03, "Eq. 1", relative=relative).holds is holds


def test_close_reports_the_tolerance():
    assert close("x", 1.0, 1.0, 0.03, "").tolerance == "3%"
    assert close("x", 1.0, 1.0, 0.03, "", relative=False).tolerance == 0.03


@pytest.mark.parametrize(
    ("numbers", "holds"),
    [
        ([1, 2, 3], True),
        ([1, 1, 2], False),
        ([3, 2], False),
        ([1, "not by step 9"], False),
        (["never", "never"], False),
    ],
)
def test_ordered_is_strict_and_rejects_strings(numbers, holds):
    assert ordered("times", numbers, "").holds is holds


def test_limits_include_their_end_and_bind_every_item():
    assert at_most("x", 2, 2, "").holds and not at_most("x", [1, 2.1], 2, "").holds
    assert at_least("x", 2, 2, "").holds and not at_least("x", [3, 1.9], 2, "").holds


def test_equal_compares_sequences_and_numpy_values():
    assert equal("phases", np.array([1, 2]), [1, 2], "").holds
    assert equal("phases", ("a", "b"), ["a", "b"], "").holds
    assert not equal("phases", ["a"], ["a", "b"], "").holds


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, [], [1.0, math.nan], [[1.0], []], "", object()])
def test_no_check_without_a_measurement(value):
    with pytest.raises(NoMeasurement, match=r"cannot hold without a measurement"):
        Check("x", value, 1.0, 0.1, "Fig. 1", True)
    with pytest.raises(NoMeasurement):
        close("x", value, value, 0.1, "")
    with pytest.raises(NoMeasurement):
        at_most("x", value, 1.0, "")


def test_lists_that_do_not_pair_are_an_error():
    with pytest.raises(NoMeasurement, match="do not pair"):
        close("x", [1.0, 2.0], [1.0], 0.1, "")
    with pytest.raises(NoMeasurement, match="two numbers"):
        ordered("x", [1.0], "")


def test_a_check_in_every_seed_holds_only_if_all_seeds_hold():
    both = in_every_seed({0: at_most("x", 1, 2, ""), 4: at_most("x", 3, 2, "")})
    assert not both.holds
    assert (both.measured, both.expected, both.seeds) == ([1, 3], "<= 2", {0: True, 4: False})
    own = in_every_seed({s: close("x", s + 1.0, s + 1.0, 0.1, "") for s in range(2)})
    assert own.holds and own.expected == [1.0, 2.0]
    with pytest.raises(NoMeasurement):
        in_every_seed({})


def test_a_reported_number_is_not_judged():
    check = reported("share", 0.3, "")
    assert not check.judged and check.holds
    assert equal("share", 0.3, 0.3, "").judged
    several = in_every_seed({0: check, 1: reported("share", 0.4, "")})
    assert (several.measured, several.seeds, several.judged) == ([0.3, 0.4], {}, False)


def test_values_become_plain_and_survive_json():
    check = in_every_seed({0: close("x", np.float32(0.5), np.float64(0.5), 0.1, "Eq. 2"), 1: close("x", 1, 1, 0.1, "")})
    result = Result("T1", "toy", "title", "Eq. 2", "holds", "quick", 2, 0.5, (check,))
    assert Result.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False))) == result


def test_an_event_that_did_not_occur_is_a_string_with_the_last_step():
    assert reached([1.0, np.nan, [None, 2]], by=900) == [1.0, "not reached by 900", ["not reached by 900", 2]]
    assert reached(np.inf) == reached([]) == "not reached" and reached(3.5, by=1.0) == 3.5
    for check in (at_least, at_most):
        assert not check("x", reached(None, by=5e6), 0.0, "Fig. 1").holds
    assert not close("x", reached(None), 1.0, 1e9, "Fig. 1").holds
    assert not ordered("x", reached([1.0, None]), "Fig. 1").holds


def test_per_seed_combines_the_checks_of_all_seeds():
    values = {0: 1.0, 3: 2.0}
    assert per_seed(close, "x", values, 1.0, 0.5, "Fig. 1", relative=False) == in_every_seed(
        {s: close("x", v, 1.0, 0.5, "Fig. 1", relative=False) for s, v in values.items()}
    )
    found = per_seed(equal, "length", {0: "ab", 1: "abc"}, 2, "Fig. 1", of=len)
    assert (found.measured, found.expected, found.holds, found.seeds) == ([2, 3], 2, False, {0: True, 1: False})


def test_an_argument_of_a_check_per_seed_may_differ_from_seed_to_seed():
    found = per_seed(close, "level", {0: [1.0], 1: [2.0]}, {0: [1.0], 1: [2.1]}, 0.01, "Eq. 5")
    assert found.expected == [[1.0], [2.1]] and found.seeds == {0: True, 1: False}
    assert per_seed(reported, "x", {0: 1, 1: 2}, "Eq. 5").measured == [1, 2]
    with pytest.raises(NoMeasurement, match="no seed"):
        per_seed(equal, "x", {}, 1, "Eq. 5")


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.95, 1.05), "holds"),
        ((0.8, 1.05), "needs budget"),
        ((0.5, 2.0), "needs budget"),
        ((math.nan, math.nan), "needs budget"),
        (None, "holds"),
    ],
)
def test_an_interval_decides_if_all_of_it_gives_one_answer(interval, verdict):
    check = close("x", 1.0, 1.0, 0.1, "Fig. 1", interval=interval)
    assert (check.verdict, check.holds, bool(check.needs)) == (verdict, verdict == "holds", verdict == "needs budget")


def test_an_interval_outside_of_the_tolerance_differs():
    assert close("x", 1.3, 1.0, 0.1, "Fig. 1", interval=(1.2, 1.4)).verdict == "differs"
    assert close("x", 1.3, 1.0, 0.1, "Fig. 1", interval=(1.05, 1.55)).verdict == "needs budget"
    limits = [at_least("x", 0.1, 0.0, "", interval=ends).verdict for ends in ((0.05, 0.15), (-0.1, 0.3))]
    assert limits == ["holds", "needs budget"]
    assert at_most("x", 0.1, 0.0, "", interval=(0.05, 0.15)).verdict == "differs"
    with pytest.raises(NoMeasurement, match="belongs to one number"):
        at_most("x", [1.0, 2.0], 3.0, "", interval=(1.0, 2.0))


def test_what_an_undecided_check_needs_grows_with_the_square_of_the_width():
    needs = [at_least("x", 1.0, 0.0, "", interval=(1 - h, 1 + h)).needs for h in (1.5, 3.0, 30.0)]
    expected = ["about 3 times as many runs", "about 9 times as many runs", "more than 100 times as many runs"]
    assert needs == expected


def test_the_mean_over_seeds_has_students_interval():
    from scipy import stats

    values = [1.0, 2.0, 4.0, 4.5]
    mean, ends = seed_mean(values)
    known = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean == 2.875 and ends == pytest.approx((known.low, known.high))
    assert seed_mean([3.0]) == (3.0, (-math.inf, math.inf))
    found = on_average(close, "x", {0: 1.0, 1: 1.02, 2: 0.98}, 1.0, 0.1, "Fig. 9")
    assert found.verdict == "holds" and found.measured == pytest.approx(1.0) and found.interval is not None
    assert on_average(close, "x", {0: [1.0]}, 1.0, 0.1, "", of=lambda v: v[0]).verdict == "needs budget"
    missed = on_average(at_least, "x", {0: 1.0, 1: "not reached by 9"}, 0.0, "Fig. 9")
    assert (missed.verdict, missed.measured) == ("differs", "1.0; not reached by 9")


def test_seeds_that_differ_decide_even_if_others_are_undecided():
    wide, off = at_least("x", 1.0, 0.0, "", interval=(-1.0, 3.0)), at_least("x", -1.0, 0.0, "")
    assert in_every_seed({0: wide, 1: off}).verdict == "differs"
    assert in_every_seed({0: wide, 1: at_least("x", 1.0, 0.0, "")}).verdict == "needs budget"


def test_the_verdict_of_a_claim():
    true, false = equal("x", 1, 1, ""), equal("x", 1, 2, "")
    wide = at_least("x", 1.0, 0.0, "", interval=(-1.0, 3.0))
    identity, broken = equal("x", 1, 1, "", sanity=True), equal("x", 1, 2, "", sanity=True)
    verdicts = [verdict_of(checks) for checks in ([true, identity], [true, broken], [true, wide], [wide, false])]
    assert verdicts == ["holds", "differs", "needs budget", "differs"]
    with pytest.raises(StagelensError, match="nothing but sanity checks"):
        verdict_of([identity, reported("y", 1, "")])
    with pytest.raises(StagelensError, match="judged nothing;"):
        verdict_of([reported("y", 1, "")])


def test_a_check_with_an_interval_survives_json():
    check = at_least("x", 1.0, 0.0, "Fig. 1", interval=(-1.0, 3.0), sanity=True)
    written = json.loads(json.dumps(check.to_dict()))
    assert (written["sanity"], written["verdict"], written["interval"]) == (True, "needs budget", [-1.0, 3.0])
    assert Check.from_dict(written) == check
    old = {key: written[key] for key in ("what", "measured", "expected", "tolerance", "reference", "holds", "seeds")}
    assert Check.from_dict(old).verdict == "differs"  # written before checks had intervals
