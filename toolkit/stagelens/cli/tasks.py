"""`stagelens tasks`: lists the tasks, or describes one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_task
from stagelens.cli.options import Json, State
from stagelens.cli.progress import duration

if TYPE_CHECKING:
    from stagelens.host import Host

UNPREDICTED = "the task defines none"


def tasks(
    context: typer.Context,
    task: Annotated[
        str,
        typer.Argument(
            metavar="[TASK]", help="describe this task: config keys, probes, ...", autocompletion=complete_task
        ),
    ] = "",
    time: Annotated[
        bool, typer.Option("--time", help="With a TASK: estimate how long a run of each preset takes on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """List the tasks of all plugins; with a TASK, describe it.

    Example: stagelens tasks markov/full
    """
    state: State = context.obj
    if task:
        output.loading(task)
        described = describe(state.host, task) | ({"seconds": expected_seconds(state.host, task)} if time else {})
        output.print_json(described) if json else _print(described)
        return
    host = state.host
    rows = [_row(host, name) for name, _ in host.tasks]
    if json:
        output.print_json(rows)
        return
    shown = [[f"{row['id']} *" if row["default"] else row["id"], row["title"], row["presets"]] for row in rows]
    output.print_table(["task", "what it is", "presets"], shown)
    output.say("\n* the plugin's default task: `stagelens run markov` runs it")
    output.say("`stagelens tasks TASK` describes one: its config keys, presets, probes and claims")


def _row(host: Host, name: str) -> dict[str, Any]:
    ref = host.tasks[name]
    return {
        "id": name,
        "plugin": host.tasks.owners[name],
        "title": ref.title,
        "presets": list(ref.presets),
        "default": host.default_task(name.partition("/")[0]) == name,
    }


def describe(host: Host, name: str) -> dict[str, Any]:
    """Returns the row of a task with its config keys, and the names of all that it defines at its first preset."""
    from stagelens.experiments import Task, config_keys, make_config
    from stagelens.training import probe_names

    ref = host.task(name)
    kind = ref.load()
    row = _row(host, ref.id)
    presets = kind.presets
    experiment = kind(make_config(kind.Config, presets, next(iter(presets)), ()))
    trained = isinstance(experiment, Task)
    without = dict(experiment.without) if trained else {}
    return row | {
        "about": inspect.getdoc(kind) or "",
        "metric": experiment.metric,
        "keys": config_keys(kind.Config, presets),
        "sources": [{"source": source, "keys": list(keys)} for source, keys in kind.sources.items()],
        "probes": [probe for probe in probe_names(experiment, None, host) if probe not in without],
        "without": without,
        "groups": list(experiment.groups()) if trained else [],
        "directions": list(experiment.directions()) if trained else [],
        "references": list(experiment.references()) if trained else [],
        "predictions": [one.name for one in experiment.predicted],
        "unpredicted": "" if experiment.predicted else experiment.unpredicted or UNPREDICTED,
        "stage_names": list(experiment.stage_names()),
        "features": list(experiment.features()),
        "claims": [claim for claim, _ in host.claims if host.claims.owners[claim] == row["plugin"]],
    }


def expected_seconds(host: Host, name: str) -> dict[str, float]:
    """Returns the seconds that a run of each preset takes here, without figures, from a few timed steps of each."""
    from stagelens.experiments import make_config
    from stagelens.sweeps import seconds_of

    kind = host.task(name).load()
    configs = {preset: make_config(kind.Config, kind.presets, preset, ()) for preset in kind.presets}
    return {preset: seconds_of([kind(config)], None, host) for preset, config in configs.items()}


LISTS = {
    "probes": "probes that a run records by default",
    "groups": "groups of keys that heads specialize in",
    "directions": "directions that keys and queries align with",
    "references": "reference predictors",
    "predictions": "what theory predicts",
    "stage_names": "names of the transitions",
    "features": "quantities for `sweep --fit`",
    "claims": "claims of the paper",
}


def _print(described: dict[str, Any]) -> None:
    output.say(f"{described['id']}: {described['title']}\n\n{described['about']}\n")
    presets = described["presets"]
    rows = [
        [key["key"], key["meaning"], f"{key['type']} {key['bounds']}".strip(), _value(key["default"])]
        + [_value(key["presets"][preset]) if preset in key["presets"] else "" for preset in presets]
        for key in described["keys"]
    ]
    output.print_table(["config key", "meaning", "type", "default", *presets], rows)
    output.say("\nA preset's column has the keys that it sets. `stagelens run TASK --set KEY=VALUE` sets one.\n")
    for one in described["sources"]:
        output.say(f"preset paper, {', '.join(one['keys'])}: {one['source']}")
    for name, what in LISTS.items():
        output.say(f"{what}: {', '.join(map(str, described[name])) or 'none'}")
    for probe, reason in described["without"].items():
        output.say(f"without {probe}: {reason}")
    if described["unpredicted"]:
        output.say(f"without predictions: {described['unpredicted']}")
    times = [f"{preset} {duration(seconds)}" for preset, seconds in described.get("seconds", {}).items()]
    output.say(f"expected time: {', '.join(times) or 'add --time to estimate it on this machine'}")


def _value(value: Any) -> str:
    from stagelens.experiments import text_of

    return text_of(value) if value is not None else ""
