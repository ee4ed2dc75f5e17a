"""A plugin for tests: a noisy task that raises in the callback that its config names."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy
from transformer_lens import HookedTransformer, HookedTransformerConfig

import stagelens as sl
from stagelens.claims import equal
from stagelens.models import build_transformer

SIZES: dict[str, Any] = {"n_layers": 1, "n_heads": 1, "d_model": 4, "n_ctx": 4, "d_vocab": 3}
SIZES_OF_TRANSFORMER_LENS = SIZES | {"d_head": 4, "act_fn": "relu"}


class FallibleConfig(sl.TaskConfig):
    steps: int = 6
    batch_size: int = 2
    eval_size: int = 2
    fails: str = ""  # the callbacks that raise, separated by commas
    size: int = 1
    noisy: bool = False


class Fallible(sl.Task):
    id = "fallible/one"
    title = "a task that raises where it is told to"
    Config = FallibleConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}}
    probes = ("weight_norms", "fallible")

    @property
    def _fails(self) -> list[str]:
        return self.config.fails.split(",")

    def build_model(self) -> Any:
        return self._noisily_built() if self.config.noisy else build_transformer(**SIZES, seed=self.seed)

    def _noisily_built(self) -> Any:
        """What users write: the constructor prints "Moving model to device:  cpu"."""
        print("python prints")  # noqa: T201
        os.write(1, b"a library prints\n")
        os.system("echo a child prints")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return HookedTransformer(HookedTransformerConfig(**SIZES_OF_TRANSFORMER_LENS, seed=self.seed))

    def sample(self, n: int, generator: torch.Generator) -> Any:
        return torch.randint(3, (n, 4), generator=generator)

    def loss(self, model: Any, batch: Any) -> Any:
        return cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    def stage_names(self) -> list[str]:
        if "stage_names()" in self._fails:
            raise LookupError("no names")  # in stage_names()
        return ["first"]

    def predictions(self) -> list[sl.Prediction]:
        if "predictions()" in self._fails:
            raise LookupError("no theory")  # in predictions()
        found = [sl.Prediction("level", "level", 1.0, "Eq. 1")]
        if "prediction 'measured'" in self._fails:
            found.append(sl.Prediction("measured", "level", 1.0, "Eq. 2", measure=_measure))
        if "prediction 'curve'" in self._fails:
            found.append(sl.Prediction("curve", "curve", _curve, "Eq. 3"))
        return found

    def features(self) -> dict[str, float]:
        if "fit" in self._fails and self.config.size > 1:
            raise LookupError("no features")  # in fit
        return {"size": float(self.config.size)}

    def figures(self, run: sl.Run) -> Any:
        if "figures()" in self._fails:
            run.timeline.column("nothing")  # in figures()
        if "figures() ends the process" in self._fails:
            sys.exit(0)  # in figures() ends the process
        figure, other = Figure(), Figure()
        figure.add_subplot()
        other.add_subplot()
        if "figure 'own'" in self._fails:
            figure.suptitle(r"$\nonsense{$")
        return {"own": figure, "other": other}


def _measure(timeline: Any) -> float:
    raise LookupError("no measure")  # in prediction 'measured'


def _curve(steps: Any) -> Any:
    raise LookupError("no curve")  # in prediction 'curve'


@sl.probe(hooks="hook_embed", name="fallible")
def embedded(activation: Any, context: Any) -> Any:
    """The mean of the embedding."""
    if os.environ.get("FALLIBLE_PROBE"):
        raise LookupError("no embedding")
    return activation.mean()


class True_(sl.Claim):
    id, title, seeds = "Fallible1", "one is one", 1

    def checks(self, lab: Any) -> Any:
        print("a claim prints")  # noqa: T201
        yield equal("one", 1, 1, "Eq. 1")


@sl.hookimpl
def stagelens_register_tasks() -> list[type[Fallible]]:
    return [Fallible]


@sl.hookimpl
def stagelens_register_probes() -> list[Any]:
    return [embedded]


@sl.hookimpl
def stagelens_register_claims() -> list[Any]:
    return [sl.ClaimRef.of(True_)]


@sl.hookimpl
def stagelens_run_finished(run: sl.Run) -> None:
    if "stagelens_run_finished" in run.manifest.config.get("fails", ""):
        raise LookupError("no end")  # in stagelens_run_finished
