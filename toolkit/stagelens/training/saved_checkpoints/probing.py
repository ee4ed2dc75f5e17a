"""Probing saved checkpoints: measures a series and writes a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from stagelens.base import EnvironmentFault, UsageError, safe_name
from stagelens.host import Host, make_host
from stagelens.runs import FILE, Manifest, Run, Store, new_manifest, runs_folder, this_process, versions
from stagelens.training.saved_checkpoints.hub import Revision
from stagelens.training.saved_checkpoints.measuring import (
    Checkpoint,
    Measured,
    Plan,
    States,
    loader_of,
    measured_one_by_one,
)
from stagelens.training.saved_checkpoints.series import Series, find_revisions, find_series
from stagelens.training.saved_checkpoints.tokens import choose_tokens
from stagelens.training.saved_checkpoints.workers import measured_by_workers
from stagelens.training.writer import Page, Progress, Writer, graceful, throttled, writing


def probe_checkpoints(
    checkpoints: str | Path | Sequence[str | Path] = (),
    *,
    hub: str | None = None,
    revisions: Sequence[str] = (),
    every: int = 1,
    first: int = 0,
    last: int | None = None,
    jobs: int = 1,
    runs: str | Path | None = None,
    name: str | None = None,
    host: Host | None = None,
    plugin_dirs: Sequence[str] = (),
    progress: Progress | None = None,
    page: Page | None = None,
    **measuring: Any,
) -> Run:
    """Measures a series of saved checkpoints and writes a run; see `stagelens.api.probe_checkpoints`."""
    series = _series(checkpoints, hub, revisions, every=every, first=first, last=last)
    host = host or make_host(plugin_dirs)
    plan, config, measured, states = _measure_first(series, host, **measuring)
    folder = _new_folder(runs_folder(runs), name or f"probe-{series.title}")
    rest = dict(list(series.files.items())[1:])
    manifest = _manifest(series, plan, measured, config)
    with writing(folder, manifest, host) as writer:
        with writer.recording() as store, graceful() as stop:
            if jobs > 1 and rest:
                others = measured_by_workers(jobs, plan, rest, states, plugin_dirs)
            else:
                others = measured_one_by_one(loader_of(plan.first), plan, host, rest, states)
            log, report = _Log(series, writer, store), throttled(progress, len(series.files))
            with closing(others):
                for number, one in enumerate(chain([measured], others), 1):
                    log.add(one)
                    report(number, None)
                    if stop.is_set():
                        break
            writer.status = "finished" if number == len(series.files) and not writer.error else "interrupted"
        if page is not None:
            writer.finish(page)
    return writer.run


def _series(places: Any, hub: str | None, revisions: Sequence[str], **chosen: Any) -> Series:
    places = [Path(places)] if isinstance(places, str | Path) else [Path(place) for place in places]
    if bool(places) == (hub is not None):
        raise UsageError("give checkpoints, or a repository with --hub: one of them")
    if hub is None and revisions:
        raise UsageError("--revisions belongs to --hub; checkpoints in a directory are named by step")
    return find_series(places, **chosen) if hub is None else find_revisions(hub, revisions, **chosen)


def _measure_first(
    series: Series,
    host: Host,
    *,
    probes: Sequence[str] | None = None,
    text: str | Path | None = None,
    batch: Tensor | str | Path | None = None,
    sequences: int | None = None,
    length: int | None = None,
) -> tuple[Plan, dict[str, Any], Measured, States]:
    """Measures the first checkpoint, before anything is written: what is wrong for all of them shows there.

    Returns the plan for the others, what the manifest stores about the measurement, what was measured, and the states.
    """
    names = tuple(host.probe_names(probes))
    loader = loader_of(series.first)
    model = loader.load(series.first)
    tokens, measured_on = choose_tokens(loader, model, text=text, batch=batch, sequences=sequences, length=length)
    plan = Plan(series.first, names, tokens.numpy(), random=text is None and batch is None)
    checkpoint = Checkpoint(model, loader, plan, host, next(iter(series.files)), series.first)
    states = checkpoint.measure(names, {})
    checkpoint.release()
    config: dict[str, Any] = {
        "measured_on": measured_on,
        "files": [str(source) for source in series.files.values()],
        "batch": "" if batch is None or isinstance(batch, Tensor) else str(batch),
    }
    given = {"text": None if text is None else str(text), "sequences": sequences, "length": length}
    config |= {key: value for key, value in given.items() if value is not None}
    if isinstance(series.first, Revision):
        config["hub"] = series.first.repo
    return replace(plan, form=checkpoint.form, carrying=tuple(states)), config, checkpoint.measured, states


class _Log:
    """Writes what the checkpoints gave into a run, in their order."""

    def __init__(self, series: Series, writer: Writer, store: Store) -> None:
        self.series, self.writer, self.store = series, writer, store
        self.before: Measured | None = None

    def add(self, one: Measured) -> None:
        """Writes one checkpoint; of one that failed, the reason."""
        manifest, warnings = self.writer.manifest, self.series.warnings
        manifest.warnings = warnings
        if one.error:
            warnings.append(one.error)
            self.writer.error = self.writer.error or one.error
            return
        warnings += [line for line in one.warnings if line not in warnings]
        if self.before is not None and self.before.digest == one.digest:
            pair = self.series.files[self.before.step], self.series.files[one.step]
            warnings.append(f"{pair[0]} and {pair[1]} hold identical weights")
        self.before = one
        self.store.add(one.measurement)
        manifest.step = one.step
        there = {reading.name for reading in one.readings}
        manifest.skipped = {name: why for name, why in (one.skipped | manifest.skipped).items() if name not in there}
        manifest.problems = one.problems | manifest.problems
        self.writer.tell(one.step, one.readings)


def _new_folder(runs: Path, name: str) -> Path:
    folder, number = runs / safe_name(name), 2
    while (folder / FILE).exists():
        folder, number = runs / f"{name}-{number}", number + 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error.strerror}; give another folder with --runs") from None
    return folder


def _manifest(series: Series, plan: Plan, measured: Measured, config: dict[str, Any]) -> Manifest:
    return new_manifest(
        task="checkpoints",
        plugin="",
        preset="",
        config=config,
        seed=0,
        kind="checkpoints",
        steps=list(series.files)[-1],
        metric="loss" if measured.has_loss else "induction/prefix_matching",
        probes=[name for name in plan.probes if name not in measured.skipped],
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        versions=versions(),
        **this_process(),
    )
