"""`stagelens probes`: lists the probes, or describes one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_probe
from stagelens.cli.options import Json, State

if TYPE_CHECKING:
    from stagelens.host import Host


def probes(
    context: typer.Context,
    probe: Annotated[
        str,
        typer.Argument(
            metavar="[PROBE]", help="describe this probe: readings, hooks, cost", autocompletion=complete_probe
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List the probes; with a PROBE, describe it.

    Example: stagelens probes induction
    """
    state: State = context.obj
    if probe:
        _ = state.host.probes[probe]  # an unknown name is an error before anything heavy is imported
        output.loading(probe)
        described = describe_probe(state.host, probe)
        output.print_json(described) if json else _print(described)
        return
    known = state.host.probes
    if json:
        output.print_json([_row(state.host, name) for name, _ in known])
        return
    shown = [
        [f"{name} *" if ref.default else name, ref.title, _without_companions(ref.readings), ref.passes]
        for name, ref in known
    ]
    output.print_table(["probe", "what it measures", "readings", "extra passes"], shown)
    output.say("\nstandard errors (_error) and chance levels (_chance) of readings are not listed")
    output.say("* runs by default; extra passes are forward passes beyond the one that all probes share")
    output.say("`stagelens probes PROBE` describes one: each reading with its dims, unit, range and chance level")


def _without_companions(readings: Sequence[str]) -> list[str]:
    """Returns `readings` without standard errors and chance levels of others, which would fill the table."""
    from stagelens.timelines import is_companion

    return [reading for reading in readings if not is_companion(reading, readings)]


def _row(host: Host, name: str) -> dict[str, Any]:
    ref = host.probes[name]
    return {
        "name": name,
        "plugin": host.probes.owners[name],
        "title": ref.title,
        "readings": [f"{name}/{reading}" for reading in ref.readings],
        "passes": ref.passes,
        "default": ref.default,
    }


def describe_probe(host: Host, name: str) -> dict[str, Any]:
    """Returns the row of a probe with its hooks and, instead of their names, its readings described."""
    from stagelens.timelines import ReadingInfo, described_reading

    kind = host.probes[name].load()
    readings = []
    for reading in kind.gives:
        info = described_reading(reading, kind.described) or ReadingInfo("")
        readings.append(
            {
                "name": f"{name}/{reading}",
                "meaning": info.meaning,
                "dims": list(info.dims),
                "unit": info.unit,
                "range": info.range,
                "chance": info.chance,
            }
        )
    about = inspect.getdoc(kind) or ""
    return _row(host, name) | {"about": about, "hooks": list(kind.hooks), "readings": readings}


def _print(described: dict[str, Any]) -> None:
    output.say(f"{described['name']}: {described['title']}\n\n{described['about']}\n")
    rows = [
        [
            one["name"].partition("/")[2],
            one["meaning"],
            ", ".join(one["dims"]),
            one["unit"],
            one["range"],
            one["chance"],
        ]
        for one in described["readings"]
    ]
    output.print_table(["reading", "meaning", "dims", "unit", "range", "chance level"], rows)
    output.say(f"\nhooks: {', '.join(described['hooks']) or 'none; it reads parameters, outputs or passes of its own'}")
    output.say(f"extra passes: {described['passes']}")
    output.say(
        f"runs by default: {'yes' if described['default'] else 'no; add it with --probes +' + described['name']}"
    )
    output.say("docs/probes.md defines the readings; docs/series.md says how to name one element of them")
