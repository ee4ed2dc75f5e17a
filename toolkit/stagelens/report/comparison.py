"""A comparison that can be shown: the aligned runs as a figure, an HTML page, a table or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelens.base import UsageError, json_text, write_text
from stagelens.comparing import AlignedRuns, align_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison(AlignedRuns):
    """Runs side by side: `table`, `curves`, `figure()`, `to_html()` and `save(path)`."""

    def figure(self) -> Figure:
        """The figure, one panel per series."""
        from stagelens.figures import comparison_figure

        return comparison_figure(self)

    def to_html(self) -> str:
        """One self-contained HTML page in which series and alignment can be switched."""
        from stagelens.report.pages import comparison_page

        return comparison_page(self)

    def save(self, path: str | Path) -> Path:
        """Writes a png, svg, html, csv or json file, as the ending says, whole or not at all."""
        path = Path(path)
        check_suffix(path)
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: {path.parent} is not a directory; make it or give another FILE")
        _WRITERS[path.suffix.lower()](self, path)
        return path


def compare(
    runs: Any,
    probes: Sequence[str] | str = (),
    align: str = "step",
    *,
    relative: bool = False,
    folder: str | Path | None = None,
) -> Comparison:
    """Puts `runs` (names, paths, `Run`s or `Timeline`s) on a common axis.

        sl.compare(["markov-seed0", "markov-seed1"], probes=["attention_sparsity/entropy"], align="stage").save("x.png")

    Runs that differ in nothing but the seed become one group with a mean and a spread. `probes` are series, or probes
    for all of their series, or "all" (default: the metric the runs share). `align` is step, fraction, loss or stage.
    `folder` is where names are looked for (default: the runs folder).
    """
    aligned = align_runs(runs, probes, align, relative=relative, folder=folder)
    return Comparison(aligned.groups, aligned.series, aligned.align, aligned.relative)


def check_suffix(path: Path) -> None:
    """An error unless the ending of `path` is one that `save` can write."""
    if path.suffix.lower() not in _WRITERS:
        endings = ", ".join(_WRITERS)
        raise UsageError(f"cannot write {str(path)!r}: its ending is {path.suffix or 'missing'!r}, expected {endings}")


def _save_figure(comparison: Comparison, path: Path) -> None:
    from stagelens.figures import save

    save(comparison.figure(), path)


_WRITERS: dict[str, Callable[[Comparison, Path], None]] = {
    ".png": _save_figure,
    ".svg": _save_figure,
    ".html": lambda comparison, path: write_text(path, comparison.to_html()),
    ".csv": lambda comparison, path: write_text(path, comparison.to_csv()),
    ".json": lambda comparison, path: write_text(path, json_text(comparison.to_dict()) + "\n"),
}
