"""The tasks of the recall plugin: their contract, their stages, and their error messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from stagelens.base.seeds import generator
from stagelens.claims.lab import Lab
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.training import Training
from stagelens.host.host import make_host
from stagelens_recall import theory
from stagelens_recall.config import OriginalConfig, RecallFlowConfig, RecallTransformerConfig, SimplifiedConfig
from stagelens_recall.figures.task import fig2, fig3
from stagelens_recall.flow import RecallFlow
from stagelens_recall.predictions import learning_order
from stagelens_recall.tasks.sequences import Original, Standard
from stagelens_recall.tasks.simplified import Simplified


def small(kind):
    config = {
        Simplified: SimplifiedConfig(),
        Original: OriginalConfig(order=2, batch_size=4, eval_size=8),
        Standard: RecallTransformerConfig(order=2, batch_size=4, eval_size=8, d_model=8),
    }[kind]
    return kind(config)


# --- the contract ---


@pytest.mark.parametrize("order", [2, 3])
def test_the_construction_of_the_solution_solves_the_task(order):
    """A.2: with w^i = c e_i and Q^T K = c B kron I~, the original model recalls every response."""
    task = Original(OriginalConfig(order=order, batch_size=4, eval_size=64))
    model, c = task.build_model(), 60.0
    first, second = (block.attn for block in model.blocks)
    with torch.no_grad():
        first.w.zero_()
        for head in range(order):
            first.w[head, head + 1] = c
        second.Q.copy_(torch.eye(len(second.Q)))
        second.K.copy_(c * torch.from_numpy(theory.solution(order, task.config.responses, order)))
        batch = eval_batch(task)
        assert task.metrics(model(batch[:, :-1]), batch)["dot_product"].item() < 1e-6
    assert np.allclose(model.coefficients().detach().numpy(), c * np.eye(order + 1, k=1))


def test_the_original_model_trains_by_adam_or_by_sgd_with_momentum():
    adam, sgd = (Original(OriginalConfig(order=2, optimizer=name, momentum=0.7)) for name in ("adam", "sgd"))
    assert isinstance(adam.optimizer(adam.build_model()), torch.optim.Adam)
    (group,) = sgd.optimizer(sgd.build_model()).param_groups
    assert (group["lr"], group["momentum"]) == (0.003, 0.7)


def test_figs_2_and_3_are_drawn(tmp_path):
    class Small(Lab):
        def run(self, task, settings=None, seed=0, **options):
            small = {"order": 2, "steps": 3, "batch_size": 4, "eval_size": 8}
            return super().run(task, {**small, **(settings or {})}, seed, **options)

    lab = Small(make_host(), tmp_path / "cache")
    (axis,) = fig2(lab).axes
    drawn = [text.get_text() for text in axis.texts]
    assert drawn[:3] in (["0", "1", "A"], ["0", "1", "B"]) and "?" in drawn  # the first permutation and its response
    assert drawn[drawn.index("?") + 1] == f"answer: {drawn[2] if drawn[6:8] == ['0', '1'] else drawn[5]}"
    left, right = fig3(lab).axes
    assert np.array_equal(left.images[0].get_array(), theory.solution(2, 4, 2))
    assert right.images[0].get_array().shape == (18, 18)


def test_the_standard_transformer_has_induction_scores():
    task = small(Standard)
    recorder = sl.Recorder(task.build_model(), ["induction", "loss_by_position"], eval_batch(task), task=task)
    recorder.measure(0)
    assert recorder.timeline["induction/prefix_matching"].shape == (1, 2, 2)
    assert recorder.timeline["loss_by_position/loss"].shape == (1, 1)


def test_ablating_a_head_of_the_simplified_model_undoes_its_match():
    """Head 3 of a model that matches three tokens is worth the last plateau; the exact loss goes through the hooks."""
    task = Simplified(SimplifiedConfig())
    model = task.build_model()
    with torch.no_grad():
        model.w.copy_(30 * torch.eye(3, 4))
        model.beta.fill_(6.0)
    recorder = sl.Recorder(model, ["head_ablation"], eval_batch(task), task=task)
    recorder.measure(0)
    change = recorder.timeline["head_ablation/zero"].values[0, 0]  # [head]
    assert change == pytest.approx([0.375] * 3, abs=1e-4)
    assert "head_ablation/mean" not in recorder.timeline  # the heads are computed once for all sequences
    assert "one sequence" in recorder.skipped["head_ablation/mean"]


@pytest.mark.parametrize("order", [2, 3])
def test_the_groups_are_tokens_of_the_first_layers_window_and_not_permutations(order):
    """At order 2 there are as many permutations as tokens."""
    task = Simplified(SimplifiedConfig(order=order, heads=2))
    model = task.build_model()
    with torch.no_grad():
        model.w.copy_(30 * torch.eye(2, order))  # head h attends to token h from the end
    recorder = sl.Recorder(model, ["head_specialization"], eval_batch(task), task=task)
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"][0]  # [layer, head, group]
    assert mass.group.values.tolist() == [*(f"token {i}" for i in range(1, order + 1)), "rest"]
    np.testing.assert_allclose(mass[0], np.eye(2, order + 1), atol=1e-9)
    np.testing.assert_allclose(mass[1, 0], np.eye(order + 1)[-1])  # the second layer has one head


def test_the_references_are_reached_in_order_and_left_again():
    task = Simplified(SimplifiedConfig())
    query = task.sample(1, generator(0, "x"))
    names = list(task.references())
    assert names == ["nothing", "token 1", "tokens 1 and 2", "tokens 1, 2 and 3"]
    sizes = [int((reference(query) > -50).sum()) for reference in task.references().values()]
    assert sizes == [24, 6, 2, 1]


# --- the stages ---


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return sl.run("recall", runs=tmp_path_factory.mktemp("runs"), report=False)


def test_the_quick_preset_shows_all_stages_of_order_four(quick):
    stages = quick.stages()
    assert [t.name for t in stages.transitions] == [f"token {i} matched" for i in (1, 2, 3)]
    assert [p.level for p in stages.plateaus] == pytest.approx([0.71875, 0.625, 0.375, 0], abs=0.004)
    assert quick.manifest.problems == {} and "recall_circuit/coefficient" in quick.manifest.skipped
    assert [name for name in quick.manifest.skipped if "/" not in name] == ["loss_by_position", "qk_alignment"]


def test_predictions_are_scored_against_the_run(quick):
    scores = {score["name"]: score for score in quick.predictions}
    assert [scores[name]["expected"] for name in list(scores)[:4]] == [0.71875, 0.625, 0.375, 0]
    assert scores["first jump"]["error"] < 0.25  # the theory is of a flow; momentum makes the jump late
    assert all(score["error"] < 0.01 for name, score in scores.items() if name != "first jump")


def test_heads_become_one_hot_one_after_the_other(quick):
    timeline = quick.timeline
    leader = timeline.series("head_specialization/mass")[-1, 0, :, :3]  # [head, token]
    assert (leader.diagonal() > 0.85).all()
    betas = timeline.series("recall_circuit/beta")
    when = [np.argmax(betas[:, h] > 1) for h in range(3)]
    assert when == sorted(when) and len(set(when)) == 3


def test_the_model_passes_by_each_partial_predictor(quick):
    divergence = quick.timeline.series("kl_to_references/kl")  # [step, reference]
    nearest = divergence.argmin(0)
    assert list(nearest) == sorted(nearest)
    assert divergence.min(0) == pytest.approx([0, 0, 0, 0], abs=2e-3)


def test_the_sum_of_scores_is_conserved_in_descent_too(quick):
    timeline = quick.timeline
    names = timeline.column("conserved/value").coordinate("quantity")
    values = dict(zip(names, timeline.series("conserved/value").T, strict=True))
    assert all(np.ptp(values[f"sum of w[{h}]"]) < 1e-4 for h in range(3))  # float32


def test_the_figure_shows_the_loss_the_plateaus_the_betas_and_the_attention(quick):
    timeline = quick.timeline
    (figure,) = quick.experiment.figures(quick).values()
    loss, beta, *maps = figure.axes
    assert np.array_equal(loss.lines[0].get_ydata(), timeline.scalar("loss")[1])
    assert [line.get_ydata()[0] for line in loss.lines[1:]] == [0.71875, 0.625, 0.375, 0]
    drawn = np.array([line.get_ydata() for line in beta.lines])  # [head, step]
    assert np.array_equal(drawn.T, timeline.series("recall_circuit/beta"))
    masses = timeline.series("head_specialization/mass")[:, 0, :, :4]  # [step, head, token]
    one_hot = [(axis.images[0].get_array() > 0.6).sum() for axis in maps]  # learned heads on each map
    assert one_hot == [0, 1, 2, 3, 3]
    assert np.array_equal(maps[-1].images[0].get_array(), masses[-1])


def advance(settings, steps):
    task = Simplified(SimplifiedConfig(**settings))
    training = Training(task)
    for step in range(steps):
        training.advance(step)
    return training


def test_the_drift_of_theorem_31s_quantity_in_descent_shrinks_with_the_rate():
    drifts = []
    for lr, steps in ((4.0, 75), (1.0, 300)):
        training = advance({"betas": (0.5, 0.0, 0.0), "lr": lr, "momentum": 0.0}, steps)
        model = training.model
        assert model.beta[0] > 2
        conserved = training.task.conserved(model)["f(alpha) - beta^2/4"]
        drifts.append(abs(conserved[0].item() + 0.5**2 / 4))
    assert drifts[1] < 0.02 and drifts[1] < drifts[0] / 3


def test_the_larger_beta_is_learned_first():
    training = advance({"betas": (0.01, 0.03, 0.3), "lr": 1.0}, 90)
    assert (training.model.beta.detach() > 1).tolist() == [False, False, True]


def test_heads_with_equal_betas_learn_together():
    task = Simplified(SimplifiedConfig(betas=(0.3, 0.3, 0.01)))
    assert task.stage_names() == ["tokens 1 and 2 matched", "token 3 matched"]
    assert [p.expected for p in task.predictions()][:3] == [0.71875, 0.375, 0]
    training = advance({"betas": (0.3, 0.3, 0.01), "lr": 1.0}, 90)
    beta = training.model.beta.detach()
    assert beta[0] > 1 and beta[0] == pytest.approx(beta[1].item(), rel=1e-3)
    assert training.loss.item() == pytest.approx(0.375, abs=0.004)


def test_a_head_whose_alpha_starts_too_negative_for_its_beta_never_learns():
    """Where f(alpha) > beta^2/4 and alpha < 0, the conservation law lets beta reach 0 before alpha turns."""
    flow = RecallFlow(RecallFlowConfig(betas=(0.1, 0.0, 0.0)))
    ends = []
    for alpha in (-0.07, -0.09):  # beta sqrt(k/(2(k-1))) = 0.082 is the limit
        w = np.zeros((3, 4))
        w[0, 0] = alpha
        from scipy.integrate import solve_ivp

        def rate(t, y):
            out = flow.derivative(t, {"w": y[:12].reshape(3, 4), "beta": y[12:]})
            return np.concatenate([out["w"].ravel(), out["beta"]])

        start = np.concatenate([w.ravel(), [0.1, 0, 0]])
        ends.append(solve_ivp(rate, (0, 20_000), start, method="LSODA", rtol=1e-8, atol=1e-10).y[12, -1])
    assert ends[0] > 1 and ends[1] < 0.05


def test_learning_order():
    assert learning_order((0.1, 0.3, 0.2), 4) == [(2,), (3,), (1,)]
    assert learning_order((0.1, 0.0, 0.1), 4) == [(1, 3)]
    assert learning_order((0.4, 0.3, 0.2, 0.1), 4) == [(1,), (2,), (3,)]  # the fourth has nothing left to learn


# --- the flow ---


def test_the_full_flow_follows_the_two_equations_from_i1():
    settings = {"betas": (0.3, 0.0, 0.0), "time": 1500.0, "points": 60}
    from stagelens.experiments.flow import integrate
    from stagelens.timelines.timeline import Timeline

    full, pair = (
        Timeline(integrate(RecallFlow(RecallFlowConfig(**settings, system=system))).measurements)
        for system in ("full", "first-jump")
    )
    for name in ("alpha", "beta", "loss"):
        assert np.abs(full.series(name).reshape(len(full.steps), -1)[:, 0] - pair.series(name).ravel()).max() < 1e-7
    assert np.ptp(full.series("conserved/proof")[:, 0]) < 1e-8
    assert np.ptp(full.series("conserved/statement")[:, 0]) > 0.1


def test_a_flow_knows_the_jump_that_is_ahead():
    flow = RecallFlow(RecallFlowConfig(betas=(0.1, 0.05, 0.0), learned=1))
    assert flow.stage_names() == ["token 2 matched"]
    assert [p.expected for p in flow.predictions()] == [0.625, 0.375]
    start = flow.initial()
    assert theory.population_loss(start["w"], start["beta"], 4) == pytest.approx(0.625, abs=1e-4)


def test_a_warning_before_training_names_a_jump_predicted_after_the_end(cli):
    answer = cli(
        "run", "recall/simplified", "--set", "order=5", "--set", "steps=6", "--probes", "weight_norms", "--json"
    )
    expected = theory.escape_time(0.1, 5, 4) * 0.1 / 0.5
    (warning,) = answer.json["warnings"]
    assert f"'first jump' at {expected:.6g}" in warning and "steps=6" in warning
    assert answer.err.count(warning) == 1
    jump = answer.json["predictions"][-1]
    assert (jump["name"], jump["measured"], jump["note"]) == ("first jump", None, "not reached")
    assert "half-way" in jump["compared_with"]
    assert cli("run", "recall/flow", "--set", "points=50", "--json").json["warnings"] == []


# --- mistakes ---


@pytest.mark.parametrize(
    "settings, words",
    [
        (["order=1"], ["order", "got 1", "greater than or equal to 2"]),
        (["order=12"], ["order 12 has 479,001,600 permutations", "GiB", "give a smaller order"]),
        (["responses=1"], ["responses", "got 1", "greater than or equal to 2"]),
        (["betas=0.1,0.2"], ["2 betas are given for 3 heads (order 4)", "betas=0.1,0.03,0.009"]),
        (["heads=2", "betas=0.1,0.2,0.3"], ["3 betas are given for 2 heads"]),
        (["betas=0.1,-0.2,0.3"], ["give numbers from 0 up"]),
        (["heads=5"], ["heads=5, but there are 4 tokens to match"]),
        (["loss=hinge"], ["loss", "'hinge'", "dot-product"]),
        (["train_size=256"], ["the exact loss has no training set"]),
        (["beta=0.1"], ["unknown config key 'beta'", "betas"]),
    ],
)
def test_a_mistake_is_reported_in_one_line(cli, settings, words):
    answer = cli("run", "recall", *(word for setting in settings for word in ("--set", setting)))
    assert answer.code == 2
    for word in words:
        assert word in answer.complaint, answer.complaint


@pytest.mark.parametrize("task", ["recall/original", "recall/transformer", "recall/flow"])
def test_an_order_that_does_not_fit_is_refused_everywhere(cli, task):
    complaint = cli("run", task, "--set", "order=14").complaint
    assert "order 14 has 87,178,291,200 permutations" in complaint and "GiB" in complaint


def test_heads_of_a_flow_are_checked(cli):
    assert "leaves none to learn" in cli("run", "recall/flow", "--set", "learned=3").complaint
    answer = cli("run", "recall/flow", "--set", "learned=1", "--set", "system=first-jump")
    assert "learned heads are for the full system" in answer.complaint


def test_a_rate_that_would_have_no_effect_is_refused(cli):
    answer = cli("run", "recall/flow", "--set", "rate=2")
    assert answer.code == 2 and "rate is for the two equations of Theorem 3.1" in answer.complaint
