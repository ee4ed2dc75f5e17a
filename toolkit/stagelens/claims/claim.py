"""Claims: what a paper states, as code that measures it. A claim yields checks; a result is its verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stagelens.base import StagelensError
from stagelens.claims.checks import Check

if TYPE_CHECKING:
    from stagelens.claims.lab import Lab

BUDGETS = ("quick", "long", "paper")  # in increasing order
VERDICTS = ("holds", "differs", "needs budget", "error")
REASONS = ("paper", "size", "reading")  # why a claim differs: its `reason` starts with one of these words


def largest_budget(budget: str, among: Collection[str]) -> str | None:
    """Returns the largest of the budgets in `among` that is not above `budget`; None if there is none."""
    return next((name for name in reversed(BUDGETS[: BUDGETS.index(budget) + 1]) if name in among), None)


def verdict_of(checks: Sequence[Check]) -> str:
    """Returns the verdict of a claim with these checks.

    It differs if any check differs; it needs budget if no check differs and one is undecided; otherwise it holds.
    Raises if no check besides sanity checks is judged, because identities are no evidence.
    """
    if not any(check.judged for check in checks):
        raise StagelensError("the claim judged nothing; a claim cannot hold without a measurement")
    if all(check.sanity for check in checks if check.judged):
        raise StagelensError("the claim judged nothing but sanity checks; a claim cannot hold without evidence")
    verdicts = {check.verdict for check in checks}
    return next((verdict for verdict in ("differs", "needs budget") if verdict in verdicts), "holds")


class Claim(ABC):
    """A statement of a paper. A subclass says what is measured:

        class Drops(Claim):
            id, title, reference = "X1", "the loss falls in three drops", "Fig. 1"

            def checks(self, lab):
                runs = lab.each_seed("mine/task", {"steps": 500})
                yield per_seed(equal, "drops", runs, 3, "Fig. 1", of=drops)

    It holds if all of its checks hold, and one of them is more than a sanity check. `budget` is the smallest that it
    needs: a `paper` claim is not run on `quick`. `seeds` is the number of seeds, or one for each budget
    (`{"quick": 3, "long": 5}`). `reason` explains why the claim differs, if it does. It starts with the source of the
    difference and gives the evidence: "paper: ...", "size: ..." or "reading: ...". A reason that is true of one budget
    only is written for that budget (`{"quick": "size: ..."}`).
    """

    id: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str] = ""
    budget: ClassVar[str] = "quick"
    seeds: ClassVar[int | Mapping[str, int]] = 3
    reason: ClassVar[str | Mapping[str, str]] = ""

    @abstractmethod
    def checks(self, lab: Lab) -> Iterable[Check]:
        """Yields the checks, from runs that `lab` trains or has cached. The seeds to use are `lab.seeds`."""

    @classmethod
    def reason_for(cls, budget: str) -> str:
        """Returns why the claim differs with `budget`; empty if that is not written."""
        return cls.reason if isinstance(cls.reason, str) else cls.reason.get(budget, "")


@dataclass(frozen=True)
class Result:
    """A claim with its verdict. `error` is one line; `traceback` is not empty if the claim raised an exception.

    `needs` names the budget that would decide if the verdict is `needs budget`. `reason` is the claim's for this
    budget, if it differs.
    `source` is a digest of the code and the library versions that the verdict depends on.
    """

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
    needs: str = ""
    reason: str = ""
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"checks": [check.to_dict() for check in self.checks]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        return cls(**{**values, "checks": tuple(Check.from_dict(check) for check in values["checks"])})
