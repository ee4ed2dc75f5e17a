"""The task: its config, its groups and references, and a short training."""

from __future__ import annotations

import math

import pytest
import torch

import stagelens as sl
from stagelens.batches import eval_batch
from stagelens.config import make_config
from stagelens.errors import UsageError
from stagelens_markov.tasks import MarkovConfig, Minimal


def config(*settings, preset="quick"):
    return make_config(MarkovConfig, Minimal.presets, preset, settings)


def test_the_papers_preset_has_the_papers_numbers():
    """Tables 1, 2 and 4."""
    c = config(preset="paper")
    assert (c.d, c.h, c.m, c.b0, c.T, c.intervals) == (50, 3, 1.7, 10.0, 20, ((1, 2), (3, 4), (5, 6)))
    assert (c.batch_size, c.lr, c.train_size, c.init_scale, c.clip) == (3000, 0.003, 9000, 1.0, 1.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("intervals=[[1,2],[2,3],[4]]", "without overlap or gap"),
        ("intervals=[[1,2],[4],[5]]", "must share out the lags 1..5"),
        ("intervals=[[0,1],[2],[3]]", "must share out the lags"),
        ("intervals=[[1],[2],[]]", "every interval needs at least one lag"),
        ("intervals=[]", "every interval needs at least one lag"),
        ("intervals=[[1],[2]]", "h=3 but 2 intervals are given"),
        ("intervals=[[1,x]]", "config key 'intervals"),
        ("d=1", "config key 'd': got 1"),
        ("m=0", "config key 'm': got 0"),
        ("b0=-1", "config key 'b0': got -1"),
    ],
)
def test_bad_settings_are_one_line(setting, message):
    with pytest.raises(UsageError, match=message) as caught:
        config(setting)
    assert "\n" not in str(caught.value)


def test_other_intervals_can_be_given():
    c = config("h=2", "intervals=[[1,3],[2]]")
    task = Minimal(c)
    assert task.process.order == 3
    assert task.groups() == {"I(1)": sl.Group(offsets=(0, 2)), "I(2)": sl.Group(offsets=(1,))}
    assert task.sample(5, torch.Generator()).shape == (5, 3 + c.T)


def test_there_are_as_many_heads_as_intervals_unless_asked():
    assert Minimal(config()).build_model().cfg.n_heads == 3
    assert Minimal(config("heads=5")).build_model().cfg.n_heads == 5


def test_the_last_reference_is_the_chain_itself_and_has_no_excess():
    task = Minimal(config("d=6", "T=5"))
    batch = task.sample(200, torch.Generator().manual_seed(0))
    references = task.references()
    assert list(references) == ["A*_1:1", "A*_1:2", "A*_1:3"]
    excess = [float(task.metrics(predict(batch), batch)["excess"]) for predict in references.values()]
    assert excess[0] > excess[1] > abs(excess[2]) and abs(excess[2]) < 1e-6


def test_the_untrained_loss_is_that_of_a_uniform_guess():
    task = Minimal(config("d=6", "T=5"))
    batch = task.sample(50, torch.Generator().manual_seed(0))
    assert task.loss(task.build_model(), batch).item() == pytest.approx(math.log(6))


def test_the_process_is_the_seeds_and_not_the_batchs():
    one, again, other = (Minimal(config("d=6"), seed).process.features for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_scheduler_counts_passes():
    task = Minimal(config(preset="paper"))
    assert task.scheduler_every == 3
    assert Minimal(config()).scheduler(torch.optim.SGD([torch.zeros(1)], lr=1.0)) is None


def test_a_short_training_learns_the_most_important_interval_first(tmp_path):
    words = ["d=8", "T=8", "steps=150", "batch_size=64", "eval_size=128", "lr=0.03"]
    done = sl.run(
        "markov", settings=words, runs=tmp_path, report=False, probes=["kl_to_references", "head_specialization"]
    )
    assert done.status == "finished" and not done.manifest.problems
    _steps, excess = done.timeline.scalar("excess")
    assert excess[-1] < 0.6 * excess[0]
    first = done.timeline["kl_to_references/kl"].sel(reference="A*_1:1")
    assert first.min() < 0.5 * first.isel(step=0)


def test_the_loss_by_position_averages_to_the_loss():
    """The model predicts only the last T tokens, and the probe has to pair them with the right targets."""
    task = Minimal(config("eval_size=64"), 0)
    model = task.build_model()
    torch.nn.init.normal_(model.blocks[0].attn.V, generator=torch.Generator().manual_seed(0))
    recorder = sl.Recorder(model, ["loss_by_position"], eval_batch(task), task=task)
    recorder.measure(0)
    by_position = recorder.timeline["loss_by_position/loss"]
    assert by_position.sizes["position"] == task.config.T
    assert by_position.mean().item() == pytest.approx(recorder.timeline["loss"].item(), rel=1e-6)
