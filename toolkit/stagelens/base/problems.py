"""Problems: exceptions in plugin code that lose one figure or one prediction, and do not end the run."""

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

    `owner` is the task or flow whose code runs: the line contains its id and the file and line in its code. `callback`
    is the method of `owner` that returned what the block works on. Environment errors, such as a full disk, are raised.
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
    """Returns `file:line` of the innermost frame in the code of `owner`, else of the definition of `callback`.

    If there is neither, it is the innermost frame outside of the toolkit, else the innermost frame.
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
    """Returns `file:line` of the innermost frame in the code of `owners` (objects or functions), or an empty text."""
    homes = [home for home in map(_home, owners) if home is not None]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if any(_lies_in(frame.filename, home) for home in homes)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _home(owner: Any) -> Path | None:
    """Returns the package directory or the file that defines `owner` or its class; None in a notebook."""
    name = str(getattr(owner, "__module__", ""))
    package, module = sys.modules.get(name.partition(".")[0]), sys.modules.get(name)
    file = getattr(package, "__file__", None) or getattr(module, "__file__", None)  # a namespace package has no file
    if file is None:
        return None
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def _lies_in(file: str, home: Path) -> bool:
    path = Path(file)
    return path == home or home in path.parents
