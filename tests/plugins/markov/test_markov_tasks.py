"""The task: its config, its groups and references, and a short training."""

from __future__ import annotations

import math

import pytest
import torch

import stagelens as sl
from stagelens.base.errors import UsageError
from stagelens.base.seeds import derive
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training, step_scheduler, trained
from stagelens_markov.config import MarkovConfig, MarkovFullConfig
from stagelens_markov.data import log_probabilities
from stagelens_markov.tasks import Full, Minimal


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
        ("intervals=[[1,2],[2,3],[4]]", "lag 2 is given 2 times"),
        ("intervals=[[1,2],[4],[5]]", "lag 3 is missing"),
        ("w=5", "lag 6 of the intervals exceeds the context w=5"),
        ("w=8", "lag 6 of the intervals falls short of the context w=8"),
        ("context=7", "context=7 is more than the 6 lags of the chain"),
        ("window=9", "window=9 is more than the 6 lags of the chain"),
        ("h=0", "config key 'h': got 0"),
        ("m=-1", "config key 'm': got -1"),
        ("d=1", "config key 'd': got 1"),
        ("m=0", "config key 'm': got 0"),
        ("b0=-1", "config key 'b0': got -1"),
    ],
)
def test_bad_settings_are_one_line(setting, message):
    with pytest.raises(UsageError, match=message) as caught:
        config(setting)
    assert "\n" not in str(caught.value)


def test_context_and_window_exclude_each_other():
    with pytest.raises(UsageError, match="give one of them"):
        config("context=2", "window=2")


def test_fewer_sequences_than_a_batch_are_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="train_size 100 is smaller than batch_size 384") as caught:
        sl.run("markov", settings={"train_size": 100}, runs=tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_the_papers_transformer_has_the_papers_sizes():
    """Tables 2, 3 and 4."""
    c = make_config(MarkovFullConfig, Full.presets, "paper", [])
    assert (c.d_model, c.d_mlp, c.dropout, c.n_heads, c.order) == (255, 64, 0.1, 3, 12)
    assert (c.steps, c.batch_size, c.train_size, c.lr, c.weight_decay, c.patience) == (
        2000,
        3000,
        9000,
        0.003,
        0.01,
        30,  # ten passes of three batches
    )
    cfg = Full(c).build_model().cfg
    assert (cfg.n_layers, cfg.n_heads, cfg.d_head, cfg.d_mlp, cfg.n_ctx) == (1, 3, 85, 64, 31)
    assert cfg.normalization_type == "LN" and cfg.positional_embedding_type == "standard"


def full(*settings, seed=0):
    words = ["d=6", "T=5", "d_model=12", "d_mlp=8", "batch_size=16", "eval_size=8", "steps=3", *settings]
    return Full(make_config(MarkovFullConfig, Full.presets, "quick", words), seed)


@pytest.mark.parametrize("restricted", ["context=2", "window=2"])
@pytest.mark.parametrize("make", [full, lambda *words: Minimal(config("d=6", "T=5", *words))])
def test_a_restricted_model_cannot_tell_pasts_apart_that_differ_further_back(make, restricted):
    task = make(restricted)
    model = task.build_model().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    batch = task.sample(20, torch.Generator().manual_seed(1))
    other = batch.clone()
    other[:, 3] = (other[:, 3] + 1) % 6
    one, two = (task.logits(model(task.inputs(tokens))) for tokens in (batch, other))
    assert one.shape == (20, 5, 6)
    assert torch.allclose(one, two, atol=1e-5)  # x_1 is predicted from the tokens 4 and 5
    other[:, 4] = (other[:, 4] + 1) % 6
    assert not torch.allclose(one[:, 0], task.logits(model(task.inputs(other)))[:, 0], atol=1e-3)


def test_windows_slide_over_the_sequence():
    task = Minimal(config("window=3", "T=2"))
    assert task.inputs(torch.arange(8)[None]).tolist() == [[3, 4, 5], [4, 5, 6]]


def test_an_n_gram_model_is_scored_on_the_same_tokens(tmp_path):
    words = ["d=6", "T=5", "window=4", "steps=5", "batch_size=16", "eval_size=32"]
    probes = ["kl_to_references", "head_specialization"]
    done = sl.run("markov", settings=words, runs=tmp_path, report=False, probes=probes)
    assert done.status == "finished" and not done.manifest.problems and not done.manifest.skipped
    task = done.experiment
    batch, model = eval_batch(task), done.model_at(0)
    log_q = task.logits(model(task.inputs(batch))).log_softmax(-1)
    log_p = log_probabilities(task.process, batch, 1)
    expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
    assert done.timeline.series("kl_to_references/kl")[0, 0] == pytest.approx(expected, rel=1e-5)


def test_restricted_models_are_references_trained_on_other_sequences_of_the_same_chain():
    task = Minimal(config("d=6", "T=5", "steps=20", "batch_size=32", "compare=contexts"))
    references = task.references()
    assert list(references) == ["c=2", "c=4", "c=6"]
    batch = task.sample(16, torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    found = references["c=2"](batch)
    assert torch.equal(state, torch.get_rng_state())
    alone = Minimal(config("d=6", "T=5", "steps=20", "batch_size=32", "context=2"), derive(task.seed, "references"))
    alone.process = task.process
    expected = alone.logits(trained(alone)(alone.inputs(batch))).log_softmax(-1)
    assert torch.allclose(found, expected) and not found.requires_grad
    assert torch.equal(found, references["c=2"](batch))
    itself = task.logits(trained(task)(task.inputs(batch))).log_softmax(-1)
    assert not torch.allclose(references["c=6"](batch), itself, atol=1e-3)  # another start, so no twin of the run
    windows = Minimal(config("d=6", "T=5", "steps=2", "batch_size=32", "compare=windows")).references()
    assert windows["c=4"](batch).shape == (16, 5, 6)


def test_the_full_model_trains_and_is_probed(tmp_path):
    words = ["d=6", "T=5", "d_model=12", "d_mlp=8", "steps=20", "batch_size=32", "eval_size=32"]
    done = sl.run("markov/full", settings=words, runs=tmp_path, report=False)
    assert done.status == "finished" and not done.manifest.problems
    _, losses = done.timeline.scalar("loss")
    assert losses[-1] < losses[0]
    assert done.timeline["kl_to_references/kl"].sizes["reference"] == 3
    assert done.timeline["loss_by_position/loss"].sizes["position"] >= 5


def test_what_the_full_model_knows_is_the_predictor_nearest_to_it():
    task = full()
    batch = task.sample(100, torch.Generator().manual_seed(0))
    for i in range(task.config.h + 1):
        log_p = log_probabilities(task.process, batch, i)
        flat = torch.zeros(100, task.shape[0], task.config.d)  # as the model: logits at the context's tokens too
        flat[:, -task.config.T :] = 0.8 * log_p  # softened, as on the way there
        assert int(task.metrics(flat, batch)["known"]) == i


def test_the_full_models_quick_preset_shows_its_three_stages(tmp_path):
    """The whole of it takes 600 steps; the last stage is over by 250 with this seed."""
    done = sl.run("markov/full", settings=["steps=250"], runs=tmp_path, report=False, probes=["weight_norms"])
    assert [stage.name for stage in done.stages().transitions] == ["I(1) learned", "I(2) learned", "I(3) learned"]
    assert [stage.level for stage in done.stages().plateaus] == pytest.approx([0, 1, 2, 3], abs=0.01)


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


@pytest.mark.parametrize("kind", [Minimal, Full])
@pytest.mark.parametrize("train_size", [9000, 3000, 0])
def test_patience_counts_steps_with_a_training_set_and_without(kind, train_size):
    """The rate is halved after `patience` steps without progress; with fresh data a pass was taken to be one step."""
    preset = {**kind.presets["paper"], "train_size": train_size}
    training = Training.__new__(Training)  # the step of the scheduler alone: a model of this size takes seconds
    training.task = kind(kind.Config(**preset))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    training.scheduler = training.task.scheduler(optimizer)
    rates = []
    for step in range(70):
        step_scheduler(training, step, torch.tensor(1.0))
        rates.append(optimizer.param_groups[0]["lr"])
    assert [rates.index(rate) for rate in (1.0, 0.5, 0.25)] == [0, 31, 62]


def test_the_quick_preset_has_a_constant_rate():
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


def test_heads_that_start_equal_stay_equal_to_the_last_bit():
    training = Training(Minimal(config("init_scale=0", "batch_size=64", "train_size=128")))
    for step in range(30):
        training.advance(step)
    attention = training.model.blocks[0].attn
    for parameter in (attention.A, attention.V):
        assert parameter.abs().max() > 0.1
        assert torch.equal(parameter[0], parameter[1]) and torch.equal(parameter[0], parameter[2])
