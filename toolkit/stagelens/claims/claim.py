"""Claims: what a paper states, as code that measures it.

A claim yields checks. A check contains what was measured, what was expected, the tolerance, and the place in the
paper. A check without a measurement (nan, infinity, None or an empty list) is an error, so that no claim holds without
one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from stagelens.base import StagelensError, plain

if TYPE_CHECKING:
    from stagelens.claims.lab import Lab

BUDGETS = ("quick", "paper")  # in increasing order
VERDICTS = ("holds", "differs", "needs budget", "error")
REPORTED = "reported, not judged"
NOT_REACHED = "not reached"

Value = Any  # a number, a string, or a list of values


class NoMeasurement(StagelensError):
    """A check without a finite number: the claim that makes it is in error."""


@dataclass(frozen=True)
class Check:
    """One comparison of a claim.

    `measured` and `expected` are numbers, strings, or lists of them; `tolerance` is a number in the units of
    `measured`, or words ("3%", "strict"). `seeds` says for each seed whether the check holds; it is empty if the check
    does not depend on a seed.
    """

    what: str
    measured: Value
    expected: Value
    tolerance: float | str
    reference: str
    holds: bool
    seeds: Mapping[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", _there(self.what, self.measured))
        object.__setattr__(self, "expected", _python(self.expected))
        object.__setattr__(self, "holds", bool(self.holds))

    @property
    def judged(self) -> bool:
        """True if the check can differ; False if it only reports a number."""
        return bool(self.expected != REPORTED)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": {str(seed): held for seed, held in self.seeds.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Check:
        return cls(**{**values, "seeds": {int(seed): held for seed, held in values["seeds"].items()}})


def close(
    what: str, measured: Value, expected: Value, tolerance: float, reference: str, *, relative: bool = True
) -> Check:
    """Checks |measured - expected| <= tolerance |expected|; with `relative=False` <= tolerance. Lists item by item."""
    pairs = _pairs(what, _there(what, measured), _python(expected))
    near = [
        _is_number(m) and _is_number(e) and abs(m - e) <= tolerance * (abs(e) if relative else 1.0) for m, e in pairs
    ]
    return Check(what, measured, expected, f"{100 * tolerance:g}%" if relative else tolerance, reference, all(near))


def equal(what: str, measured: Value, expected: Value, reference: str) -> Check:
    """Checks that measured = expected exactly: for counts, names and sequences of them."""
    return Check(what, measured, expected, "exact", reference, _python(measured) == _python(expected))


def ordered(what: str, numbers: Sequence[float | str], reference: str) -> Check:
    """Checks that each number is larger than the one before. A word ("not reached") in place of a number fails."""
    values = _there(what, numbers)
    if len(values) < 2:
        raise NoMeasurement(f"{what}: an order needs two numbers, and there are {len(values)}")
    rising = all(_is_number(a) and _is_number(b) and a < b for a, b in pairwise(values))
    return Check(what, values, "strictly increasing", "strict", reference, rising)


def at_most(what: str, measured: Value, limit: float, reference: str) -> Check:
    """Checks that measured <= limit; of a list, every item."""
    values = _items(_there(what, measured))
    return Check(what, measured, f"<= {limit:g}", 0.0, reference, all(_is_number(v) and v <= limit for v in values))


def at_least(what: str, measured: Value, limit: float, reference: str) -> Check:
    """Checks that measured >= limit; of a list, every item."""
    values = _items(_there(what, measured))
    return Check(what, measured, f">= {limit:g}", 0.0, reference, all(_is_number(v) and v >= limit for v in values))


def reported(what: str, measured: Value, reference: str) -> Check:
    """Reports a number without judging it. A claim also needs a check that is judged."""
    return Check(what, measured, REPORTED, "none", reference, True)


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


def in_every_seed(checks: Mapping[int, Check]) -> Check:
    """Returns the checks of several seeds as one. It holds if all of them do; `measured` lists their values."""
    if not checks:
        raise NoMeasurement("a check over seeds has no seed")
    first = next(iter(checks.values()))
    expected = [check.expected for check in checks.values()]
    return replace(
        first,
        measured=[check.measured for check in checks.values()],
        expected=first.expected if all(value == first.expected for value in expected) else expected,
        holds=all(check.holds for check in checks.values()),
        seeds={seed: check.holds for seed, check in checks.items()} if first.judged else {},
    )


class Claim(ABC):
    """A statement of a paper. A subclass says what is measured:

        class Drops(Claim):
            id, title, reference = "X1", "the loss falls in three drops", "Fig. 1"

            def checks(self, lab):
                runs = lab.each_seed("mine/task", {"steps": 500})
                yield per_seed(equal, "drops", runs, 3, "Fig. 1", of=drops)

    It holds if all of its checks do. `budget` is the smallest that it needs: a `paper` claim is not run on `quick`.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str] = ""
    budget: ClassVar[str] = "quick"
    seeds: ClassVar[int] = 3

    @abstractmethod
    def checks(self, lab: Lab) -> Iterable[Check]:
        """Yields the checks, from runs that `lab` trains or has cached. The seeds to use are `lab.seeds`."""


@dataclass(frozen=True)
class Result:
    """A claim with its verdict. `error` is one line; `traceback` is not empty if the claim raised an exception."""

    id: str
    plugin: str
    title: str
    reference: str
    verdict: str  # holds | differs | needs budget | error
    budget: str  # that it was verified with
    seeds: int
    seconds: float
    checks: tuple[Check, ...] = ()
    error: str = ""
    traceback: str = ""
    verified: str = ""  # when, as an ISO time

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"checks": [check.to_dict() for check in self.checks]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        return cls(**{**values, "checks": tuple(Check.from_dict(check) for check in values["checks"])})


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
