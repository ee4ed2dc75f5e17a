"""Measures the cost of a measurement of the default probes, in forward passes and in training steps of the same batch.

Run with `python -m benchmarks.probes`. Times differ between machines and with their load. So only ratios of processor
times are reported, taken in turns within one run. The script exits with 1 if a goal is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import process_time

import torch
from benchmarks import measure
from benchmarks.measure import Row, report
from torch import Tensor
from torch.nn.functional import cross_entropy

import stagelens as sl
from stagelens.base import generator
from stagelens.experiments.schedule import Schedule
from stagelens.models import build_transformer

BATCH, LENGTH, VOCAB = 32, 64, 64
SIZES = {  # layers, heads, d_model, T, batch: at most so many forward passes per measurement
    (2, 4, 64, 64, 32): 2.5,
    (8, 8, 256, 128, 16): 2.0,
    (12, 12, 768, 128, 4): 2.0,
    (2, 4, 64, 512, 8): 3.0,
    (4, 8, 128, 1024, 2): 3.0,
}
BASE = {"heads": 4, "layers": 2, "batch": 16}  # of the growth; each is multiplied by 4, with d_model 128, d_head 16
GROWTH_BAR = 4.6  # of a measurement with 4 times as many; 4 is linear
TRAINED = f"layers 2, heads 4, d_model 64, T {LENGTH}, batch {BATCH}"
STEPS = 2000
MEASUREMENT_BAR = 3.0  # training steps per measurement
SHARE_BAR = 0.05  # of the time of a run on the default schedule


def sample(step: int) -> Tensor:
    """Returns random tokens that repeat after half the length, int [32, 64]. The model learns to copy, in stages."""
    half = torch.randint(VOCAB, (BATCH, LENGTH // 2), generator=generator(0, "train", step))
    return half.repeat(1, 2)


def loss_of(model: torch.nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch)
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


class Measured:
    """A transformer of a given size, which is measured with the default probes on one batch."""

    def __init__(
        self, layers: int, heads: int, d_model: int, length: int, batch: int, d_head: int | None = None
    ) -> None:
        sizes = {"n_layers": layers, "n_heads": heads, "d_model": d_model, "n_ctx": length, "d_head": d_head}
        self.model = build_transformer(**sizes, d_vocab=VOCAB, d_mlp=4 * d_model, seed=0).eval()
        self.batch = torch.randint(VOCAB, (batch, length), generator=generator(0, "batch"))
        self.recorder = sl.Recorder(self.model, batch=self.batch, loss=loss_of)

    def forward(self) -> None:
        with torch.no_grad():
            self.model(self.batch)

    def measure(self) -> None:
        self.recorder.measure(0)


def cost_by_size() -> list[Row]:
    """Returns the cost of a measurement in forward passes, for each size."""
    rows = []
    for size, goal in SIZES.items():
        made = Measured(*size)
        times = measure.in_turns({"forward": made.forward, "measured": made.measure}, 15, clock=process_time)
        name = "layers {}, heads {}, d_model {}, T {}, batch {}".format(*size)
        rows.append(Row(name, measure.ratio(times, "measured", "forward"), at_most=goal, unit="forward passes"))
    return rows


def growth() -> list[Row]:
    """Returns how a measurement grows with heads, layers and batch."""
    rows = []
    for what in BASE:
        small, large = (BASE | {what: times * BASE[what]} for times in (1, 4))
        made = [Measured(n["layers"], n["heads"], 128, LENGTH, n["batch"], d_head=16) for n in (small, large)]
        times = measure.in_turns({"small": made[0].measure, "large": made[1].measure}, 15, clock=process_time)
        name = f"{large[what]} / {small[what]} {what}" if what != "batch" else f"batch {large[what]} / {small[what]}"
        rows.append(Row(f"a measurement: {name}", measure.ratio(times, "large", "small"), at_most=GROWTH_BAR))
    return rows


class Training:
    """The model for which the bars are set, its optimizer, and a recorder with some probes on a fixed batch."""

    def __init__(self, probes: list[str] | None = None) -> None:
        self.model = build_transformer(
            n_layers=2, n_heads=4, d_model=64, n_ctx=LENGTH, d_vocab=VOCAB, d_mlp=256, seed=0
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.recorder = sl.Recorder(self.model, probes=probes, batch=sample(-1), loss=loss_of)

    def step(self, number: int = 0) -> float:
        loss = loss_of(self.model, sample(number))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def measure(self, number: int = 0) -> float:
        readings = self.recorder.measure(number)
        return float(next(r.values for r in readings if r.name == "loss"))


def seconds(function: Callable[[], object]) -> float:
    start = process_time()
    function()
    return process_time() - start


def in_turns(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Returns the median time of each function relative to the first, taken in turns and in alternating order."""
    for function in functions:
        function()
    ratios: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats):
        order = range(len(functions)) if repeat % 2 else reversed(range(len(functions)))
        times = {index: seconds(functions[index]) for index in order}
        for index, values in enumerate(ratios):
            values.append(times[index] / times[0])
    return [median(values) for values in ratios]


def cost_of_a_measurement(repeats: int = 31) -> float:
    """Prints the cost that each probe adds to a measurement, and returns the cost of all probes together."""
    training = Training()
    names = list(training.recorder.probes)
    sets: dict[str, list[str] | None] = {"all default probes": None, "no probe: the pass and the loss": []}
    sets |= {f"+ {name}": [name] for name in names}
    functions: list[Callable[[], object]] = [training.step]
    functions += [Training(probes).measure for probes in sets.values()]
    _, everything, nothing, *each = in_turns(functions, repeats)
    print(f"{'one measurement':36} {'training steps':>14}")
    for label, value in zip(sets, [everything, nothing, *(value - nothing for value in each)], strict=True):
        print(f"{label:36} {value:14.2f}")
    return everything


def share_of_a_run() -> tuple[int, float]:
    """Returns the number of measurements in 2,000 steps on the default schedule, and their fraction of the time."""
    training, schedule = Training(), Schedule()
    measured: list[tuple[float, float]] = []
    spent = {"steps": 0.0, "measurements": 0.0}
    due: int | None = 0
    for step in range(STEPS + 1):
        if step == due:
            start = process_time()
            measured.append((step, training.measure(step)))
            spent["measurements"] += process_time() - start
            due = schedule.next_after(step, STEPS, measured)
        if step < STEPS:
            start = process_time()
            training.step(step)
            spent["steps"] += process_time() - start
    return len(measured), spent["measurements"] / sum(spent.values())


def main() -> int:
    rows = [*cost_by_size(), *growth()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratio = cost_of_a_measurement()
    count, share = share_of_a_run()
    torch.set_num_threads(threads)
    counted = count * ratio / (count * ratio + STEPS)
    rows += [
        Row(f"{TRAINED}: one measurement", ratio, at_most=MEASUREMENT_BAR, unit="training steps"),
        Row(f"fraction of a run of {STEPS:,} steps, {count} measurements x cost", counted, at_most=SHARE_BAR, unit=""),
        Row(f"fraction of a run of {STEPS:,} steps, as timed", share, at_most=SHARE_BAR, unit=""),
    ]
    print()
    return report(__file__, rows, "forward passes of the same model on the same batch; training on one thread")


if __name__ == "__main__":
    sys.exit(main())
