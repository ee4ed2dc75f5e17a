"""Progress bars on stderr: of one run, of a sweep, and of the claims that are verified. Only a terminal shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagelens.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from stagelens.claims import Chosen, Watch
    from stagelens.sweeps import Tally, Watch as SweepWatch
    from stagelens.training import Progress

Entering = Callable[["list[Chosen]"], "Iterator[Chosen]"]


def _bars(*columns: Any) -> Bars:
    """Returns progress bars with a description, a bar and `columns`; a text is a format of `task`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    own = [TextColumn(column) if isinstance(column, str) else column for column in columns]
    return Progress(TextColumn("{task.description}"), BarColumn(), *own, console=Console(stderr=True))


@contextmanager
def run_progress(label: str, unit: str = "steps") -> Iterator[Progress | None]:
    """Shows a bar with loss, rate in `unit` and time left. The caller reports (step, steps, loss)."""
    if not output.is_terminal():
        yield None
        return
    from rich.progress import TimeElapsedColumn, TimeRemainingColumn

    numbers = ("{task.completed:g}/{task.total:g}", "{task.fields[loss]}", "{task.fields[rate]}")
    with _bars(*numbers, TimeElapsedColumn(), "left", TimeRemainingColumn()) as bar:
        row = bar.add_task(label, total=None, loss="", rate="")

        def update(step: float, steps: float, loss: float | None) -> None:
            speed = bar.tasks[row].speed
            rate = f"{speed:.0f} {unit}/s" if speed and speed >= 1 else ""
            bar.update(row, completed=step, total=steps, loss="" if loss is None else f"loss {loss:.4g}", rate=rate)

        yield update


@contextmanager
def sweep_progress(label: str, describe: Callable[[str, str], str]) -> Iterator[SweepWatch]:
    """Prints a line for each grid point that fails, `describe(name, reason)`, above a bar with rate and time left."""
    if not output.is_terminal():

        def report(tally: Tally) -> None:
            for failure in tally.failures.items():
                output.err(describe(*failure))

        yield report
        return
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    started, failed = time.monotonic(), 0
    with _bars(MofNCompleteColumn(), "{task.fields[rate]}", TimeElapsedColumn(), _countdown()) as bar:
        row = bar.add_task(label, total=None, rate="", end=None)

        def watch(tally: Tally) -> None:
            nonlocal failed
            failed += len(tally.failures)
            for failure in tally.failures.items():
                bar.console.print(describe(*failure), markup=False, highlight=False)
            now = time.monotonic()
            new, rest = tally.done - tally.found + failed, tally.points - tally.done - failed
            rate = f"{60 * new / (now - started):.0f} points/min" if new else ""
            end = now + (now - started) / new * rest if new and rest else None
            words = f"{label}, {failed} failed" if failed else label
            bar.update(row, completed=tally.done + failed, total=tally.points, rate=rate, end=end, description=words)

        yield watch


def _countdown() -> Any:
    """Returns a column with the time until `end`, which also counts down while no grid point finishes."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            end = task.fields["end"]
            return Text(f"left {duration(max(0.0, end - time.monotonic()))}" if end else "")

    return Left()


@contextmanager
def claims_progress(total: int) -> Iterator[tuple[Entering, Callable[[int], None], Watch | None]]:
    """Shows a bar of the claims done above a bar of the current run.

    Returns three functions: the first passes claims on and names the current one; the second takes the number of claims
    done; the third, None without a terminal, takes (run, step, steps).
    """
    if not output.is_terminal():
        yield iter, lambda number: None, None  # noqa: ARG005
        return
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    with _bars(MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[left]}") as bar:
        claims = bar.add_task("claims", total=total, left="")
        run = bar.add_task("", total=None, visible=False, left="")
        running = ""

        def show(row: Any, done: float, of: float, label: str) -> None:
            left = time_left(bar.tasks[row].elapsed or 0.0, done, of)
            bar.update(row, completed=done, total=of, description=label, left=left, visible=True)

        def entering(chosen: list[Chosen]) -> Iterator[Chosen]:
            for number, claim in enumerate(chosen):
                show(claims, number, total, f"{claim.plugin} {claim.ref.id}: {claim.ref.title}")
                yield claim
            show(claims, total, total, "claims")

        def finished(number: int) -> None:
            show(claims, number, total, bar.tasks[claims].description)

        def watch(label: str, step: float, steps: float) -> None:
            nonlocal running
            if label != running or step < bar.tasks[run].completed:
                running = label
                bar.reset(run)
            show(run, step, steps, f"  {label}")

        yield entering, finished, watch


def time_left(elapsed: float, done: float, of: float) -> str:
    """Returns `left 1:30`, if the rest takes as long as what is done; rich's own estimate uses the last half minute."""
    return f"left {duration(elapsed / done * (of - done))}" if 0 < done < of else ""


def duration(seconds: float) -> str:
    """Returns `1.5 s`, `2:05` or `1:02:05`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
