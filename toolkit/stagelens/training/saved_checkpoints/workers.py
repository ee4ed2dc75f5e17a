"""Several processes that measure the checkpoints of a series, with the numbers of one process.

Each of n workers takes every n-th checkpoint. It loads the model and measures the probes that depend on this checkpoint
alone. A probe may carry a state from one checkpoint to the next, such as a direction to follow. The workers form a
ring, in which each passes these states on to the worker of the next checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from stagelens.base import EnvironmentFault, StagelensError, UsageError, environment, threads_each, worker_environment
from stagelens.training.saved_checkpoints.measuring import (
    Checkpoint,
    Measured,
    Plan,
    States,
    loader_of,
    open_checkpoint,
    packed_states,
    unpacked_states,
)
from stagelens.training.saved_checkpoints.series import Source


@dataclass(frozen=True)
class Share:
    """What one worker measures: (index, step, source) of each checkpoint, of `total` ones."""

    plan: Plan
    files: Sequence[tuple[int, int, Source]]
    total: int
    states: bytes  # of the checkpoint before the first one
    plugin_dirs: tuple[str, ...]
    threads: int


def measured_by_workers(
    jobs: int, plan: Plan, files: Mapping[int, Source], states: States, plugin_dirs: Sequence[str] = ()
) -> Generator[Measured]:
    """Yields the measurements of the checkpoints `files`, in their order. One that fails does not stop the others."""
    jobs, threads, context = min(jobs, len(files)), threads_each(jobs), get_context("spawn")
    numbered = [(index, step, source) for index, (step, source) in enumerate(files.items())]
    ring = [context.Pipe(duplex=False) for _ in range(jobs)]  # (what a worker reads, what the one before it writes)
    answers = [context.Pipe(duplex=False) for _ in range(jobs)]
    workers = []
    try:
        with environment(worker_environment(threads)):  # before a worker imports numpy or torch
            for number in range(jobs):
                share = Share(
                    plan, numbered[number::jobs], len(files), packed_states(states), tuple(plugin_dirs), threads
                )
                pipes = ring[number][0], ring[(number + 1) % jobs][1], answers[number][1]
                worker = context.Process(target=_serve, args=(share, *pipes), daemon=True)
                worker.start()
                workers.append(worker)
        for pipe in [*(pipe for pair in ring for pipe in pair), *(writer for _, writer in answers)]:
            pipe.close()  # the workers have their own; so a dead worker is noticed
        for index, _, source in numbered:
            try:
                yield answers[index % jobs][0].recv()
            except EOFError:
                raise _death(workers, source) from None
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _death(workers: Sequence[Any], source: Source) -> StagelensError:
    """Returns the error for a worker that died. The others end with it, since the ring is open."""
    for worker in workers:
        worker.join(10)
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    how = f"signal {-codes[0]}" if codes and codes[0] < 0 else f"exit code {codes[0] if codes else 0}"
    return EnvironmentFault(
        f"a worker died ({how}) before {source} was measured; it may need more memory than there is: try fewer --jobs, "
        "and in a script call it under `if __name__ == '__main__':`"
    )


def _serve(share: Share, before: Connection, after: Connection, answers: Connection) -> None:
    """Measures the checkpoints of one share in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.dup2(2, 1)  # stdout is reserved for the answer of the command
    import torch

    from stagelens.host import make_host

    torch.set_num_threads(share.threads)
    host, loader, plan = make_host(share.plugin_dirs), loader_of(share.plan.first), share.plan
    for index, step, source in share.files:

        def opened(step: int = step, source: Source = source) -> Checkpoint:
            checkpoint = open_checkpoint(loader, plan, host, step, source)
            if early := checkpoint.measure([name for name in plan.probes if name not in plan.carrying], {}):
                names = ", ".join(early)
                raise UsageError(f"{names} carries a state from {source} on, not from the first; use --jobs 1")
            return checkpoint

        def received(index: int = index) -> bytes:
            return before.recv_bytes() if index else share.states

        try:
            measured, states = _measured(opened, received, plan.carrying, step)
            if index + 1 < share.total:
                after.send_bytes(states)
            answers.send(measured)
        except (EOFError, OSError):  # another worker died, or the parent
            return


def _measured(
    opened: Callable[[], Checkpoint], received: Callable[[], bytes], carrying: Sequence[str], step: int
) -> tuple[Measured, bytes]:
    """Measures one checkpoint. Returns what it gave, and the states for the next one."""
    checkpoint, error = None, ""
    try:
        checkpoint = opened()
    except StagelensError as fault:
        error = str(fault)
    states = received()
    if checkpoint is not None and carrying:
        try:
            states = packed_states(checkpoint.measure(carrying, unpacked_states(states)))
        except StagelensError as fault:
            error = str(fault)
    if checkpoint is not None:
        checkpoint.release()
    measured = Measured(step, error=error) if error or checkpoint is None else checkpoint.measured
    return measured, states


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
