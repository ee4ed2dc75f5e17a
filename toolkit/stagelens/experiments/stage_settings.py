"""How the stages of a task are detected, and what the task expects of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stagelens.base import UsageError
from stagelens.experiments.config import first_error

if TYPE_CHECKING:
    from stagelens.stages import Stages

NEAR = 0.05  # of the range of the expected levels: a plateau is at a level within this


class StageSettings(BaseModel):
    """What `Task.stages` may have. The first three are those of `stagelens stages`; the others are only compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    axis: Literal["auto", "linear", "log"] = "auto"
    min_drop: float = Field(0.01, ge=0)
    strength: float = Field(3.0, ge=0)
    transitions: int | None = Field(None, ge=0)  # how many the task expects
    levels: tuple[float, ...] = ()  # of the plateaus that it expects


def stage_settings(given: Mapping[str, Any], owner: str = "stages") -> StageSettings:
    """Returns the checked settings; one line about `owner` says what is wrong with them."""
    try:
        return StageSettings(**given)
    except (ValidationError, TypeError) as error:
        known = ", ".join(StageSettings.model_fields)
        if isinstance(error, ValidationError):
            key, value, why = first_error(error)
            raise UsageError(f"{owner}: {key} is {value}: {why}; the keys are {known}") from None
        raise UsageError(f"{owner} is {given!r}; give a mapping with keys of {known}") from None


def differences(settings: StageSettings, found: Stages) -> list[str]:
    """Returns one sentence for each way in which the stages differ from what the task expects."""
    said, count = [], len(found.transitions)
    if settings.transitions is not None and settings.transitions != count:
        said.append(f"{settings.transitions} transitions were expected, and {count} were found")
    missing = _missing(settings.levels, [plateau.level for plateau in found.plateaus])
    if missing:
        levels = ", ".join(f"{level:.4g}" for level in missing)
        said.append(f"no plateau was found at the expected {'level' if len(missing) == 1 else 'levels'} {levels}")
    return said


def _missing(expected: Sequence[float], measured: Sequence[float]) -> list[float]:
    if not expected:
        return []
    near = NEAR * ((max(expected) - min(expected)) or abs(expected[0]) or 1.0)
    return [level for level in expected if all(abs(level - found) > near for found in measured)]
