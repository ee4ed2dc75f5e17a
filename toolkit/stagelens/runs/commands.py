"""Commands: what a person types to repeat a run. Reports print them, and each of them can be run as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

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
        return _python(manifest, host)
    settings = [word for key, value in manifest.settings.items() for word in ("--set", f"{key}={text_of(value)}")]
    words = ["stagelens", *_plugin_dir(manifest, host), "run", manifest.task, "--preset", manifest.preset, *settings]
    return shlex.join([*words, "--seed", str(manifest.seed), *_probes(manifest, host)])


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
    """The option that loads a plugin under development: one that no distribution brings."""
    for plugin in host.plugins if host is not None else ():
        if plugin.name == manifest.plugin and not plugin.distribution:
            file = Path(plugin.file)
            return ["--plugin-dir", str(file.parent if file.name == "__init__.py" else file)]
    return []


def _python(manifest: Manifest, host: Host) -> str:
    """The call that repeats a run of a class that no plugin brings, such as one written in a notebook."""
    known = dict(host.tasks).get(manifest.task)
    kind = getattr(known.target, "__name__", manifest.task) if known is not None else manifest.task
    given = f", settings={manifest.settings!r}" if manifest.settings else ""
    return f"stagelens.run({kind}, preset={manifest.preset!r}{given}, seed={manifest.seed})"
