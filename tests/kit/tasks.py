"""Small tasks and flows whose behaviour is known, and short ways to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

import stagelens as sl
from stagelens.base.seeds import generator
from stagelens.host.host import Host, make_host
from stagelens.models import ToyConfig, build_transformer
from stagelens.runs import Run


class TwoMaps(HookedRootModule):
    """x [batch, 3] -> [batch, 1] through two linear maps with dropout between them."""

    def __init__(self, seed: int, dropout: float = 0.0) -> None:
        super().__init__()
        stream = generator(seed, "init")
        self.cfg = ToyConfig(n_layers=0, n_heads=0, n_ctx=1)
        self.first = nn.Parameter(torch.randn(3, 4, generator=stream) / 2)
        self.second = nn.Parameter(torch.randn(4, 1, generator=stream) / 2)
        self.dropout = nn.Dropout(dropout)
        self.hook_middle = HookPoint()
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        return self.hook_middle(self.dropout(x @ self.first)) @ self.second


class RegressionConfig(sl.TaskConfig):
    steps: int = 40
    batch_size: int = 8
    eval_size: int = 16
    lr: float = 0.02
    dropout: float = 0.0


class Regression(sl.Task):
    """y = x . (1, -2, 3), learned by two linear maps: milliseconds a run."""

    id = "small/regression"
    title = "two linear maps learn one"
    Config = RegressionConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "long": {"steps": 400}}
    probes: ClassVar[Sequence[str]] = ("weight_norms",)

    def build_model(self) -> TwoMaps:
        return TwoMaps(self.seed, self.config.dropout)

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=generator)
        return x, x @ x.new_tensor([[1.0], [-2.0], [3.0]])

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    def schedule(self) -> sl.Schedule:
        return sl.Schedule(log=4, even=8)


class TransformerConfig(sl.TaskConfig):
    steps: int = 24
    batch_size: int = 4
    eval_size: int = 4
    heads: int = 2
    dropout: float = 0.2


class Repeats(sl.Task):
    """A HookedTransformer with dropout learns the next of random tokens; momentum, and a rate that follows a cosine."""

    id = "small/repeats"
    title = "a small transformer"
    Config = TransformerConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}}
    probes: ClassVar[Sequence[str]] = ("attention_sparsity", "weight_norms")

    def build_model(self) -> Any:
        c = self.config
        return build_transformer(
            n_layers=1, n_heads=c.heads, d_model=8, n_ctx=5, d_vocab=4, d_mlp=8, dropout=c.dropout, seed=self.seed
        )

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randint(4, (n, 6), generator=generator)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    def schedule(self) -> sl.Schedule:
        return sl.Schedule(log=4, even=6)


class Crash(Exception):
    """An error that a test raises in the middle of a run."""


class CrashAt:
    """A plugin that raises in a run after a given step was recorded."""

    def __init__(self, step: float) -> None:
        self.step = step

    @sl.hookimpl
    def stagelens_reading_recorded(self, step: float) -> None:
        if step >= self.step:
            raise Crash(f"at step {step}")


def run(task: type[Any], runs: Path, host: Host | None = None, **options: Any) -> Run:
    """A run without figures and report."""
    return sl.run(task, runs=runs, host=host, **{"report": False, "device": "cpu"} | options)


def host_with(*plugins: Any) -> Host:
    """Returns a host with `plugins` in addition to the installed ones."""
    host = make_host()
    for number, plugin in enumerate(plugins):
        host.manager.register(plugin, name=f"test{number}")
    return host


def weights(run: Run, step: int | None = None) -> dict[str, Tensor]:
    """The weights in the run's checkpoint of `step` (the last one), as they are on disk."""
    from stagelens.runs import checkpoint

    step = run.checkpoints[-1] if step is None else step
    return checkpoint.load(checkpoint.path_of(run.folder, step))["model"]


def assert_same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Asserts that two state dicts are equal bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_same_run(one: Run, other: Run) -> None:
    """Asserts that two runs have the same steps, series and checkpoints, bit for bit."""
    assert one.timeline.steps.tolist() == other.timeline.steps.tolist()
    assert list(one.timeline) == list(other.timeline)
    for name in one.timeline:
        assert one.timeline.column(name) == other.timeline.column(name)
        assert one.timeline.series(name).tobytes() == other.timeline.series(name).tobytes(), name
    assert_same_weights(weights(one), weights(other))


class Decay(sl.Flow):
    """x' = -x from 1: x(t) = exp(-t); ends where x reaches 1/2, at log 2."""

    id = "small/decay"
    title = "exponential decay"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"time": 5.0, "points": 40}}

    def initial(self) -> Mapping[str, Any]:
        return {"x": np.array(1.0)}

    def derivative(self, time: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": -state["x"]}

    def observables(self, time: float, state: Mapping[str, Any]) -> Any:
        yield sl.Reading("loss", float(state["x"]))

    def events(self) -> list[sl.Event]:
        return [
            sl.Event("three quarters", lambda t, s: float(s["x"]) - 0.75, terminal=False),
            sl.Event("half", lambda t, s: float(s["x"]) - 0.5),
        ]
