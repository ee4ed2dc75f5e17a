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
    """Runs on a common axis: `table`, `curves`, `figure()`, `to_html()` and `save(path)`."""

    def figure(self, *, logx: bool = False, logy: bool = False) -> Figure:
        """Returns the figure, one panel per series, with logarithmic axes if asked for."""
        from stagelens.figures import comparison_figure

        return comparison_figure(self, logx, logy)

    def to_html(self) -> str:
        """Returns one self-contained HTML page in which series and alignment can be switched."""
        from stagelens.report.pages import comparison_page

        return comparison_page(self)

    def save(self, path: str | Path, *, logx: bool = False, logy: bool = False) -> Path:
        """Writes a png, svg, html, csv or json file, by its ending, completely or not at all.

        `logx` and `logy` ask for logarithmic axes of a png or svg figure.
        """
        path = Path(path)
        check_suffix(path)
        check_axes(path, logx, logy)
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: {path.parent} is not a directory; make it or give another FILE")
        if logx or logy:
            from stagelens.figures import save

            save(self.figure(logx=logx, logy=logy), path)
        else:
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
    """Puts runs on a common axis.

        sl.compare(["markov-seed0", "markov-seed1"], probes=["attention_sparsity/entropy"], align="stage").save("x.png")

    Runs that differ only in the seed become one group with a mean and a spread.

    Args:
        runs: Names, paths, `Run`s or `Timeline`s.
        probes: Series, or probes for all of their series, or "all". Default: the metric that the runs share.
        align: The common axis: step, fraction, loss or stage.
        relative: Rescale each curve to its own range, for losses of different tasks.
        folder: The runs directory in which names are looked up.
    """
    aligned = align_runs(runs, probes, align, relative=relative, folder=folder)
    return Comparison(aligned.groups, aligned.series, aligned.align, aligned.relative)


def check_suffix(path: Path) -> None:
    """Raises an error unless `save` can write a file with the ending of `path`."""
    if path.suffix.lower() not in _WRITERS:
        endings = ", ".join(_WRITERS)
        raise UsageError(f"cannot write {str(path)!r}: its ending is {path.suffix or 'missing'!r}, expected {endings}")


def check_axes(path: Path | None, logx: bool, logy: bool) -> None:
    """Raises an error if logarithmic axes are asked for and no figure is written."""
    if (logx or logy) and (path is None or path.suffix.lower() not in FIGURES):
        given = "no file" if path is None else repr(str(path))
        raise UsageError(f"--logx and --logy are for png, svg and pdf figures, and {given} was given; add -o FILE.png")


def _save_figure(comparison: Comparison, path: Path) -> None:
    from stagelens.figures import save

    save(comparison.figure(), path)


FIGURES = (".png", ".svg", ".pdf")
_WRITERS: dict[str, Callable[[Comparison, Path], None]] = {
    **dict.fromkeys(FIGURES, _save_figure),
    ".html": lambda comparison, path: write_text(path, comparison.to_html()),
    ".csv": lambda comparison, path: write_text(path, comparison.to_csv()),
    ".json": lambda comparison, path: write_text(path, json_text(comparison.to_dict()) + "\n"),
}
