"""Memory: a command that needs more memory than is free ends with one line instead of being killed by the system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagelens.base.errors import EnvironmentFault

# Messages of numpy and torch, apart from MemoryError, about an array that does not fit into memory.
TOO_LARGE = re.compile(
    r"can't allocate memory|not enough memory|out of memory|overflowed with sizes|integer multiplication overflow"
    r"|array is too big|[Mm]aximum allowed (dimension|size) exceeded"
)
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def within_memory() -> Iterator[None]:
    """Limits this process to the memory that is free now. An allocation that fails becomes an error of one line."""
    try:
        with _held_to(free_memory()):
            yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if not (isinstance(error, MemoryError) or TOO_LARGE.search(str(error))):
            raise
        asked = re.search(r"(allocate|Unable to allocate) ([\d.]+ ?(bytes|[KMGTPE]iB))", str(error))
        much = f": it asked for {asked[2]} at once" if asked else ""
        raise EnvironmentFault(f"there is not enough memory for this{much}; give smaller sizes") from error


def free_memory() -> int | None:
    """Returns the bytes that this process can still allocate, swap included; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines)}
    free = sizes["MemAvailable"] + sizes["SwapFree"]
    try:  # a container has its own limit; the memory of cached files can be reclaimed
        most, used = (int((CGROUP / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (CGROUP / "memory.stat").read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return free
    return min(free, most - used + (int(cached[1]) if cached else 0))


@contextmanager
def _held_to(free: int | None) -> Iterator[None]:
    """Limits this process to `free` more bytes. With an accelerator there is no limit: its memory counts as ours."""
    if free is None or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists():
        yield
        return
    import resource

    data_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([data_pages * resource.getpagesize() + free, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
