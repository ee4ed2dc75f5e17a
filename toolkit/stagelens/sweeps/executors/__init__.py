"""Executors run the jobs of a sweep. All of them call the same function, so they produce the same runs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from stagelens.base import UsageError, unknown
from stagelens.sweeps.executors.work import Job, Outcome

__all__ = ["EXECUTORS", "Executor", "Job", "Outcome", "make_executor"]

EXECUTORS = ("local", "ray")
RETRIES = 1  # how often a job is repeated after its worker died


class Executor(Protocol):
    """Runs jobs and yields the outcome of each as it ends, in any order. Closing the generator stops the workers."""

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]: ...


def make_executor(
    name: str, workers: int | None = None, address: str | None = None, results: str = "shared"
) -> Executor:
    """Returns the executor called `name`. `workers` is the number of jobs at a time (None: one per core)."""
    if name == "local":
        from stagelens.sweeps.executors.local import Local

        if address is not None:
            raise UsageError("--address is for --executor ray; local workers are on this machine")
        if results != "shared":
            raise UsageError(f"--results {results} is for --executor ray; local workers write the runs themselves")
        return Local(workers)
    if name == "ray":
        from stagelens.sweeps.executors.on_ray import OnRay

        return OnRay(workers, address, results)
    raise unknown("executor", name, EXECUTORS)
