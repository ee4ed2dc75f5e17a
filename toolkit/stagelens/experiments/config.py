"""Configs: validated and frozen; made from presets and `key=value` pairs."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stagelens.base import UsageError, unknown

MOST = 10**9  # the largest integer in a config: more than fits into memory, and far from an integer overflow
MOST_POINTS = 10**6  # at which a flow is recorded
SHORTEST = 1e-100  # time of a flow; with less, LSODA does not terminate


class Config(BaseModel):
    """Base of all configs. They are frozen, refuse unknown keys, and their integers are at most `MOST`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def derive(self, **defaults: Callable[[], Any]) -> None:
        """Sets defaults that depend on other keys. A key that was given keeps its value.

        Call it in a validator of the whole config, before the config is frozen:

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
        if any(abs(number) > MOST for number in _integers(value)):
            raise ValueError(f"integers should be at most {MOST:,}")
        return value


def config_defaults(config: Config) -> dict[str, Any]:
    """Returns the default of each key of a config that has one, as JSON values."""
    return type(config).model_construct().model_dump(mode="json", warnings=False)


def _integers(value: Any) -> Iterator[int]:
    """Yields the integers in a value, in a list, or in nested lists."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _integers(item)


class Bound:
    """A validator of numbers: `value` holds on one side of a bound. It states its bound, for help texts."""

    def __init__(self, sign: str, words: str, bound: float, holds: Callable[[float, float], bool]) -> None:
        self.text = f"{sign} {bound}"
        self.message = f"it should be {words} {bound:,}"
        self.bound, self.holds = bound, holds

    def __call__(self, value: float) -> float:
        if not self.holds(value, self.bound):
            raise ValueError(self.message)
        return value


def _at_least(bound: float) -> Bound:
    return Bound("≥", "at least", bound, operator.ge)


def _at_most(bound: float) -> Bound:
    return Bound("≤", "at most", bound, operator.le)


def _above(bound: float) -> Bound:
    return Bound(">", "above", bound, operator.gt)


def stated_bounds(kind: type[BaseModel], key: str) -> list[str]:
    """Returns the bounds of `key` that validators of a config state, such as `≥ 1`."""
    validators = kind.__pydantic_decorators__.field_validators.values()
    return [one.func.text for one in validators if key in one.info.fields and isinstance(one.func, Bound)]


class TaskConfig(Config):
    """The config keys of every trained task.

    The bounds are validators, so they also apply if the config of a task gives a key another default.
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
    """The config keys of every flow."""

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
    """Returns the config of a preset, changed by the settings `given`: `key=value`, with dots in nested keys."""
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
    """Returns a value as the text that `--set` takes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def as_settings(given: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Returns settings as `key=value` texts, from such texts or from a mapping."""
    return [f"{key}={text_of(value)}" for key, value in given.items()] if isinstance(given, Mapping) else list(given)


def validate(kind: type[C], values: Mapping[str, Any]) -> C:
    """Returns `values` as a config of `kind`. The first mistake in them raises an error of one line."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        key, given, message = first_error(error)
        if error.errors()[0]["type"] == "extra_forbidden":
            raise unknown("config key", key, _known_keys(kind, key)) from None
        where = f"config key {key!r}: got {given}, " if key else "config: "
        raise UsageError(where + message) from None


def first_error(error: ValidationError) -> tuple[str, str, str]:
    """Returns the key (with dots) of the first mistake that pydantic found, the given value, and what is wrong."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return ".".join(map(str, first["loc"])), _short(first["input"]), message[:1].lower() + message[1:]


def _put(values: dict[str, Any], kind: type[BaseModel], key: str, text: str) -> None:
    """Parses `text` as the type of the field `key`, and stores it in the nested `values`."""
    *parents, leaf = key.split(".")
    model: Any = kind
    for parent in parents:
        field = model.model_fields.get(parent) if is_model(model) else None
        if field is None:
            raise unknown("config key", key, _known_keys(kind, key))
        model = field.annotation
        default = field.get_default(call_default_factory=True)
        inside = values.setdefault(parent, default.model_dump(mode="json") if isinstance(default, BaseModel) else {})
        values = inside if isinstance(inside, dict) else {}  # else validation reports what is wrong with `parent`
    if not is_model(model) or leaf not in model.model_fields:
        raise unknown("config key", key, _known_keys(kind, key))
    values[leaf] = _read(text, model.model_fields[leaf].annotation)


def _read(text: str, annotation: Any) -> Any:
    """Returns `text` as JSON, as a comma-separated list, unchanged or in a list: the first that fits the annotation."""
    from pydantic import TypeAdapter

    readings: list[Any] = []
    try:
        readings.append(json.loads(text))
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        if "," in text:
            readings.append([_read(part.strip(), float | str) for part in text.split(",")])
    readings += [text, [readings[0]] if readings else [text]]  # one value for a list of values
    for reading in readings:
        try:
            TypeAdapter(annotation).validate_python(reading)
        except ValidationError:
            continue
        return reading
    return readings[0]  # none fits: validation of the config reports what is wrong


def is_model(annotation: Any) -> bool:
    """Returns True if `annotation` is a pydantic model, whose keys are nested."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _known_keys(kind: type[BaseModel], key: str) -> list[str]:
    """Returns the keys at the level of `key`, as a user writes them."""
    prefix = ""
    model: Any = kind
    for parent in key.split(".")[:-1]:
        field = model.model_fields.get(parent)
        if field is None or not is_model(field.annotation):
            break
        model, prefix = field.annotation, f"{prefix}{parent}."
    return [prefix + name for name in model.model_fields]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
