"""`stagelens probe`: a timeline from saved checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagelens.cli import output
from stagelens.cli.completing import complete_probes
from stagelens.cli.options import Json, Runs, State, names
from stagelens.cli.progress import run_progress
from stagelens.cli.show import show_summary


def probe(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CHECKPOINT]...", help="Checkpoints named by step, or directories of them."),
    ] = None,
    hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="A repository on the Hugging Face hub, instead of checkpoints.")
    ] = None,
    revisions: Annotated[
        str | None, typer.Option(help="Its revisions, named by step and separated by commas (default: main).")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            help="Probes, separated by commas: 'a,b' selects these, '+a' adds to the default ones, or 'all'.",
            autocompletion=complete_probes,
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text to measure on; the checkpoints' tokenizer splits it.")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tokens to measure on: one tensor, in a file of safetensors or torch.save."),
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(min=1, help="How many sequences of text or random tokens (default: 16).")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=2, help="Tokens in each of them (default: 256, or the model's context).")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Take every n-th checkpoint.")] = 1,
    first: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="The first step to take.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="The last step to take.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that measure checkpoints in parallel.")] = 1,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The run's name (default: after the directory).")] = None,
    json: Json = False,
) -> None:
    """Make a timeline from saved checkpoints.

    The checkpoints may be of Hugging Face language models, or of any HookedTransformer. The run gets stages, figures
    and a report.

    A directory contains checkpoint-100/, step1000/ and so on, each with config.json and weights. Of a HookedTransformer
    it contains what `stagelens.models.save_checkpoint` writes: one config.json, and weights named by step.

    Example: stagelens probe my_training/ --probes induction,attention_sparsity
    """
    state: State = context.obj
    state.host.probe_names(names(probes))  # an unknown name is an error before anything heavy is imported
    from stagelens.api import probe_checkpoints

    with run_progress("checkpoints", "checkpoints") as progress:
        run = probe_checkpoints(
            checkpoints or (),
            hub=hub,
            revisions=names(revisions) or (),
            probes=names(probes),
            text=text,
            batch=batch,
            sequences=sequences,
            length=length,
            every=every,
            first=first,
            last=last,
            jobs=jobs,
            runs=runs,
            name=name,
            host=state.host,
            plugin_dirs=state.plugin_dirs,
            progress=progress,
        )
    if json:
        for warning in run.warnings:
            output.warn(warning)
        output.print_json(run.summary())
    else:
        show_summary(run)
    if run.manifest.error:  # a checkpoint failed; the line is among the warnings
        raise typer.Exit(1)
