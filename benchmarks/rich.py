"""Compares the training loop of a run of `rich/toy` with a plain loop of the same model, in steps per second.

Run with `python -m benchmarks.rich`. The plain loop is written by hand: draw tokens, call the model,
compute half the mean squared error, backpropagate, step. Both use the problem and the batches of the quick preset and
take steps of Stage II.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from benchmarks.measure import Row, in_turns, ratio, report

from stagelens.experiments.training import Training
from stagelens_rich.config import RichToyConfig
from stagelens_rich.tasks.toy import RichToy

STEPS = 40  # in a turn
CONFIG = RichToyConfig()


def plain_loop() -> Callable[[], None]:
    """A step of Stage II, by hand."""
    torch.manual_seed(0)
    model = RichToy(CONFIG).build_model()
    layer = model.blocks[1]
    model.blocks[0].requires_grad_(False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=CONFIG.lr)
    share, score = 1 / (1 + CONFIG.alpha_star), CONFIG.w_star**2

    def step() -> None:
        x = torch.randn(CONFIG.batch_size, CONFIG.L, 1)
        attention = (score * x[:, :-2] * x[:, -1:]).softmax(1)
        target = torch.stack([(1 - share) * x[:, -3], share * (attention * x[:, 1:-1]).sum(1)], dim=1)
        loss = 0.5 * (model(x) - target).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def run_loop() -> Callable[[], None]:
    """A step of Stage II, as a run takes it."""
    training = Training(RichToy(CONFIG))
    steps = iter(range(CONFIG.first_steps, 10**9))
    return lambda: training.advance(next(steps))


def repeated(step: Callable[[], None]) -> Callable[[], None]:
    def some() -> None:
        for _ in range(STEPS):
            step()

    return some


def main() -> int:
    torch.set_num_threads(1)
    times = in_turns({"run": repeated(run_loop()), "plain": repeated(plain_loop())}, repeats=21, warm_up=1)
    return report(__file__, [Row("steps per second, a run / a plain loop", ratio(times, "plain", "run"), at_least=0.8)])


if __name__ == "__main__":
    sys.exit(main())
