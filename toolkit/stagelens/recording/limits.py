"""Limits on the time and memory of a plugin's code. A call that exceeds its limit raises an ordinary error."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stagelens.base import UsageError

TIME_LIMIT = "STAGELENS_TIME_LIMIT"  # seconds for one call of a probe or an observer
MEMORY_LIMIT = "STAGELENS_MEMORY_LIMIT"  # MiB by which memory may grow after a run's first measurement
DEFAULTS = {TIME_LIMIT: 600.0, MEMORY_LIMIT: 1024.0}  # 0: no limit


def limit(variable: str) -> float:
    """Returns the limit that the environment variable `variable` sets, or its default."""
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
    """Ends a call that takes too long. A plugin's `except Exception` does not catch it."""


class _Watch:
    """A timer that, while it is `armed`, checks regularly how long the current call has taken.

    To set a timer takes longer than many calls do, so it is set once for all calls of a measurement.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # the limit, while armed
        self.began: float | None = None  # start of the current call

    @contextmanager
    def armed(self) -> Iterator[None]:
        seconds = limit(TIME_LIMIT)
        if self.seconds or not seconds or not can_ring():
            yield
            return
        handler = signal.signal(signal.SIGALRM, self.ring)
        self.seconds = seconds
        timer = signal.setitimer(signal.ITIMER_REAL, seconds / 4, seconds / 4)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)  # if another timer was set, it fires that much later
            self.seconds = 0.0
            signal.signal(signal.SIGALRM, handler)

    def ring(self, number: int, frame: Any) -> None:  # noqa: ARG002
        if self.began is not None and time.monotonic() - self.began > self.seconds:
            raise _Alarm


_watch = _Watch()
armed = _watch.armed  # around many calls


def can_ring() -> bool:
    """True if the time of a call can be limited: in the main thread, on systems with interval timers."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def contained() -> Iterator[None]:
    """Surrounds a call of a plugin: a call that hangs or calls `sys.exit` raises an ordinary error.

    Time is limited only inside `armed`. The limit uses a signal: it works in the main thread only, and cannot interrupt
    a library function that never returns to Python.
    """
    if _watch.seconds and can_ring():
        _watch.began = time.monotonic()
    try:
        yield
    except _Alarm:
        raise TimeoutError(f"it took more than {_watch.seconds:g} s (${TIME_LIMIT} sets the limit)") from None
    except SystemExit as end:
        raise RuntimeError(f"it called sys.exit({end.code!r})") from None
    finally:
        _watch.began = None
