"""The group of commands: it reserves stdout for a command's answer, and skips converters that change nothing.

typer builds a pydantic converter for every option. Without `_skipping_converters`, `stagelens tasks` takes 1.4 times as
long (benchmarks/startup.py); `stagelens --help` takes the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperGroup

from stagelens.cli.output import answering


class Group(TyperGroup):
    """The group of all commands. It prepares each command when it is looked up."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_skipping_converters(parameter) for parameter in super().get_params(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and "get_params" not in vars(command):
            get_params = command.get_params
            command.get_params = lambda ctx: [_skipping_converters(parameter) for parameter in get_params(ctx)]
            command.invoke = _answering(command.invoke)
        return command


def _answering(invoke: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `invoke` with stdout reserved for the command's answer."""

    def wrapped(ctx: Any) -> Any:
        with answering():
            return invoke(ctx)

    return wrapped


def _skipping_converters(parameter: Any) -> Any:
    """Returns `parameter`, changed to convert only values that are given and are not strings already."""
    if "process_value" in vars(parameter):
        return parameter
    convert = parameter.process_value

    plain = getattr(getattr(parameter, "type_descriptor", None), "annotation", None) is str and parameter.nargs == 1

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None and not parameter.required:
            value = () if parameter.multiple or parameter.nargs == -1 else None
        elif not (plain and isinstance(value, str)):
            return convert(ctx, value)
        return parameter.callback(ctx, parameter, value) if parameter.callback else value

    parameter.process_value = process_value
    return parameter
