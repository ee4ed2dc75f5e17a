"""A series: the checkpoints of one training by step, in a directory or on the hub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from stagelens.base import UsageError
from stagelens.training.saved_checkpoints.hub import Revision
from stagelens.training.saved_checkpoints.hugging_face import is_hugging_face

ENDINGS = (".safetensors", ".pt", ".pth", ".bin")
NUMBER = re.compile(r"\d+")

Source = Path | Revision  # a file, a directory of Hugging Face, or a revision on the hub


@dataclass
class Series:
    """The checkpoints of one training by step, and lines about what is unusual."""

    files: dict[int, Source]
    warnings: list[str] = field(default_factory=list)

    @property
    def first(self) -> Source:
        return next(iter(self.files.values()))

    @property
    def title(self) -> str:
        """The name of the training: of the repository, or of the directory that contains the checkpoints."""
        first = self.first
        if isinstance(first, Revision):
            name = first.repo.rpartition("/")[2]
        elif first.is_dir():
            name = (first.parent if NUMBER.search(first.name) else first).resolve().name
        else:
            name = (first.parent if NUMBER.search(first.stem) else first.parent.parent).resolve().name
        return re.sub(r"[^\w.-]", "-", name) or "series"


def find_series(places: Sequence[Path], *, every: int = 1, first: int = 0, last: int | None = None) -> Series:
    """Returns the checkpoints in `places` (checkpoints, or directories of them), by the last number in each name."""
    sources = [source for place in places for source in checkpoints_at(place)]
    if not sources:
        raise UsageError(
            f"no checkpoints in {', '.join(map(str, places))}; expected files such as 100.safetensors, or directories "
            "such as checkpoint-100 with config.json and weights"
        )
    found = _by_step([(step_of(source, alone=len(sources) == 1), source) for source in sources])
    series = _selected(found, every, first, last)
    if len(places) > 1 and list(found) != sorted(found):
        series.warnings.insert(0, "the checkpoints were given out of order; they are read by step")
    return series


def find_revisions(
    repo: str, revisions: Sequence[str], *, every: int = 1, first: int = 0, last: int | None = None
) -> Series:
    """Returns revisions of a repository on the hub, by the last number in each name. Nothing is downloaded yet."""
    names = [name.strip() for name in revisions if name.strip()] or ["main"]
    found = [(_number(name, len(names) == 1, f"revision {name!r}"), Revision(repo, name)) for name in names]
    return _selected(_by_step(found), every, first, last)


def checkpoints_at(place: Path) -> list[Path]:
    """Returns the checkpoints at `place`: itself, or those in the directory, or one directory deeper."""
    if place.is_file():
        return [place.parent if is_hugging_face(place.parent) else place]
    if not place.is_dir():
        raise UsageError(f"there is no checkpoint {place}; give files or a directory of them")
    numbered = sorted(path for path in place.iterdir() if path.is_dir() and path.name[-1].isdigit())
    folders = [path for path in numbered if is_hugging_face(path)]
    if not folders and is_hugging_face(place):
        return [place]
    here = [path for path in place.iterdir() if path.suffix in ENDINGS and NUMBER.search(path.stem)]
    others = [path for path in numbered if path not in folders]
    deeper = [path for folder in others for ending in ENDINGS for path in folder.glob(f"*{ending}")]
    return sorted(folders or here or deeper, key=step_of)


def step_of(path: Path, alone: bool = False) -> int:
    """Returns the last number in a file's name, else in its directory's. Without one, an only directory has step 0."""
    if path.is_dir():
        return _number(path.resolve().name, alone, str(path))
    return _number(path.stem if NUMBER.search(path.stem) else path.parent.name, False, str(path))


def _number(name: str, alone: bool, what: str) -> int:
    numbers = NUMBER.findall(name)
    if not numbers and not alone:
        raise UsageError(f"{what} has no step in its name; name checkpoints by step, such as 100.safetensors")
    return int(numbers[-1]) if numbers else 0


def _by_step(found: Sequence[tuple[int, Source]]) -> dict[int, Source]:
    steps: dict[int, Source] = {}
    for step, source in found:
        if step in steps:
            raise UsageError(f"{steps[step]} and {source} are both of step {step}; leave one of them out")
        steps[step] = source
    return steps


def _selected(found: Mapping[int, Source], every: int, first: int, last: int | None) -> Series:
    steps = [step for step in sorted(found) if step >= first and (last is None or step <= last)]
    if not steps:
        raise UsageError(f"no checkpoint between the steps {first} and {last}; there are {min(found)} to {max(found)}")
    return Series({step: found[step] for step in steps[::every]}, _gaps({step: found[step] for step in steps}))


def _gaps(files: Mapping[int, Source]) -> list[str]:
    """Returns a line for each gap in a series whose steps are evenly spaced otherwise."""
    differences = Counter(b - a for a, b in pairwise(files))
    if not differences:
        return []
    usual, times = differences.most_common(1)[0]
    if times < 2 or times * 2 < len(files):
        return []
    missing = [(a, b) for a, b in pairwise(files) if b - a > usual and (b - a) % usual == 0]
    return [f"steps seem to be missing between {files[a]} and {files[b]}" for a, b in missing]
