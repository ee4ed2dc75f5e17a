"""The toy task: its data and losses, its contract, what its runs show, and its error messages."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

import stagelens as sl
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.training import Training
from stagelens_emergence.config import EmergenceToyConfig
from stagelens_emergence.data.toy import relevant_moments, sample_draws, sample_sequences, target_weights
from stagelens_emergence.flow import trajectory
from stagelens_emergence.losses import drawn_loss, expected_loss, gradient_only_term, half_error, output_error
from stagelens_emergence.model import ToyTransformer
from stagelens_emergence.tasks.toy import EmergenceToy

SMALL = {"T": 8, "d": 4, "B": 2, "p": 0.3, "eval_size": 8}


def some_model(T=6, d=5, B=2, seed=3):
    draw = torch.Generator().manual_seed(seed)
    W_star = target_weights(d, "unit", draw)
    model = ToyTransformer(T, B, torch.randn(d, d, generator=draw, dtype=torch.float64), W_star)
    with torch.no_grad():
        model.attention.a.copy_(torch.randn(T, generator=draw, dtype=torch.float64))
    return model


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([model.attention.a.grad, model.W.grad.flatten()])


# --- the data ---


def test_the_last_b_tokens_are_the_relevant_one_and_e1_appears_with_probability_p():
    W_star = target_weights(4, "unit", torch.Generator().manual_seed(0))
    x, y = sample_sequences(W_star, 6, 3, 0.25, 20_000, torch.Generator().manual_seed(1))
    assert (x[:, 3:] == x[:, -1:]).all() and (x[:, 2] != x[:, 3]).any()
    torch.testing.assert_close(y, x[:, -1] @ W_star.T)
    special = (x[:, -1] == torch.eye(1, 4, dtype=torch.float64)).all(-1).double().mean()
    assert special.item() == pytest.approx(0.25, abs=0.01)
    covariance = torch.einsum("ni,nj->ij", x[:, -1], x[:, -1]) / len(x)
    torch.testing.assert_close(covariance, torch.diag(relevant_moments(4, 0.25).relevant), atol=0.01, rtol=0)
    torch.testing.assert_close(x[:, 0].var(0), torch.full((4,), 0.25).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(W_star.norm(dim=0), torch.ones(4).double())


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_expected_loss_is_the_mean_of_the_sampled_one(p):
    model = some_model()
    x, y = sample_sequences(model.W_star, 6, 2, p, 200_000, torch.Generator().manual_seed(4))
    errors = 0.5 * (model(x) - y).square().sum(-1)
    exact = expected_loss(model, relevant_moments(5, p)).item()
    assert abs(errors.mean().item() - exact) < 4 * errors.std().item() / len(x) ** 0.5


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_draws_have_the_distribution_of_sequences(p):
    """Loss and gradient of batches have the same mean and covariance, on draws and on whole sequences."""
    model, n, size = some_model(T=5, d=3), 800, 16
    draw = torch.Generator().manual_seed(5)
    by_sequence, by_draw = [], []
    for _ in range(n):
        x, y = sample_sequences(model.W_star, 5, 2, p, size, draw)
        loss = half_error(model(x), y)
        by_sequence.append(torch.cat([loss.detach()[None], gradient(model, loss)]))
        loss = drawn_loss(model, sample_draws(3, 5, 2, p, size, draw, torch.float64))
        by_draw.append(torch.cat([loss.detach()[None], gradient(model, loss)]))
    ours, theirs = torch.stack(by_draw), torch.stack(by_sequence)
    spread = theirs.std(0)
    assert ((ours.mean(0) - theirs.mean(0)) / spread).abs().max() < 5 * (2 / n) ** 0.5
    apart = (torch.cov(ours.T) - torch.cov(theirs.T)) / torch.outer(spread, spread)
    assert apart.abs().max() < 0.3  # its own noise is about 0.05


def test_the_mean_gradient_of_draws_is_exact():
    model = some_model()
    exact = gradient(model, expected_loss(model, relevant_moments(5, 0.4)))
    draws = sample_draws(5, 6, 2, 0.4, 400_000, torch.Generator().manual_seed(6), torch.float64)
    torch.testing.assert_close(gradient(model, drawn_loss(model, draws)), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_two_terms_of_the_drawn_loss_are_its_one_formula(p):
    """Value and gradient, against the loss written as one expression."""
    model = some_model()
    draws = sample_draws(5, 6, 2, p, 7, torch.Generator().manual_seed(8), torch.float64)

    def one_formula():
        others, m = model.attention_parts()
        size = others.norm()
        error = (m * draws.relevant + size * draws.context) @ model.W.T - draws.relevant @ model.W_star.T
        along = (others / size).detach()
        across = draws.across - (draws.across @ along)[:, None] * along
        v = (error @ model.W).detach().norm(dim=-1) / len(model.W) ** 0.5
        return 0.5 * error.square().sum(-1).mean() + ((across @ others) * v).mean()

    assert drawn_loss(model, draws).item() == pytest.approx(one_formula().item(), rel=1e-13)
    torch.testing.assert_close(gradient(model, drawn_loss(model, draws)), gradient(model, one_formula()))


def test_the_gradient_only_term_has_no_value_and_does_not_reach_the_weights():
    model = some_model()
    draws = sample_draws(5, 6, 2, 0.0, 7, torch.Generator().manual_seed(9), torch.float64)
    others, m = model.attention_parts()
    term = gradient_only_term(model, others, output_error(model, others, m, draws).detach(), draws)
    assert term.item() == pytest.approx(0, abs=1e-15)
    by_alpha, by_W = torch.autograd.grad(term, [others, model.W], allow_unused=True)
    assert by_W is None and by_alpha.norm() > 0.01
    assert (by_alpha @ others).item() == pytest.approx(0, abs=1e-15)


# --- the contract ---


def test_hooks_reach_the_exact_loss():
    """Without the head the output is 0, so the error on the evaluation sequences is |y*|^2 / 2."""
    task = EmergenceToy(EmergenceToyConfig(**SMALL, init_scale=1.0))
    batch = eval_batch(task)
    recorder = sl.Recorder(task.build_model(), ["head_ablation"], batch, task=task)
    recorder.measure(0)
    model = task.build_model()
    silent = 0.5 * batch.y.square().sum(-1).mean() - half_error(model(batch.x), batch.y)
    assert recorder.timeline["head_ablation/zero"].item() == pytest.approx(silent.item())


def test_single_location_reads_the_state():
    model = ToyTransformer(4, 2, torch.zeros(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    with torch.no_grad():
        model.W.copy_(torch.diag(torch.tensor([2.0, 0.5, 0.5])))
        model.attention.a.copy_(torch.tensor([0.0, 0.0, 3.0, 3.0]).log())
        model.attention.a[:2] = 0.0
    recorder = sl.Recorder(model, ["single_location"], torch.zeros(1, 4, 3, dtype=torch.float64))
    recorder.measure(0)
    found = {name: recorder.timeline[f"single_location/{name}"].item() for name in ("w", "w_repeated", "w_rest")}
    assert found == pytest.approx({"w": 3 / 3**0.5, "w_repeated": 2.0, "w_rest": 1 / 2**0.5})
    assert recorder.timeline["single_location/alpha"].item() == pytest.approx(3 / 8)
    assert recorder.timeline["single_location/relevant"].item() == pytest.approx(3 / 4)


@pytest.mark.parametrize("settings", [{"T": 16, "d": 9}, {"T": 16, "d": 9, "B": 3, "p": 0.4}])
def test_exact_descent_follows_the_reduced_flow(settings):
    """From before the drop to after it; every score follows its own gradient."""
    task = EmergenceToy(EmergenceToyConfig(**settings, lr=0.2))
    training = Training(task)
    steps = 500
    for step in range(steps):
        training.advance(step)
    w, delta_a = trajectory(task.reduced, np.array([0.0, 0.2 * steps]))
    a = training.model.attention.a.detach()
    assert (a[-1] - a[0]).item() == pytest.approx(delta_a[-1], rel=0.01)
    along = (training.model.along_target().sum() / 3).item()
    assert along == pytest.approx(task.reduced.projection(w)[-1], rel=0.01)
    assert a.sum().item() == pytest.approx(0, abs=1e-12)  # the softmax leaves the mean of the scores alone


# --- runs ---


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    settings = {"T": 64, "d": 16, "steps": 700}
    return sl.run("emergence", settings=settings, runs=tmp_path_factory.mktemp("runs"), report=False)


def test_a_run_shows_one_emergence_where_the_flow_has_it(quick):
    assert [t.name for t in quick.stages().transitions] == ["attention emerges"]
    found = {score["name"]: score for score in quick.predictions}
    assert found["end of the plateau"]["error"] < 0.01 and found["law of the plateau"]["error"] < 0.15
    assert quick.final["plateau_length/steps"] == found["end of the plateau"]["measured"]
    assert quick.manifest.problems == {}
    assert (
        quick.manifest.skipped["qk_alignment"] == "the attention scores belong to positions, without keys and queries"
    )
    assert quick.manifest.skipped["head_specialization"].startswith("the model has one head")
    assert not [name for name in quick.manifest.skipped if name.startswith("plateau_length")]
    assert quick.timeline.series("loss")[0] == pytest.approx(0.5)


def test_the_plateau_is_measured_alike_after_a_checkpoint(quick):
    """The probe's state is saved: restarted from any checkpoint, it gives the same length."""
    task = quick.experiment
    recorder = sl.Recorder(task.build_model(), ["plateau_length"], eval_batch(task), task=task)
    halves = []
    for step in (0, 300):
        recorder.measure(step)
        state = recorder.state()
        halves.append(deepcopy(state))
        recorder = sl.Recorder(quick.model_at(700), ["plateau_length"], eval_batch(task), task=task)
        recorder.load_state(state, [])
    assert "length" not in halves[0]["probes"]["plateau_length"]
    assert recorder.probes["plateau_length"].state["length"] == pytest.approx(300 * 0.8, rel=1e-3)


def test_figures_are_drawn(quick, tmp_path):
    from stagelens.figures import styled

    with styled():
        assert quick.experiment.figures(quick)["fig9"].get_suptitle().startswith("Fig. 9")
        for preset in ("quick", "fig2", "fig6", "fig7", "fig8", "fig10"):
            name = "fig1" if preset == "quick" else preset
            run = sl.run("emergence/flow", preset=preset, settings={"T": 64}, runs=tmp_path, report=False)
            figure = run.experiment.figures(run)[name]
            title = figure.get_suptitle() or figure.axes[0].get_title("left")
            assert title.startswith(f"Fig. {name[3:]}:")
            assert all(axis.lines or axis.collections for axis in figure.axes)
            if preset == "fig6":
                entries = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
                assert entries == ["flow", "its start, (0, 0)", "w at equilibrium"]


def test_the_flow_is_scored_against_its_linearization(tmp_path):
    run = sl.run("emergence/flow", settings={"d": 512}, runs=tmp_path, report=False)
    errors = {score["name"]: score["error"] for score in run.predictions}
    assert errors["w"] < 0.02 and errors["delta_a"] < 0.08 and errors["end of the plateau"] < 0.06
    assert run.final["plateau_length"] == pytest.approx(run.manifest.events["plateau_length"], rel=1e-6)


# --- mistakes ---


@pytest.mark.parametrize("task", ["emergence/toy", "emergence/flow"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["T=8", "B=9"], "the relevant token occurs 1 to T=8 times in a sequence; B=9 is out of range"),
        (["B=0"], "times in a sequence; B=0 is out of range"),
        (["p=1.5"], "p=1.5 is not a probability; give a number from 0 to 1"),
        (["p=-0.1"], "p=-0.1 is not a probability"),
        (["d=1"], "dimensions of a token: d=1 should be at least 2"),
        (["T=1"], "tokens in a sequence: T=1 should be at least 2"),
        (["q=1"], "unknown config key 'q'"),
    ],
)
def test_a_mistake_gets_one_line(cli, task, settings, words):
    answer = cli("run", task, *(word for setting in settings for word in ("--set", setting)))
    assert answer.code == 2
    assert words in answer.complaint and "\n" not in answer.complaint.strip()


def test_what_does_not_go_together_is_refused(cli):
    assert (
        "give variables=3, or p=0" in cli("run", "emergence/flow", "--set", "variables=2", "--set", "p=0.1").complaint
    )
    assert "give train_size=0" in cli("run", "emergence", "--set", "train_size=64").complaint
