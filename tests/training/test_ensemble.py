"""Ensembles: the same numbers as single seeds, in ordinary runs; seeds that cannot be vectorized run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import stagelens as sl
from kit.tasks import (
    Crash,
    CrashAt,
    Decay,
    Regression,
    RegressionConfig,
    TwoMaps,
    assert_same_run,
    host_with,
    run,
    weights,
)
from stagelens.api import run_ensemble
from stagelens.base.errors import UsageError
from stagelens.experiments.training import Training
from stagelens.training.stackable import why_not
from stagelens.training.stacking import Stacked

SEEDS = (0, 1, 2)


class DoubleConfig(RegressionConfig):
    optimizer: str = "adam"
    rate: str = "constant"
    parts: bool = False


class Double(Regression):
    """The same in float64, with each optimizer, a learning rate that changes, and training phases."""

    id = "small/double"
    Config = DoubleConfig
    presets: ClassVar[Any] = {"quick": {}}

    def build_model(self) -> TwoMaps:
        return super().build_model().double()

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = super().sample(n, generator)
        return x.double(), y.double()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        parameters = [{"params": [model.first]}, {"params": [model.second], "lr": 0.01}]
        return {
            "sgd": lambda: torch.optim.SGD(parameters, lr=0.02),
            "momentum": lambda: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True),
            "adam": lambda: torch.optim.Adam(parameters, lr=0.02),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1),
            "lbfgs": lambda: torch.optim.LBFGS(model.parameters()),
        }[self.config.optimizer]()

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        if self.config.rate == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer) if self.config.rate == "plateau" else None

    def phases(self) -> Sequence[sl.TrainingPhase]:
        return (
            [sl.TrainingPhase("one", 15, ("first",)), sl.TrainingPhase("both", 25, ("*",))] if self.config.parts else ()
        )


class OwnTarget(Double):
    """Its loss depends on the seed, so its seeds cannot be vectorized."""

    id = "small/own-target"

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(model, batch) + self.seed * model.first.square().sum()


class ByShape(Double):
    """Applies weight decay to matrices only, so it would treat stacked vectors as a matrix."""

    id = "small/by-shape"

    def build_model(self) -> TwoMaps:
        model = super().build_model()
        model.bias = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        return model

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) + model.bias - batch[1]).square().mean()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        flat = [p for p in model.parameters() if p.dim() < 2]
        other = [p for p in model.parameters() if p.dim() >= 2]
        return torch.optim.SGD([{"params": flat}, {"params": other, "weight_decay": 0.1}], lr=0.02)


class Branching(Double):
    """Branches on values, which a vectorized loss cannot."""

    id = "small/branching"

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = super().loss(model, batch)
        return loss if loss > 0 else -loss


def ensemble(task: type[Any], runs, **options: Any) -> Any:
    return run_ensemble(task, runs=runs, **{"seeds": SEEDS, "report": False, "device": "cpu"} | options)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd"},
        {"optimizer": "momentum", "rate": "cosine"},
        {"optimizer": "adam"},
        {"optimizer": "adamw", "clip": 0.5},
        {"optimizer": "momentum", "parts": True},
        {"optimizer": "adam", "train_size": 24, "rate": "cosine", "clip": 1.0, "parts": True},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_an_ensemble_has_the_numbers_of_its_seeds_alone(settings, tmp_path) -> None:
    together = ensemble(Double, tmp_path / "together", settings=settings)
    assert together.alone == ""
    for seed, one in zip(SEEDS, together, strict=True):
        alone = run(Double, tmp_path / "alone", seed=seed, settings=settings)
        assert one.manifest.seed == seed
        assert one.timeline.steps.tolist() == alone.timeline.steps.tolist()
        assert list(one.timeline) == list(alone.timeline)
        for name in one.timeline:
            np.testing.assert_allclose(one.timeline.series(name), alone.timeline.series(name), rtol=1e-6, atol=1e-12)
        mine, theirs = weights(one), weights(alone)
        for name in theirs:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-6, atol=1e-12)


def test_members_see_the_data_of_their_own_seed() -> None:
    trainings = [Training(Double(DoubleConfig(), seed)) for seed in SEEDS]
    leaves = Stacked(trainings)._stacked_batch(7).leaves
    for index, seed in enumerate(SEEDS):
        x, y = Training(Double(DoubleConfig(), seed)).batches(7)
        assert torch.equal(leaves[0][index], x)
        assert torch.equal(leaves[1][index], y)


def test_an_ensemble_that_crashed_continues_bit_for_bit(tmp_path) -> None:
    settings = {"optimizer": "adam", "rate": "cosine", "parts": True}
    whole = ensemble(Double, tmp_path / "whole", settings=settings)
    with pytest.raises(Crash):
        ensemble(Double, tmp_path / "broken", settings=settings, host=host_with(CrashAt(20)))
    resumed = ensemble(Double, tmp_path / "broken", settings=settings, resume=True)
    assert [one.folder.parent.name for one in resumed] == ["broken"] * 3
    for one, other in zip(whole, resumed, strict=True):
        assert other.status == "finished"
        assert_same_run(one, other)


def test_a_member_can_continue_alone(tmp_path) -> None:
    with pytest.raises(Crash):
        ensemble(Double, tmp_path, host=host_with(CrashAt(20)))
    member = run(Double, tmp_path, seed=1, resume=True)
    alone = run(Double, tmp_path / "alone", seed=1)
    np.testing.assert_allclose(member.timeline.scalar("loss")[1], alone.timeline.scalar("loss")[1], rtol=1e-6)
    rest = ensemble(Double, tmp_path, resume=True)
    assert [one.status for one in rest] == ["finished"] * 3
    assert len(list(tmp_path.glob("small-double-*/run.json"))) == 3


def test_a_member_that_diverges_ends_alone(tmp_path) -> None:
    class Fragile(Double):
        id = "small/fragile"

        def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            x, y = super().sample(n, generator)
            return (x * 1e200 if self.seed == 1 and n == self.config.batch_size else x), y

    done = ensemble(Fragile, tmp_path, settings={"optimizer": "sgd"})
    assert [one.status for one in done] == ["finished", "failed", "finished"]
    assert "became nan or infinite" in done[1].manifest.error


def trainings(task: type[Any], **settings: Any) -> list[Training]:
    return [Training(task(task.Config(**settings), seed)) for seed in SEEDS]


@pytest.mark.parametrize(
    ("task", "settings", "word"),
    [
        (Double, {"dropout": 0.3}, "its loss is random"),
        (Double, {"rate": "plateau"}, "follows the loss of each seed"),
        (Double, {"optimizer": "lbfgs"}, "LBFGS does not act on each number alone"),
        (OwnTarget, {}, "depends on the seed through more than parameters and batch"),
        (ByShape, {}, "groups parameters by their shape"),
        (Branching, {}, "torch.func.vmap refuses it"),
    ],
)
def test_seeds_that_cannot_be_vectorized_have_a_reason(task, settings, word) -> None:
    assert word in why_not(trainings(task, **settings))


def test_seeds_that_cannot_be_vectorized_run_one_by_one_with_the_same_result(tmp_path) -> None:
    done = ensemble(OwnTarget, tmp_path / "together")
    assert "depends on the seed" in done.alone
    assert_same_run(done[1], run(OwnTarget, tmp_path / "alone", seed=1))


def test_a_flow_is_run_one_by_one(tmp_path) -> None:
    done = ensemble(Decay, tmp_path, seeds=2)
    assert done.alone == "a flow has no model to stack"
    assert [one.status for one in done] == ["finished"] * 2


def test_the_page_compares_the_seeds(tmp_path) -> None:
    done = ensemble(Double, tmp_path, report=True, name="mine")
    assert [one.name for one in done] == ["mine-seed0", "mine-seed1", "mine-seed2"]
    assert done.page == tmp_path / "mine-seeds.html"
    assert "3 seeds" in done.page.read_text()
    assert not (done[0].folder / "report.html").exists()


@pytest.mark.parametrize("seeds", [0, [1, 1]])
def test_seeds_are_at_least_one_and_each_once(seeds, tmp_path) -> None:
    with pytest.raises(UsageError, match="expected at least one, each once"):
        ensemble(Double, tmp_path, seeds=seeds)
