"""A plugin for the tests of sweeps: a flow with a known power law that can be slow, fail, or kill its process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import stagelens as sl
from stagelens.base.seeds import derive


class PowerConfig(sl.FlowConfig):
    T: float = 1.0
    d: int = 1
    label: str = "plain"
    time: float = 100.0
    points: int = 50
    noise: float = 0.0
    sleep: float = 0.0
    fatal: str = ""  # a file that remembers how often the process was killed
    deaths: int = 0
    broken: bool = False
    seen: str = ""  # a folder, to write down which GPUs the process sees
    meet: int = 0  # a point waits, at most a minute, until this many points have written their GPUs


class Power(sl.Flow):
    """x' = -x / (T sqrt(d)): x falls to 1/2 at log(2) T sqrt(d), up to the seed's noise."""

    id = "power/law"
    title = "exponential decay at a rate that is a power law"
    Config = PowerConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}}

    @property
    def length(self) -> float:
        unit = np.random.default_rng(derive(self.seed, "noise", repr(self.config.T))).standard_normal()
        return float(self.config.T * np.sqrt(self.config.d) * np.exp(self.config.noise * unit))

    def initial(self) -> Mapping[str, Any]:
        c = self.config
        time.sleep(c.sleep)
        if c.seen:
            (Path(c.seen) / f"seen-{c.T:g}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
            deadline = time.monotonic() + 60
            while len(list(Path(c.seen).glob("seen-*"))) < c.meet and time.monotonic() < deadline:
                time.sleep(0.02)
        if c.broken:
            raise ZeroDivisionError("a defect\nof the plugin")
        if c.fatal and len(died := Path(c.fatal).read_text()) < c.deaths:
            Path(c.fatal).write_text(died + "x")
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": np.array(1.0)}

    def derivative(self, time: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": -state["x"] / self.length}

    def observables(self, time: float, state: Mapping[str, Any]) -> Any:
        yield sl.Reading("loss", float(state["x"]))

    def events(self) -> list[sl.Event]:
        return [sl.Event("half", lambda t, s: float(s["x"]) - 0.5)]

    def features(self) -> Mapping[str, float]:
        return {"T*sqrt(d)": self.config.T * self.config.d**0.5}


class SeeingConfig(sl.TaskConfig):
    steps: int = 2
    batch_size: int = 2
    eval_size: int = 2
    seen: str = ""  # a folder


class Seeing(sl.Task):
    """Writes the GPUs that its process sees to a file."""

    id = "power/seeing"
    title = "writes down which GPUs it sees"
    Config = SeeingConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}}
    probes = ("weight_norms",)

    def build_model(self) -> Any:
        from stagelens.models import build_transformer

        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        (Path(self.config.seen) / f"seen-{self.config.steps}").write_text(seen)
        return build_transformer(n_layers=1, n_heads=1, d_model=4, n_ctx=4, d_vocab=3, seed=self.seed)

    def sample(self, n: int, generator: Any) -> Any:
        import torch

        return torch.randint(3, (n, 4), generator=generator)

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch).square().mean()


@sl.hookimpl
def stagelens_register_tasks() -> list[type[Power]]:
    return [Power]
