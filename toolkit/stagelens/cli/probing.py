"""`probe`: a timeline from saved checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.listing import Json
from stagelens.cli.main import app
from stagelens.cli.running import Runs, progress_bar
from stagelens.cli.state import State


@app.command()
def probe(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="Files named by step, or folders of them.")
    ],
    probes: Annotated[str | None, typer.Option(help="Probes, separated by commas (default: the default ones).")] = None,
    batch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tokens to measure on: a safetensors file with one tensor.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Take every n-th checkpoint.")] = 1,
    first: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="The first step to take.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="The last step to take.")] = None,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: after the folder).")] = None,
    json: Json = False,
) -> None:
    """Make a timeline from saved checkpoints.

    Of any HookedTransformer, with stages and pictures.

    A folder holds config.json (`model.cfg.to_dict()`) and weights named by step, as safetensors or as a state dict.

    Example: stagelens probe my_training/ --probes induction,attention_sparsity
    """
    state: State = context.obj
    wanted = probes.split(",") if probes else None
    for known in wanted or []:
        state.host.probes[known]  # a wrong name is told before anything heavy is imported
    from stagelens.api import probe_series
    from stagelens.training import find_series, load_batch

    series = find_series(checkpoints, every=every, first=first, last=last)
    series.batch = str(batch or "")
    with progress_bar(f"{len(series.files)} checkpoints") as progress:
        run = probe_series(
            series,
            probes=wanted,
            batch=load_batch(batch) if batch else None,
            batch_name=str(batch),
            runs=runs,
            name=name,
            host=state.host,
            progress=progress,
        )
    if json:
        for warning in run.warnings:
            output.warn(warning)
        output.print_json(run.summary())
    else:
        from stagelens.cli.inspecting import show_summary

        show_summary(run)
