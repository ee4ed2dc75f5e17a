"""Errors that the command line prints as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StagelensError(Exception):
    """An error that is shown as its one-line message. The command line exits with `exit_code`."""

    exit_code = 1


class UsageError(StagelensError):
    """A mistake of the user. The message says what was given, what was expected and what to do."""

    exit_code = 2


class EnvironmentFault(StagelensError):
    """An environment error: a full disk, a damaged file, a missing library."""

    exit_code = 3


def unknown(what: str, given: str, known: Iterable[str], hint: str = "") -> UsageError:
    """Returns the error for a name that is not in `known`. It lists the known names and suggests the nearest."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    parts = [f"unknown {what} {given!r}" + (f" (did you mean {near[0]!r}?)" if near else "")]
    parts.append(f"known: {', '.join(names)}" if names else "none is known")
    if hint:
        parts.append(hint)
    return UsageError("; ".join(parts))
