"""Configs: validated, frozen, and set from presets and `key=value` pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stagelens.base import UsageError, unknown

MOST = 10**9  # of anything that a config counts: more than a machine holds, and far from where integers overflow
MOST_POINTS = 10**6  # that a flow is recorded at
SHORTEST = 1e-100  # time of a flow; in less, LSODA goes round in circles


class Config(BaseModel):
    """Base of all configs: frozen, unknown keys are refused, and whole numbers are at most `MOST`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def derive(self, **defaults: Callable[[], Any]) -> None:
        """Sets defaults that follow from other keys. A key that was given keeps its value.

        To be called in a validator of the whole config, which is the last moment before it is frozen:

            lr: float = Field(0.0, description="learning rate; unless given, 1 / width")

            @model_validator(mode="after")
            def _derived(self) -> Self:
                self.derive(lr=lambda: 1 / self.width)
                return self
        """
        for key, value in defaults.items():
            if key not in self.model_fields_set:
                object.__setattr__(self, key, value())

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any) -> Any:
        if any(abs(number) > MOST for number in _whole_numbers(value)):
            raise ValueError(f"whole numbers should be at most {MOST:,}")
        return value


def _whole_numbers(value: Any) -> Iterator[int]:
    """The whole numbers in a value, or in a list of them, or in a list of lists."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _whole_numbers(item)


def _at_least(bound: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value < bound:
            raise ValueError(f"it should be at least {bound}")
        return value

    return check


def _at_most(bound: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value > bound:
            raise ValueError(f"it should be at most {bound:,}")
        return value

    return check


def _above(bound: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value <= bound:
            raise ValueError(f"it should be above {bound}")
        return value

    return check


class TaskConfig(Config):
    """What every trained task has. `train_size` 0 means fresh data at every step.

    The bounds are validators, which hold also where a task's own config gives a key another default.
    """

    steps: int = Field(1000, description="training steps")
    batch_size: int = Field(128, description="sequences in a training batch")
    lr: float = Field(1e-3, description="learning rate")
    eval_size: int = Field(256, description="sequences in the fixed evaluation batch that the probes see")
    train_size: int = Field(0, description="sequences in the training set; 0: fresh data every step")
    clip: float = Field(0.0, description="largest gradient norm; 0: no clipping")

    _counts = field_validator("steps", "batch_size", "eval_size")(_at_least(1))
    _positive = field_validator("lr")(_above(0))
    _not_negative = field_validator("train_size", "clip")(_at_least(0))


class FlowConfig(Config):
    """What every flow has."""

    time: float = Field(100.0, description="end of the integration")
    points: int = Field(400, description="times at which the flow is recorded")
    method: Literal["LSODA", "RK45", "RK23", "DOP853", "Radau", "BDF"] = Field(
        "LSODA", description="solve_ivp's method"
    )
    rtol: float = Field(1e-8, description="relative tolerance")
    atol: float = Field(1e-10, description="absolute tolerance")

    _positive = field_validator("time", "rtol", "atol")(_above(0))
    _shortest_time = field_validator("time")(_at_least(SHORTEST))
    _counts = field_validator("points")(_at_least(2))
    _most_points = field_validator("points")(_at_most(MOST_POINTS))
    _largest_tolerances = field_validator("rtol", "atol")(_at_most(1))


C = TypeVar("C", bound=Config)


def make_config(kind: type[C], presets: Mapping[str, Mapping[str, Any]], preset: str, given: Sequence[str]) -> C:
    """The config of a preset, with `given` settings (`key=value`, nested keys with dots) laid over it."""
    if preset not in presets:
        raise unknown("preset", preset, presets)
    values: dict[str, Any] = json.loads(json.dumps(presets[preset]))
    for setting in given:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting!r}: expected key=value, for example --set steps=500")
        _put(values, kind, key, text)
    return validate(kind, values)


def text_of(value: Any) -> str:
    """A value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def as_settings(given: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Settings as `key=value` texts, from such texts or from a mapping."""
    return [f"{key}={text_of(value)}" for key, value in given.items()] if isinstance(given, Mapping) else list(given)


def validate(kind: type[C], values: Mapping[str, Any]) -> C:
    """`values` as a config of `kind`; the first thing that is wrong with them becomes a one-line error."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        key, given, message = first_error(error)
        if error.errors()[0]["type"] == "extra_forbidden":
            raise unknown("config key", key, _known_keys(kind, key)) from None
        where = f"config key {key!r}: got {given}, " if key else "config: "
        raise UsageError(where + message) from None


def first_error(error: ValidationError) -> tuple[str, str, str]:
    """Returns where pydantic found the first mistake (a key with dots), what was given there, and what is wrong."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return ".".join(map(str, first["loc"])), _short(first["input"]), message[:1].lower() + message[1:]


def _put(values: dict[str, Any], kind: type[BaseModel], key: str, text: str) -> None:
    """Writes `text`, read as the type of the field `key`, into the nested `values`."""
    *parents, leaf = key.split(".")
    model: Any = kind
    for parent in parents:
        field = model.model_fields.get(parent) if _is_model(model) else None
        if field is None:
            raise unknown("config key", key, _known_keys(kind, key))
        model = field.annotation
        default = field.get_default(call_default_factory=True)
        inside = values.setdefault(parent, default.model_dump(mode="json") if isinstance(default, BaseModel) else {})
        values = inside if isinstance(inside, dict) else {}  # else validation tells what is wrong with `parent`
    if not _is_model(model) or leaf not in model.model_fields:
        raise unknown("config key", key, _known_keys(kind, key))
    values[leaf] = _read(text, model.model_fields[leaf].annotation)


def _read(text: str, annotation: Any) -> Any:
    """`text` as JSON, as a comma-separated list, as it is, or as a list of one, whichever fits the annotation first."""
    from pydantic import TypeAdapter

    readings: list[Any] = []
    try:
        readings.append(json.loads(text))
    except (ValueError, RecursionError):  # no JSON, or brackets without end
        if "," in text:
            readings.append([_read(part.strip(), float | str) for part in text.split(",")])
    readings += [text, [readings[0]] if readings else [text]]  # one value for a list of values
    for reading in readings:
        try:
            TypeAdapter(annotation).validate_python(reading)
        except ValidationError:
            continue
        return reading
    return readings[0]  # none fits: the config's own validation says what is wrong with it


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _known_keys(kind: type[BaseModel], key: str) -> list[str]:
    """The keys at the level of `key`, written as the user would."""
    prefix = ""
    model: Any = kind
    for parent in key.split(".")[:-1]:
        field = model.model_fields.get(parent)
        if field is None or not _is_model(field.annotation):
            break
        model, prefix = field.annotation, f"{prefix}{parent}."
    return [prefix + name for name in model.model_fields]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
