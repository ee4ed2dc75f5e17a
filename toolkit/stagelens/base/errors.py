"""Errors that a person reads: one line, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StagelensError(Exception):
    """An error that is shown as its one-line message. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(StagelensError):
    """The user's mistake: says what was given, what was expected and what to do."""

    exit_code = 2


class EnvironmentFault(StagelensError):
    """The machine's fault: a full disk, a file that was damaged, a library that is missing."""

    exit_code = 3


def unknown(what: str, given: str, known: Iterable[str], hint: str = "") -> UsageError:
    """The error for a name that is not among the `known` ones: it lists them and the nearest."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    parts = [f"unknown {what} {given!r}" + (f" (did you mean {near[0]!r}?)" if near else "")]
    parts.append(f"known: {', '.join(names)}" if names else "none is known")
    if hint:
        parts.append(hint)
    return UsageError("; ".join(parts))
