"""Local workers: spawned processes that live as long as the sweep, so that each imports torch once."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from stagelens.base import EnvironmentFault, cores, environment, gpus_in_turn, threads_each, worker_environment
from stagelens.sweeps.executors import RETRIES
from stagelens.sweeps.executors.work import Job, Outcome, perform

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

PATIENCE = 10.0  # seconds that a worker has to write its checkpoint when it is stopped


class Local:
    """Runs jobs in `workers` processes, each with its fraction of the cores and, if there are several, one of the GPUs.

    A job whose worker dies is repeated `RETRIES` times.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self.threads = threads_each(self.workers)

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Outcome]]:
        waiting = deque((job, 0) for job in jobs)
        gpus = gpus_in_turn(jobs[0].device) if jobs else []
        count = min(self.workers, len(jobs))
        team = [_Worker(self.threads, gpus[number % len(gpus)] if gpus else None) for number in range(count)]
        try:
            while waiting or any(worker.job for worker in team):
                for worker in team:
                    if worker.job is None and waiting:
                        worker.give(*waiting.popleft())
                for worker in _heard_from(team):
                    job, tries = worker.job, worker.tries
                    outcome = worker.answer()
                    if outcome is None or outcome.interrupted:  # it died, or another process stopped it
                        team[team.index(worker)] = _Worker(self.threads, worker.gpu)
                        if job is not None and tries < RETRIES:
                            waiting.appendleft((job, tries + 1))
                            continue
                        outcome = _death(worker, tries + 1, job)
                    if job is not None and outcome is not READY:
                        yield job, outcome
        finally:
            _dismiss(team)


READY = Outcome()  # what a worker sends when it has started


class _Worker:
    """A spawned process, and the job that it runs."""

    def __init__(self, threads: int, gpu: str | None = None) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.threads, self.gpu = threads, gpu
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with environment(worker_environment(threads, gpu)):  # before the child imports numpy or torch
            self.process.start()
        theirs.close()
        self.started = False
        self.job: Job | None = None
        self.tries = 0

    def give(self, job: Job, tries: int) -> None:
        self.job, self.tries = job, tries
        with suppress(OSError):  # it is dead; `answer` returns None then
            self.pipe.send(replace(job, threads=self.threads))

    def answer(self) -> Outcome | None:
        """Returns what the worker sent: `READY`, or the outcome of its job; None if it died."""
        try:
            said: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            if not self.started:
                raise EnvironmentFault(
                    "a worker could not start (see above); in a script, call it under `if __name__ == '__main__':`"
                ) from None
            return None
        if not self.started:
            self.started = True
            return READY
        self.job = None
        return said


def _heard_from(team: Sequence[_Worker]) -> list[_Worker]:
    """Waits until a worker sends something or dies, and returns all that did."""
    ready = connection.wait([worker.pipe for worker in team])
    return [worker for worker in team if worker.pipe in ready]


def _death(worker: _Worker, tries: int, job: Job | None) -> Outcome:
    code = worker.process.exitcode or 0
    how = f"killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    reason = f"its worker died {tries} times, at last {how}; it may need more memory than there is: try fewer --workers"
    return Outcome(errors=dict.fromkeys(job.seeds if job else (), reason))


def _dismiss(team: Sequence[_Worker]) -> None:
    """Ends idle workers, stops busy ones at their next checkpoint, and waits for all."""
    for worker in team:
        if worker.job is None:
            worker.pipe.close()
        else:
            worker.process.terminate()
    for worker in team:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _serve(pipe: Connection) -> None:
    """Runs one job after another in a worker, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep handles Ctrl-C for its workers
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    os.dup2(2, 1)  # stdout is reserved for the answer of the sweep
    try:
        pipe.send(READY)
        while True:
            outcome = perform(pipe.recv())
            pipe.send(outcome)
            if outcome.interrupted:
                return
    except (EOFError, OSError):
        return


def _end_with_the_sweep() -> None:
    """Stops this worker at its next step if the sweep dies: another sweep may continue its run."""
    sweep = parent_process()
    if sweep is not None:
        connection.wait([sweep.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
