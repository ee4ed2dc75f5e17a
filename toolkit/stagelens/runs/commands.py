"""Commands: what a person types to repeat a run. Reports print them, and each of them can be run as it stands."""

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
    """The command that repeats the run of `manifest`; Python if no command can, as for a class that no plugin brings.

    `host` is the one that the run was opened with: it knows which plugins are under development, and where.
    """
    if manifest.kind == "checkpoints":
        return _probe(manifest)
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
    """Returns the Python call that runs a class that no plugin brings, such as one written in a notebook."""
    given = {"settings": dict(settings)} if settings else {}
    arguments = {"preset": preset, **given, "seed": seed, **options}
    return f"stagelens.run({', '.join([kind, *(f'{key}={value!r}' for key, value in arguments.items())])})"


def _probes(manifest: Manifest, host: Host | None) -> list[str]:
    """The option that chooses the run's probes, if they are not the ones that its task would have without it."""
    if host is None or manifest.kind == "flow" or manifest.task not in dict(host.tasks):
        return []
    own = host.tasks[manifest.task].load().probes
    usual = list(own or (name for name, ref in host.probes if ref.default))
    return ["--probes", ",".join(manifest.probes)] if manifest.probes and manifest.probes != usual else []


def _probe(manifest: Manifest) -> str:
    """`stagelens probe` with the files that were measured, on the batch that they were measured on."""
    config = manifest.config
    files = [str(file) for file in config.get("files", ())]
    if manifest.metric == "loss" and not config.get("batch"):
        return f"stagelens.api.probe_series(...) of {len(files)} checkpoints, with a batch made in Python"
    words = ["stagelens", "probe", *files]
    words += ["--probes", ",".join(manifest.probes)] if manifest.probes else []
    words += ["--batch", str(config["batch"])] if config.get("batch") else []
    return shlex.join(words)


def _plugin_dir(manifest: Manifest, host: Host | None) -> list[str]:
    """Returns where a plugin under development is: one that no distribution brings."""
    for plugin in host.plugins if host is not None else ():
        if plugin.name == manifest.plugin and not plugin.distribution:
            file = Path(plugin.file)
            return [str(file.parent if file.name == "__init__.py" else file)]
    return []
