"""Problems: exceptions of a plugin's code that cost a run one figure or one prediction, not the run itself."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagelens.base.errors import EnvironmentFault

TOOLKIT = Path(__file__).parents[1]


@contextmanager
def noting(problems: dict[str, str], what: str, owner: Any = None, callback: Any = None) -> Iterator[None]:
    """Runs a block in which a plugin may fail. An exception ends the block and becomes `problems[what]`, one line.

    `owner` is the task or flow whose code runs: the line names its id and the place in its own code. `callback` is its
    method that returned what the block works on. Environment errors, such as a full disk, are not the plugin's: they
    pass.
    """
    try:
        yield
    except EnvironmentFault:
        raise
    except (Exception, SystemExit) as error:
        whose = f" of {owner.id}" if owner is not None else ""
        notes = getattr(error, "__notes__", ())
        reason = " ".join([f"{type(error).__name__}:", *str(error).split(), *notes])
        problems[what] = f"{what}{whose} failed: {reason} ({culprit(error, owner, callback)})"


def culprit(error: BaseException, owner: Any = None, callback: Any = None) -> str:
    """`file:line` of the innermost frame in the code of `owner`; without one, of the definition of `callback`.

    Without either it is the innermost frame outside of the toolkit, or of all.
    """
    if own := place_in(error, owner):
        return own
    if callback is not None:
        code = callback.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([frame for frame in frames if not _lies_in(frame.filename, TOOLKIT)] or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def place_in(error: BaseException, *owners: Any) -> str:
    """`file:line` of the innermost frame in the code of one of `owners` (objects or functions); empty if none is."""
    homes = [home for home in map(_home, owners) if home is not None]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if any(_lies_in(frame.filename, home) for home in homes)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _home(owner: Any) -> Path | None:
    """The package folder, or the file, that `owner` or its class comes from; None if it was typed into a notebook."""
    name = str(getattr(owner, "__module__", ""))
    package, module = sys.modules.get(name.partition(".")[0]), sys.modules.get(name)
    file = getattr(package, "__file__", None) or getattr(module, "__file__", None)  # a namespace package has no file
    if file is None:
        return None
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def _lies_in(file: str, home: Path) -> bool:
    path = Path(file)
    return path == home or home in path.parents
