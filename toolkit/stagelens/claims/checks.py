"""Checks: one comparison each of what was measured with what a paper states.

A check contains what was measured, what was expected, the tolerance, and the place in the paper. A check without a
measurement (nan, infinity, None or an empty list) is an error, so that no claim holds without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from stagelens.base import StagelensError, plain

REPORTED = "reported, not judged"
NOT_REACHED = "not reached"

Value = Any  # a number, a string, or a list of values
Interval = tuple[float, float]  # the ends of a 95% confidence interval


class NoMeasurement(StagelensError):
    """A check without a finite number: the claim that makes it is in error."""


@dataclass(frozen=True)
class Check:
    """One comparison of a claim.

    `measured` and `expected` are numbers, strings, or lists of them; `tolerance` is a number in the units of
    `measured`, or words ("3%", "strict"). `seeds` says for each seed whether the check holds; it is empty if the check
    does not depend on a seed.

    `sanity` marks an identity: a check of our own formulas or code. It must hold, but it is no evidence for the paper.
    `interval` is the 95% confidence interval of `measured`. `needs` says what would decide the check if the interval
    covers both answers; it is empty if the check is decided.
    """

    what: str
    measured: Value
    expected: Value
    tolerance: float | str
    reference: str
    holds: bool
    seeds: Mapping[int, bool] = field(default_factory=dict)
    sanity: bool = False
    interval: tuple[float, float] | None = None
    needs: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", _there(self.what, self.measured))
        object.__setattr__(self, "expected", _python(self.expected))
        object.__setattr__(self, "holds", bool(self.holds) and not self.needs)

    @property
    def judged(self) -> bool:
        """True if the check can differ; False if it only reports a number."""
        return bool(self.expected != REPORTED)

    @property
    def verdict(self) -> str:
        """`holds`, `differs`, `needs budget`, or nothing if the check only reports a number."""
        if not self.judged:
            return ""
        return "needs budget" if self.needs else "holds" if self.holds else "differs"

    def to_dict(self) -> dict[str, Any]:
        seeds = {str(seed): held for seed, held in self.seeds.items()}
        return asdict(self) | {"seeds": seeds, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Check:
        known = {name: value for name, value in values.items() if name != "verdict"}
        ends = values.get("interval")
        interval = None if ends is None else (ends[0], ends[1])
        seeds = {int(seed): held for seed, held in values["seeds"].items()}
        return cls(**{**known, "seeds": seeds, "interval": interval})


def close(
    what: str,
    measured: Value,
    expected: Value,
    tolerance: float,
    reference: str,
    *,
    relative: bool = True,
    sanity: bool = False,
    interval: Interval | None = None,
) -> Check:
    """Checks |measured - expected| <= tolerance |expected|; with `relative=False` <= tolerance. Lists item by item.

    `interval` is the 95% confidence interval of one measured number. With it, the check holds if the whole interval is
    within the tolerance, differs if none of it is, and needs budget otherwise.
    """
    pairs = _pairs(what, _there(what, measured), _python(expected))
    limits = [_limits(e, tolerance, relative) for _, e in pairs]
    written = f"{100 * tolerance:g}%" if relative else tolerance
    return _within(what, measured, limits, interval, (expected, written, reference), sanity)


def equal(what: str, measured: Value, expected: Value, reference: str, *, sanity: bool = False) -> Check:
    """Checks that measured = expected exactly: for counts, names and sequences of them."""
    same = _python(measured) == _python(expected)
    return Check(what, measured, expected, "exact", reference, same, sanity=sanity)


def ordered(what: str, numbers: Sequence[float | str], reference: str, *, sanity: bool = False) -> Check:
    """Checks that each number is larger than the one before. A word ("not reached") in place of a number fails."""
    values = _there(what, numbers)
    if len(values) < 2:
        raise NoMeasurement(f"{what}: an order needs two numbers, and there are {len(values)}")
    rising = all(_is_number(a) and _is_number(b) and a < b for a, b in pairwise(values))
    return Check(what, values, "strictly increasing", "strict", reference, rising, sanity=sanity)


def at_most(
    what: str,
    measured: Value,
    limit: float,
    reference: str,
    *,
    sanity: bool = False,
    interval: Interval | None = None,
) -> Check:
    """Checks that measured <= limit; of a list, every item. `interval` is as in `close`."""
    limits = [(-math.inf, limit)] * len(_items(_there(what, measured)))
    return _within(what, measured, limits, interval, (f"<= {limit:g}", 0.0, reference), sanity)


def at_least(
    what: str,
    measured: Value,
    limit: float,
    reference: str,
    *,
    sanity: bool = False,
    interval: Interval | None = None,
) -> Check:
    """Checks that measured >= limit; of a list, every item. `interval` is as in `close`."""
    limits = [(limit, math.inf)] * len(_items(_there(what, measured)))
    return _within(what, measured, limits, interval, (f">= {limit:g}", 0.0, reference), sanity)


def reported(what: str, measured: Value, reference: str, *, interval: Interval | None = None) -> Check:
    """Reports a number without judging it. A claim also needs a check that is judged."""
    return Check(what, measured, REPORTED, "none", reference, True, interval=interval)


def reached(value: Value, words: str = NOT_REACHED, *, by: float | None = None) -> Value:
    """Returns `value` as a check takes it: nan, infinity, None and an empty list become words; lists item by item.

        >>> reached([120.0, None], by=900)
        [120.0, 'not reached by 900']

    For measurements of something that may not happen within a run, which ends at the step or time `by`. Words fail
    every numeric check, so the claim differs; without them it would be in error.
    """
    value = _python(value)
    if isinstance(value, list) and value:
        return [reached(item, words, by=by) for item in value]
    if not _lacking(value):
        return value
    return words if by is None else f"{words} by {by:g}"


def per_seed(
    check: Callable[..., Check],
    what: str,
    by_seed: Mapping[int, Any],
    *arguments: Any,
    of: Callable[[Any], Value] | None = None,
    **options: Any,
) -> Check:
    """Returns one check over several seeds: it holds if `check` holds for the value of every seed.

        runs = lab.each_seed("mine/task")
        yield per_seed(equal, "drops of the loss", runs, 3, "Fig. 1", of=drops)

    which compares `drops(run)` with 3 for the run of each seed.

    Args:
        check: `close`, `equal`, `ordered`, `at_most`, `at_least` or `reported`.
        what: what is measured, the first argument of `check`.
        by_seed: the measured value of each seed; with `of`, what `of` computes it from, such as a run or a timeline.
        arguments: the further arguments of `check`. A mapping among them has a value for each seed, such as an
            expected value that depends on the seed.
        of: function from an item of `by_seed` to the measured value.
        options: the keyword arguments of `check`.
    """

    def of_seed(seed: int, argument: Any) -> Any:
        return argument[seed] if isinstance(argument, Mapping) else argument

    return in_every_seed(
        {
            seed: check(what, value if of is None else of(value), *(of_seed(seed, a) for a in arguments), **options)
            for seed, value in by_seed.items()
        }
    )


def on_average(
    check: Callable[..., Check],
    what: str,
    by_seed: Mapping[int, Any],
    *arguments: Any,
    of: Callable[[Any], Value] | None = None,
    **options: Any,
) -> Check:
    """Returns `check` of the mean over seeds, with the mean's 95% confidence interval by Student's t.

        yield on_average(close, "plateau length", runs, 1382, 0.15, "Fig. 9", of=plateau)

    The arguments are those of `per_seed`; `check` is `close`, `at_most`, `at_least` or `reported`. If the interval
    covers both answers, the check needs budget. A word among the values, such as "not reached", fails the check.
    """
    values = [_python(value if of is None else of(value)) for value in by_seed.values()]
    if not all(_is_number(value) for value in values):
        return replace(check(what, "; ".join(map(str, values)), *arguments, **options), holds=False)
    mean, interval = seed_mean(values)
    return check(what, mean, *arguments, interval=interval, **options)


def seed_mean(values: Sequence[float]) -> tuple[float, Interval]:
    """Returns the mean over seeds and its 95% confidence interval by Student's t, infinite for one seed."""
    from scipy import stats

    count = len(values)
    if not count:
        raise NoMeasurement("a mean over seeds has no seed")
    mean = math.fsum(values) / count
    if count < 2:
        return mean, (-math.inf, math.inf)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return mean, (mean - half, mean + half)


def in_every_seed(checks: Mapping[int, Check]) -> Check:
    """Returns one check for several seeds. It holds if all `checks` hold; `measured` lists their values."""
    if not checks:
        raise NoMeasurement("a check over seeds has no seed")
    first = next(iter(checks.values()))
    expected = [check.expected for check in checks.values()]
    differs = any(check.verdict == "differs" for check in checks.values())
    return replace(
        first,
        measured=[check.measured for check in checks.values()],
        expected=first.expected if all(value == first.expected for value in expected) else expected,
        holds=all(check.holds for check in checks.values()),
        seeds={seed: check.holds for seed, check in checks.items()} if first.judged else {},
        interval=first.interval if len(checks) == 1 else None,
        needs="" if differs else next((check.needs for check in checks.values() if check.needs), ""),
    )


def _within(
    what: str,
    measured: Value,
    limits: Sequence[Interval],
    interval: Interval | None,
    written: tuple[Value, float | str, str],
    sanity: bool,
) -> Check:
    """Returns the check that each measured number is within its limits; `written` is what the check shows of them."""
    items = _items(_python(measured))
    expected, tolerance, reference = written
    needs = ""
    if interval is None or not all(map(_is_number, items)):
        inside = all(_is_number(item) and low <= item <= high for item, (low, high) in zip(items, limits, strict=True))
    elif len(items) != 1:
        raise NoMeasurement(f"{what}: a confidence interval belongs to one number, and there are {len(items)}")
    else:
        inside, needs = _decide(items[0], interval, *limits[0])
        interval = interval if all(map(math.isfinite, interval)) else None
    return Check(what, measured, expected, tolerance, reference, inside, {}, sanity, interval, needs)


def _decide(value: float, interval: Interval, low: float, high: float) -> tuple[bool, str]:
    """Returns whether the whole interval is within the limits; and what would decide if only a part of it is.

    The width of an interval falls like the root of the number of runs.
    """
    start, end = interval
    if not (math.isfinite(start) and math.isfinite(end)):
        return False, "more runs: these give no confidence interval"
    if low <= start and end <= high:
        return True, ""
    if end < low or start > high:
        return False, ""
    reach, distance = max(value - start, end - value), min(abs(value - low), abs(value - high))
    times = (reach / distance) ** 2 if distance else math.inf
    return False, f"about {math.ceil(times)} times as many runs" if times <= 100 else "more than 100 times as many runs"


def _limits(expected: Value, tolerance: float, relative: bool) -> Interval:
    """Returns the ends of what is close to `expected`; nothing is close to a word."""
    if not _is_number(expected):
        return math.inf, -math.inf
    room = tolerance * (abs(expected) if relative else 1.0)
    return expected - room, expected + room


def _there(what: str, value: Value) -> Value:
    """Returns `value` in plain Python; raises an error if it is not a measurement."""
    value = _python(value)
    if lacking := _lacking(value):
        raise NoMeasurement(f"{what}: a claim cannot hold without a measurement, and this one is {lacking}")
    return value


def _pairs(what: str, measured: Value, expected: Value) -> list[tuple[Any, float]]:
    """Returns (measured, expected), item by item."""
    ours, theirs = _items(measured), _items(expected)
    if len(ours) != len(theirs):
        raise NoMeasurement(f"{what}: measured {measured!r} and expected {expected!r} do not pair")
    return list(zip(ours, theirs, strict=True))


def _items(value: Value) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float)


def _python(value: Value) -> Value:
    """Returns `value` without numpy's types; nan stays, because it is an error."""
    return plain(value, keep_nan=True)


def _lacking(value: Value) -> str:
    """Returns what is wrong with a measured value; empty if nothing is."""
    if isinstance(value, list):
        return next(filter(None, map(_lacking, value)), "") if value else "empty"
    if isinstance(value, str):
        return "" if value else "empty"
    if isinstance(value, int | float):
        return "" if math.isfinite(value) else str(value)
    return "missing" if value is None else f"a {type(value).__name__}"
