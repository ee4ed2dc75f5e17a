"""Tab completion of runs, tasks, plugins, claims, figures, probes, presets, config keys, series and fixed choices.

A shell calls these functions while a user types. They print nothing, and an error completes nothing. Config keys and
sweep metrics need the class of the task, so they import it, which may take seconds. All others import no torch.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stagelens.experiments import Flow
    from stagelens.host import Host, TaskRef
    from stagelens.timelines import Timeline

Complete = Callable[[typer.Context, str], list[str]]
METRICS = ("loss", "train_loss")  # series that every training has
MEASURES = ("plateau_length", "transition1", "stages", "plateaus", "transitions")
DEVICES = ("auto", "cpu", "cuda", "mps")
FORMATS = ("parquet", "netcdf", "csv")  # of `stagelens export`


def _completion(found: Callable[[typer.Context, str], Iterable[str]]) -> Complete:
    """Returns `found` as a completion: the names that start as the text that was typed, or none after an error."""

    @wraps(found)
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in dict.fromkeys(found(context, incomplete)) if name.startswith(incomplete)]
        except (Exception, SystemExit):
            return []

    return complete


def _host(context: typer.Context) -> Host:
    from stagelens.host import make_host

    top = context.find_root().params
    allow = list(top.get("allow") or ()) or ([] if top.get("no_plugins") else None)
    return make_host(list(top.get("plugin_dir") or ()), allow=allow)


def _typed(context: typer.Context) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments of the command that were typed so far, and its options with their values.

    They are read from what the shell passes: the parser gives up at an option whose value is being typed.
    """
    text = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = shlex.split(text)
    words = words[words.index(str(context.info_name)) + 1 :]
    if "COMP_CWORD" in os.environ or not text.endswith(" "):
        words = words[:-1]  # the incomplete one
    flags = {name for one in context.command.params if getattr(one, "is_flag", False) for name in one.opts}
    arguments, options = [], {}
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            arguments.append(word)
        elif word not in flags and words:
            options[word] = words.pop(0)
    return arguments, options


def _task(context: typer.Context) -> TaskRef:
    return _host(context).task(_typed(context)[0][0])


def _timeline(context: typer.Context) -> Timeline | None:
    """The timeline of the first run on the command line; None if there is no run yet."""
    from stagelens.runs import load

    arguments, options = _typed(context)
    of_a_task = any(one.name == "task" for one in context.command.params)
    return load(arguments[0], options.get("--runs")).timeline if arguments and not of_a_task else None


@_completion
def complete_task(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Ids of tasks, and names of plugins for their default tasks."""
    ids = [name for name, _ in _host(context).tasks]
    return [*dict.fromkeys(name.partition("/")[0] for name in ids), *ids]


@_completion
def complete_preset(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Presets of the task."""
    return _task(context).presets


@_completion
def complete_run(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Names in the runs directory."""
    from stagelens.runs import FILE, SWEEP_FILE, SWEEPS, runs_folder

    folder = runs_folder(_typed(context)[1].get("--runs"))
    runs = sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))
    return [*runs, *sorted(path.parent.name for path in (folder / SWEEPS).glob(f"*/{SWEEP_FILE}"))]


@_completion
def complete_probe(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Names of probes."""
    return [name for name, _ in _host(context).probes]


@_completion
def complete_probes(context: typer.Context, incomplete: str) -> Iterable[str]:
    """A list of probes with commas, each with or without a plus."""
    before, comma, last = incomplete.rpartition(",")
    plus = "+" if last.startswith("+") else ""
    return [f"{before}{comma}{plus}{name}" for name, _ in _host(context).probes]


@_completion
def complete_key(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Config keys of the task, each with `=`."""
    return [f"{key}=" for key in _keys(context)]


@_completion
def complete_fit(context: typer.Context, incomplete: str) -> Iterable[str]:
    """A list of config keys with commas."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{key}" for key in _keys(context)]


@_completion
def complete_plugin(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Plugins that have what the command takes: figures, or claims."""
    host = _host(context)
    registry = host.figures if context.info_name == "figure" else host.claims
    return [registry.owners[name] for name, _ in registry]


@_completion
def complete_figure(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Figures of the plugin."""
    host, plugin = _host(context), _typed(context)[0][0]
    return [ref.name for name, ref in host.figures if host.figures.owners[name] == plugin]


@_completion
def complete_claim(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
    """Claims of the plugins that are given, or of all."""
    host, plugins = _host(context), _typed(context)[0]
    return [name for name, _ in host.claims if not plugins or host.claims.owners[name] in plugins]


@_completion
def complete_series(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Series of the run that is given; after `[`, its elements. Without a run, every reading of every probe."""
    timeline = _timeline(context)
    if timeline is None:
        return _readings(_host(context))
    if "[" in incomplete:
        from stagelens.timelines import element_names

        return element_names(timeline.column(incomplete.partition("[")[0]))
    return [*timeline, *(name.partition("/")[0] for name in timeline if "/" in name)]


@_completion
def complete_measure(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Sweep metrics: the words of `stagelens sweep --measure`, series, and after `plateau_length:` a series.

    The series of a flow are those that it has at its start; of another task, every reading of every probe.
    """
    flow = _flow(context)
    if flow is None:
        series, events = _readings(_host(context)), []
    else:
        from stagelens.sweeps import flow_at_start
        from stagelens.timelines import element_names

        start = flow_at_start(flow)
        inside = "[" in incomplete
        series = [one for name in start for one in (element_names(start.column(name)) if inside else [name])]
        events = [f"event:{event.name}" for event in flow.events()]
    return [*MEASURES, *series, *events, *(f"plateau_length:{name}" for name in series)]


def _choices(where: str) -> Complete:
    """Returns a completion of the names in `module:name`. The module is imported when a shell asks."""
    module, _, name = where.partition(":")

    @_completion
    def choices(context: typer.Context, incomplete: str) -> Iterable[str]:  # noqa: ARG001
        names: Iterable[str] = getattr(import_module(module), name)
        return names

    return choices


complete_align = _choices("stagelens.comparing:ALIGNMENTS")
complete_budget = _choices("stagelens.claims:BUDGETS")
complete_device = _choices(f"{__name__}:DEVICES")
complete_executor = _choices("stagelens.sweeps.executors:EXECUTORS")
complete_format = _choices(f"{__name__}:FORMATS")
complete_results = _choices("stagelens.sweeps.executors.on_ray:RESULTS")


def _keys(context: typer.Context) -> Iterable[str]:
    return list(_task(context).load().Config.model_fields)


def _flow(context: typer.Context) -> Flow | None:
    """The flow that the command names, as its preset makes it; None if the task is none."""
    from stagelens.experiments import Flow, make_config

    kind = _task(context).load()
    if not issubclass(kind, Flow):
        return None
    preset = _typed(context)[1].get("--preset", "quick")
    return kind(make_config(kind.Config, kind.presets, preset, []), 0)


def _readings(host: Host) -> list[str]:
    return [*METRICS, *(f"{name}/{reading}" for name, ref in host.probes for reading in ref.readings)]
