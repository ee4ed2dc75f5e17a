"""Limits of what a plugin's code may take, and how a call that goes beyond them becomes an ordinary error."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import Any

from stagelens.errors import UsageError

TIME_LIMIT = "STAGELENS_TIME_LIMIT"  # seconds for one call of a probe or an observer
MEMORY_LIMIT = "STAGELENS_MEMORY_LIMIT"  # MiB by which memory may grow after a run's first measurement
DEFAULTS = {TIME_LIMIT: 600.0, MEMORY_LIMIT: 1024.0}  # 0: no limit


def limit(variable: str) -> float:
    """The limit that the environment, or else the table above, has for `variable`."""
    given = os.environ.get(variable)
    if not given:
        return DEFAULTS[variable]
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"${variable} is {given!r}: expected a number, 0 for no limit")
    return number


class _Alarm(BaseException):
    """Passes through a plugin's `except Exception`."""


class contained:
    """Turns a plugin's hanging, and its `sys.exit`, into an ordinary error of the block.

    The limit is kept by a signal, so in the main thread alone, and not inside one call of a library that never returns.
    """

    __slots__ = ("_before", "_seconds")

    def __enter__(self) -> None:
        self._seconds = limit(TIME_LIMIT) if _can_ring() else 0.0
        if self._seconds:
            handler = signal.signal(signal.SIGALRM, _ring)
            self._before = handler, signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._seconds:
            handler, timer = self._before
            signal.setitimer(signal.ITIMER_REAL, *timer)  # somebody else's, where there was one, rings that much later
            signal.signal(signal.SIGALRM, handler)
        if isinstance(error, _Alarm):
            raise TimeoutError(f"it took more than {self._seconds:g} s (${TIME_LIMIT} sets the limit)") from None
        if isinstance(error, SystemExit):
            raise RuntimeError(f"it called sys.exit({error.code!r})") from None


def _can_ring() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _ring(number: int, frame: Any) -> None:  # noqa: ARG001
    raise _Alarm
