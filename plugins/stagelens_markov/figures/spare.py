"""More heads than intervals: the figure and the tables of docs/spare-heads.md.

`python -m stagelens_markov.figures.spare` prints the tables. Their runs are trained through the user's cache.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from stagelens import Recorder, Run, Task
from stagelens.claims import Lab, cache_folder
from stagelens.experiments import eval_batch
from stagelens.figures import draw_levels, headline, levels_of, line_style
from stagelens.host import make_host
from stagelens_markov.claims.measures import leaders, patterns, times_learned
from stagelens_markov.figures.flow import TIME_LABEL
from stagelens_markov.figures.trained import minimal

IN_THE_FLOW = (3, 4, 6)  # heads, for three features
TRAINED = (3, 4, 5, 6)  # heads, for three intervals
SEEDS = (0, 1, 2)  # of the tables in docs/spare-heads.md


def spare_heads(lab: Lab) -> Figure:
    """Draws the loss of the flow, and where each head attends in the end."""
    runs = {heads: flow(lab, heads, 0) for heads in IN_THE_FLOW}
    figure = Figure(figsize=(11.2, 3.0))
    curves, *maps = figure.subplots(1, 1 + len(runs), width_ratios=(2.2, *[1] * len(runs)))
    draw_levels(curves, levels_of(runs[IN_THE_FLOW[0]]))
    for index, (heads, run) in enumerate(runs.items()):
        times, loss = run.timeline.scalar("loss")
        curves.plot(times[1:], loss[1:], label=f"{heads} heads", **line_style(index))
    curves.set(xscale="log", xlabel=TIME_LABEL, ylabel="loss", ylim=(0, None))
    curves.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))  # right of the panel: inside, it covers a level
    for axis, (heads, run) in zip(maps, runs.items(), strict=True):
        names = run.timeline.column("attention").coordinate("position")
        shown = axis.imshow(run.timeline.series("attention")[-1], vmin=0, vmax=1, cmap="Greys", aspect="auto")
        axis.set_xticks(range(len(names)), names, fontsize=7)
        axis.set_yticks(range(heads), [f"head {head}" for head in range(heads)], fontsize=7)
        axis.set_xlabel("position")
        axis.set_title(f"{heads} heads")
    figure.colorbar(shown, ax=maps, label="attention in the end", shrink=0.8)
    headline(figure, "Spare heads stay at position 1 and speed the others up; markov/flow, seed 0")
    return figure


def flow(lab: Lab, heads: int, seed: int) -> Run:
    """Returns the run of the flow with this number of heads."""
    return lab.run("markov/flow", {"heads": heads, "T": 20}, seed)


def trained(lab: Lab, heads: int, seed: int) -> Run:
    """Returns the run of the claims with more heads; with three heads it is theirs."""
    return minimal(lab, seed, **({} if heads == 3 else {"heads": heads}))


def flow_rows(lab: Lab) -> Iterator[list[str]]:
    """Yields the header and a row for each number of heads and seed, of the flow."""
    yield ["heads", "seed", "heads at position 1, 2, 3 in the end", "time of features 1, 2, 3"]
    for heads in IN_THE_FLOW:
        for seed in SEEDS:
            run = flow(lab, heads, seed)
            at = run.timeline.series("attention")[-1].argmax(-1).tolist()  # [head]
            times = [run.manifest.events.get(f"feature {j} learned", np.nan) for j in (1, 2, 3)]
            yield [str(heads), str(seed), _counts(at, range(3)), ", ".join(f"{time:.3g}" for time in times)]


def trained_rows(lab: Lab) -> Iterator[list[str]]:
    """Yields the header and a row for each number of heads and seed, of the trained model."""
    yield [
        *("heads", "seed", "heads at I(1), I(2), I(3) in the end", "step at which I(1), I(2), I(3) are learned"),
        *("excess loss", "loss added without each head at I(1); at I(2); at I(3)"),
    ]
    for heads in TRAINED:
        for seed in SEEDS:
            run = trained(lab, heads, seed)
            names, last = patterns(run.timeline), leaders(run.timeline)[-1]
            times = times_learned(run.timeline)
            added = defaultdict(list)
            for name, loss in zip(last, losses_added(run), strict=True):
                added[name].append(loss)
            yield [
                *(str(heads), str(seed), _counts(last, names)),
                ", ".join(f"{times[name]:.0f}" if name in times else "never" for name in names),
                f"{run.timeline.scalar('excess')[1][-1]:.3f}",
                "; ".join(", ".join(f"{loss:.2f}" for loss in sorted(added[name])[::-1]) or "-" for name in names),
            ]


def losses_added(run: Run) -> list[float]:
    """Returns the increase of the final model's loss when the output of a head is set to zero, [head]."""
    task = run.experiment
    assert isinstance(task, Task)
    recorder = Recorder(run.model_at(), ["head_ablation"], eval_batch(task), task=task)
    recorder.measure(0)
    return [float(loss) for loss in recorder.timeline.series("head_ablation/zero")[0, 0]]


def _counts(found: Sequence[object], wanted: Iterable[object]) -> str:
    return ", ".join(str(found.count(one)) for one in wanted)


def as_markdown(rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as a Markdown table; the first one is the header."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def main() -> None:
    """Prints both tables."""
    lab = Lab(make_host(), cache_folder())
    sys.stdout.write(f"{as_markdown(flow_rows(lab))}\n\n{as_markdown(trained_rows(lab))}\n")


if __name__ == "__main__":
    main()
