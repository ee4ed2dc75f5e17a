"""`stagelens probe`: a timeline from saved checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.options import Json, Runs, State, names
from stagelens.cli.progress import run_progress
from stagelens.cli.show import show_summary


def probe(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="Files named by step, or directories of them.")
    ],
    probes: Annotated[str | None, typer.Option(help="Probes, separated by commas (default: the default ones).")] = None,
    batch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tokens to measure on: a safetensors file with one tensor.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Take every n-th checkpoint.")] = 1,
    first: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="The first step to take.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="The last step to take.")] = None,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: after the directory).")] = None,
    json: Json = False,
) -> None:
    """Make a timeline from saved checkpoints.

    The checkpoints may be of any HookedTransformer. The run gets stages, figures and a report.

    A directory contains config.json (`model.cfg.to_dict()`) and weights named by step, as safetensors or state dicts.

    Example: stagelens probe my_training/ --probes induction,attention_sparsity
    """
    state: State = context.obj
    for known in names(probes) or []:
        state.host.probes[known]  # an unknown name is an error before anything heavy is imported
    from stagelens.api import probe_series
    from stagelens.training import find_series, load_batch

    series = find_series(checkpoints, every=every, first=first, last=last)
    series.batch = str(batch or "")
    with run_progress(f"{len(series.files)} checkpoints") as progress:
        run = probe_series(
            series,
            probes=names(probes),
            batch=load_batch(batch) if batch else None,
            batch_name=str(batch),
            runs=runs,
            name=name,
            host=state.host,
            progress=progress,
        )
    if not json:
        show_summary(run)
        return
    for warning in run.warnings:
        output.warn(warning)
    output.print_json(run.summary())
