"""Training: any optimizer and scheduler, clipping, phases, and a loss that diverges."""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

import stagelens as sl
from kit.tasks import Regression, Repeats, run, weights
from stagelens.base.errors import UsageError
from stagelens.experiments.training import Training


def variant(**members):
    return type("Variant", (Regression,), members)


def trained(kind, steps=6, **config):
    training = Training(kind(kind.Config(**config)))
    for step in range(steps):
        training.advance(step)
    return training


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: SGD(p, lr=0.02, momentum=0.9),
        lambda p: Adam(p, lr=0.02, foreach=False),
        lambda p: Adam(p, lr=0.02, fused=True),
        lambda p: AdamW(p, lr=0.02, weight_decay=0.1, fused=False),
        lambda p: torch.optim.RMSprop(p, lr=0.02),
    ],
)
def test_it_does_what_a_plain_loop_does(optimizer):
    kind = variant(optimizer=lambda self, model: optimizer(model.parameters()))
    training = trained(kind)
    task = kind(kind.Config())
    model = task.build_model()
    plain = optimizer(model.parameters())
    for step in range(6):
        plain.zero_grad()
        task.loss(model, training.batches(step)).backward()
        plain.step()
    for ours, theirs in zip(training.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("make", [Adam, lambda p, **options: AdamW(p, weight_decay=0.1, amsgrad=True, **options)])
def test_an_adam_that_leaves_the_choice_open_takes_one_kernel_for_all_parameters(make):
    left_open = variant(optimizer=lambda self, model: make(model.parameters(), lr=0.02))
    decided = variant(optimizer=lambda self, model: make(model.parameters(), lr=0.02, fused=False))
    chosen, plain = trained(left_open, 20), trained(decided, 20)
    assert chosen.optimizer.param_groups[0]["fused"] and not plain.optimizer.param_groups[0]["fused"]
    for ours, theirs in zip(chosen.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_checkpoint_of_an_unfused_adam_continues_unfused():
    kind = variant(optimizer=lambda self, model: Adam(model.parameters(), lr=0.02))
    before = trained(variant(optimizer=lambda self, model: Adam(model.parameters(), lr=0.02, fused=False)), 5)
    after = Training(kind(kind.Config()))
    after.load_state(deepcopy(before.state()))
    for step in range(5, 10):
        before.advance(step)
        after.advance(step)
    assert all(torch.equal(a, b) for a, b in zip(before.model.parameters(), after.model.parameters(), strict=True))


def test_a_users_transformer_takes_the_fused_path_or_the_reason_is_reported():
    from kit.fast_models import theirs
    from stagelens.models import FastTransformer, SlowForward

    for options, fast in (({}, True), ({"gated_mlp": True}, False)):
        kind = type("Brought", (Repeats,), {"build_model": lambda self, options=options: theirs(**options)})
        with nullcontext() if fast else pytest.warns(SlowForward, match="gated_mlp = True"):
            training = Training(kind(kind.Config()))
        assert isinstance(training.model, FastTransformer) == fast
        training.advance(0)
        training.check()


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: CosineAnnealingLR(o, T_max=4),
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20),
        lambda o: ReduceLROnPlateau(o, patience=1, factor=0.5, threshold=10.0, threshold_mode="abs"),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 3), CosineAnnealingLR(o, 5)],
            milestones=[3],
        ),
    ],
)
def test_any_scheduler_is_stepped_and_saved(scheduler, tmp_path):
    kind = variant(scheduler=lambda self, optimizer: scheduler(optimizer))
    done = run(kind, tmp_path, settings={"steps": 12})
    assert done.status == "finished", done.manifest.error
    rates = done.timeline.scalar("lr")[1]
    assert len(set(rates)) > 1
    training = Training(kind(kind.Config(steps=12)))
    for step in range(12):
        training.advance(step)
    assert rates[-1] == training.optimizer.param_groups[0]["lr"]


def test_a_scheduler_can_be_stepped_less_often():
    kind = variant(scheduler=lambda self, o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5), scheduler_every=3)
    assert trained(kind, 7, lr=0.8).optimizer.param_groups[0]["lr"] == pytest.approx(0.8 / 4)


def test_clipping_bounds_the_gradient():
    kind = variant(optimizer=lambda self, model: SGD(model.parameters(), lr=1.0))
    start = Training(kind(kind.Config())).model
    for clip in (0.01, 0.5):
        moved = trained(kind, 1, clip=clip).model
        pairs = zip(moved.state_dict().values(), start.state_dict().values(), strict=True)
        assert math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs)) == pytest.approx(clip, rel=1e-3)
    assert trained(kind, 1).gradient_norm is None
    assert float(trained(kind, 1, clip=0.01).gradient_norm) > 1


def test_phases_train_only_their_parameters(tmp_path):
    class Staged(Regression):
        id = "small/staged"

        def phases(self):
            return [
                sl.TrainingPhase("one", 10, ("first",)),
                sl.TrainingPhase("two", 10, ("sec*",)),
                sl.TrainingPhase("both", 20, ("*",)),
            ]

        def optimizer(self, model):
            return AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

        def schedule(self):
            return sl.Schedule(log=0, even=40)

    done = run(Staged, tmp_path)
    assert [p["phase"] for p in done.manifest.phases] == ["one", "two", "both"]
    at = {step: done.model_at(step).state_dict() for step in (0, 10, 20, 40)}

    def moved(name, a, b):
        return not torch.equal(at[a][name], at[b][name])

    assert [moved(name, 0, 10) for name in ("first", "second")] == [True, False]
    assert [moved(name, 10, 20) for name in ("first", "second")] == [False, True]
    assert [moved(name, 20, 40) for name in ("first", "second")] == [True, True]


def test_a_phase_that_matches_no_parameter_is_a_mistake():
    kind = variant(phases=lambda self: [sl.TrainingPhase("one", 5, ("third",))])
    with pytest.raises(UsageError, match=r"phase 'one' trains \('third',\).*there are: first, second"):
        trained(kind, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_diverges_fails_the_run_and_keeps_its_records(tmp_path, value):
    class Diverges(Regression):
        id = "small/diverges"

        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + model.training
            return super().loss(model, batch) * (value if self.calls == 24 else 1.0)

    done = run(Diverges, tmp_path)
    assert done.status == "failed"
    assert done.manifest.error.startswith("the loss became nan or infinite at step 23; try a smaller lr")
    steps, losses = done.timeline.scalar("loss")
    assert 15 < steps[-1] <= 23 and np.isfinite(losses).all()
    assert all(torch.isfinite(w).all() for w in weights(done).values())


def test_an_evaluation_loss_that_diverges_fails_the_run_too(tmp_path):
    class Overflows(Regression):
        id = "small/overflows"

        def loss(self, model, batch):
            return super().loss(model, batch) * (1.0 if model.training or self.passed() < 5 else math.nan)

        def passed(self):
            self.count = getattr(self, "count", 0) + 1
            return self.count

    done = run(Overflows, tmp_path)
    assert done.status == "failed" and "the evaluation loss became nan or infinite at step" in done.manifest.error
    assert len(done.timeline.steps) == 4 and np.isfinite(done.timeline.series("loss")).all()


def test_building_and_stepping_leave_the_init_to_the_seed():
    torch.manual_seed(0)
    one = Training(Regression(Regression.Config(dropout=0.5), 3))
    torch.manual_seed(99)
    other = Training(Regression(Regression.Config(dropout=0.5), 3))
    for step in range(3):
        one.advance(step)
        torch.rand(step + 1)
        other.advance(step)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
