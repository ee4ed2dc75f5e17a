"""Commands that repeat a run. Reports print them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.experiments import text_of

if TYPE_CHECKING:
    from stagelens.host import Host
    from stagelens.runs.manifest import Manifest


def command_of(manifest: Manifest, host: Host | None = None) -> str:
    """Returns the command that repeats the run of `manifest`; Python code if its class is not in a plugin.

    `host` is the one that the run was opened with. It knows the directories of the plugins under development.
    """
    if manifest.kind == "checkpoints":
        return _probe(manifest)
    if manifest.kind == "loop":
        return "# recorded by sl.Recorder(model, batch=batch, run=...) in a training loop"
    if host is not None and manifest.plugin not in {plugin.name for plugin in host.plugins}:
        known = dict(host.tasks).get(manifest.task)
        kind = getattr(known.target, "__name__", manifest.task) if known is not None else manifest.task
        return run_call(kind, manifest.preset, manifest.settings, manifest.seed)
    plugins, options = _plugin_dir(manifest, host), _probes(manifest, host)
    return run_command(manifest.task, manifest.preset, manifest.settings, manifest.seed, plugins, options)


def run_command(
    task: str,
    preset: str,
    settings: Mapping[str, Any],
    seed: int,
    plugin_dirs: Sequence[str] = (),
    options: Sequence[str] = (),
) -> str:
    """Returns the command `stagelens run` with these settings, and with further `options` at its end."""
    plugins = [word for folder in plugin_dirs for word in ("--plugin-dir", str(folder))]
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={text_of(value)}")]
    words = ["stagelens", *plugins, "run", task, "--preset", preset, *given, "--seed", str(seed), *options]
    return shlex.join(words)


def run_call(kind: str, preset: str, settings: Mapping[str, Any], seed: int, **options: Any) -> str:
    """Returns the Python call that runs a class that is not in a plugin, such as one from a notebook."""
    given = {"settings": dict(settings)} if settings else {}
    arguments = {"preset": preset, **given, "seed": seed, **options}
    return f"stagelens.run({', '.join([kind, *(f'{key}={value!r}' for key, value in arguments.items())])})"


def _probes(manifest: Manifest, host: Host | None) -> list[str]:
    """Returns the option `--probes` of the run, if its probes are not the default ones of its task."""
    if host is None or manifest.kind == "flow" or manifest.task not in dict(host.tasks):
        return []
    usual = host.probe_names(own=host.tasks[manifest.task].load().probes)
    chosen = manifest.probes
    if not chosen or chosen == usual:
        return []
    added = chosen[: len(usual)] == usual
    return ["--probes", ",".join(f"+{name}" for name in chosen[len(usual) :]) if added else ",".join(chosen)]


def _probe(manifest: Manifest) -> str:
    """Returns `stagelens probe` with the checkpoints that were measured, and what they were measured on."""
    config = manifest.config
    files = [str(file) for file in config.get("files", ())]
    if manifest.metric == "loss" and not (config.get("batch") or config.get("text")):
        return f"stagelens.probe_checkpoints(...) of {len(files)} checkpoints, with a batch made in Python"
    words = ["stagelens", "probe"]
    if hub := config.get("hub"):
        words += ["--hub", str(hub), "--revisions", ",".join(file.removeprefix(f"{hub}@") for file in files)]
    else:
        words += files
    words += ["--probes", ",".join(manifest.probes)] if manifest.probes else []
    for key in ("text", "batch", "sequences", "length"):
        words += [f"--{key}", str(config[key])] if config.get(key) else []
    return shlex.join(words)


def _plugin_dir(manifest: Manifest, host: Host | None) -> list[str]:
    """Returns the directory of a plugin under development: one that is not in a distribution."""
    for plugin in host.plugins if host is not None else ():
        if plugin.name == manifest.plugin and not plugin.distribution:
            file = Path(plugin.file)
            return [str(file.parent if file.name == "__init__.py" else file)]
    return []
