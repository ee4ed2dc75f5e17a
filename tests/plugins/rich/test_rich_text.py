"""rich/text: the task, its probe and figure, and what claim G10 reads off a timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatch
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import stagelens as sl
from stagelens.claims.lab import Lab
from stagelens.claims.verifying import choose, verify_claim
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens.host.host import make_host
from stagelens.models import build_transformer
from stagelens.timelines.timeline import Timeline, pack
from stagelens_rich.claims.measures import half_time, half_times
from stagelens_rich.claims.text import SETTINGS, PositionsFirst
from stagelens_rich.config import TextConfig
from stagelens_rich.tasks.text import PARTS, Text

SMALL = {"L": 8, "D": 8, "W": 16, "batch_size": 8, "eval_size": 16, "steps": 40}


def task(corpus, seed=0, preset="quick", **settings):
    words = [f"{key}={value}" for key, value in (SMALL | {"corpus": corpus} | settings).items()]
    return Text(make_config(TextConfig, Text.presets, preset, words), seed)


@pytest.fixture
def counting(tmp_path):
    """1000 different words: those that are held out are unknown."""
    file = tmp_path / "counting.txt"
    file.write_text(" ".join(f"w{i}" for i in range(1000)), encoding="utf-8")
    return file


@pytest.fixture
def rhyme(tmp_path):
    """Six words in a cycle of eight: the two words before it determine the next."""
    file = tmp_path / "rhyme.txt"
    file.write_text("a b c a d e a f " * 100, encoding="utf-8")
    return file


def test_the_papers_preset_has_the_papers_numbers():
    c = make_config(TextConfig, Text.presets, "paper", [])
    assert (c.corpus, c.vocab, c.L, c.D, c.W, c.batch_size) == ("wikitext-2", 33278, 200, 128, 512, 32)
    assert (c.lr, c.sigma_init, c.steps) == (0.1, 0.01, 489_000)


def test_a_path_is_stored_in_full(monkeypatch, counting):
    monkeypatch.chdir(counting.parent)
    assert task("counting.txt").config.corpus == str(counting)
    assert task("python").config.corpus == "python"


def test_training_sees_the_training_part_and_evaluation_the_other(counting):
    it = task(counting)
    batch = it.batches("cpu")(3)
    assert batch.shape == (8, 9) and (batch > 0).all()
    assert (eval_batch(it) == 0).all()  # words that only the held-out part has
    position = {int(token): i for i, token in enumerate(it.corpus.train)}
    places = torch.tensor([[position[int(token)] for token in row] for row in batch])
    assert (places.diff(dim=1) == 1).all()


def test_a_batch_depends_on_seed_and_step_alone(counting):
    one, again, other = (task(counting, seed=seed).batches("cpu") for seed in (1, 1, 2))
    for step in (7, 3):
        one(step)
    assert torch.equal(one(5), again(5))
    assert not torch.equal(one(5), one(6)) and not torch.equal(one(5), other(5))


def test_stretches_reach_both_ends_of_the_text(counting):
    it = task(counting)
    seen = torch.cat([it.batches("cpu")(step).flatten() for step in range(400)])
    assert {int(it.corpus.train[0]), int(it.corpus.train[-1])} <= set(seen.tolist())


def test_everything_starts_at_the_initial_scale(counting):
    model = task(counting, D=32, W=64, sigma_init=0.02).build_model()
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2].startswith("W_"):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
        if name.endswith("alibi_slope"):
            assert parameter.tolist() == pytest.approx([0.02, 0.02])
    assert [block.attn.alibi_slope.requires_grad for block in model.blocks] == [True, True]
    assert model.cfg.n_layers == 2 and model.cfg.normalization_type == "LN" and model.cfg.d_mlp == 64


def test_the_untrained_loss_is_that_of_a_uniform_guess(counting):
    it = task(counting)
    loss = it.loss(it.build_model(), eval_batch(it)).item()
    assert loss == pytest.approx(math.log(len(it.corpus.words)), abs=0.05)


def test_a_run_learns_the_rhyme_and_reads_its_norms(rhyme, tmp_path):
    settings = SMALL | {"corpus": str(rhyme), "steps": 150, "lr": 0.5, "sigma_init": 0.2}
    done = sl.run("rich/text", settings=settings, runs=tmp_path / "runs", report=False)
    assert done.status == "finished" and not done.manifest.problems
    assert {name for name in done.manifest.skipped if "/" not in name} == {"kl_to_references", "conserved"}
    names = [found["name"] for found in done.predictions]
    assert names == ["unigram", "bigram", "trigram"]
    _, losses = done.timeline.scalar("loss")
    assert losses[-1] < done.experiment.ngrams["unigram"] - 0.3 < losses[0]
    assert done.timeline["position_norms/p"].dims == ("step", "layer", "head")
    assert {"induction/prefix_matching", "attention_sparsity/sparsity", "weight_norms/norm"} <= set(done.timeline)
    (figure,) = done.experiment.figures(done).values()
    loss, p, kq = figure.axes[:3]
    assert [axis.get_ylabel() for axis in (p, kq)] == ["‖p‖", "‖(W_K, W_Q)‖"]
    assert np.array_equal(loss.lines[0].get_ydata(), losses)
    assert np.array_equal(p.lines[0].get_ydata(), done.timeline.scalar("position_norms/all_p")[1])


# -- the probe -----------------------------------------------------------------------------------------------------


def test_norms_are_those_of_the_parameters(rhyme):
    it = task(rhyme)
    model = it.build_model()
    with torch.no_grad():
        model.blocks[1].attn.alibi_slope.copy_(torch.tensor([-3.0, 4.0]))
        model.blocks[0].attn.alibi_slope.zero_()
    recorder = sl.Recorder(model, ["position_norms"], eval_batch(it), task=it)
    recorder.measure(0)
    reading = recorder.timeline
    assert reading["position_norms/p"].sel(step=0, layer=1).values.tolist() == [-3.0, 4.0]
    assert reading["position_norms/all_p"].item() == pytest.approx(5.0)
    weights = [getattr(block.attn, w) for block in model.blocks for w in ("W_K", "W_Q")]
    total = math.sqrt(sum(w.square().sum().item() for w in weights))
    assert reading["position_norms/all_kq"].item() == pytest.approx(total, rel=1e-5)
    head = math.sqrt(sum(getattr(model.blocks[0].attn, w)[1].square().sum().item() for w in ("W_K", "W_Q")))
    assert reading["position_norms/kq"].sel(step=0, layer=0).values[1] == pytest.approx(head, rel=1e-5)


def test_norms_need_slopes_that_are_learned():
    model = build_transformer(n_layers=1, n_heads=2, d_model=8, n_ctx=8, d_vocab=5, seed=0)
    recorder = sl.Recorder(model, ["position_norms"], torch.zeros(2, 4, dtype=torch.int64))
    assert recorder.skipped == {"position_norms": "the model has no learnable ALiBi slopes"}


@pytest.mark.parametrize(
    ("values", "start", "expected"),
    [
        ([1, 1, 2, 4, 5], None, 25.0),  # from 1 to 5: half at 3
        ([1, 1, 2, 4, 5], 0.0, 22.5),  # half of the last value: 2.5
        ([1, 4, 2, 4, 5], None, 25.0),  # not at the first crossing: it falls back
        ([3, 4, 5, 5, 5], 0.0, 0.0),  # more than half of the last from the start
        ([5, 4, 3, 2, 1], None, 20.0),  # downwards
    ],
)
def test_a_half_time_is_where_half_of_the_way_is_over_for_good(values, start, expected):
    steps = np.array([0, 10, 20, 30, 40])
    assert half_time(steps, np.array(values, dtype=float), start) == pytest.approx(expected)


def test_what_does_not_move_has_no_half_time():
    assert math.isnan(half_time(np.arange(3), np.ones(3)))


# -- the claim -----------------------------------------------------------------------------------------------------


def rise(steps, at, low, high):
    return low + (high - low) / (1 + np.exp(-(steps - at) / 10))


def risen(p_at, kq_at, loss=(5, 4)):
    """||p|| rises at one step and ||(W_K, W_Q)|| at another; the loss leaves the unigram's at step 150."""
    steps = np.arange(0, 801, 5)
    p, kq, loss = rise(steps, p_at, 0.01, 1), rise(steps, kq_at, 0.6, 3), rise(steps, 150, *loss)
    measurements = []
    for step, one, two, level in zip(steps, p, kq, loss, strict=True):
        heads = {"p": np.full((2, 2), one / 2), "kq": np.full((2, 2), two / 2)}
        readings = [sl.Reading("loss", level)]
        for name, values in heads.items():
            readings.append(sl.Reading(f"position_norms/{name}", values, ("layer", "head")))
            readings.append(sl.Reading(f"position_norms/all_{name}", np.linalg.norm(values)))
        measurements.append(pack(int(step), readings))
    return SimpleNamespace(timeline=Timeline(measurements), experiment=SimpleNamespace(ngrams={"unigram": 5.0}))


def checks_of(run, frozen=None):
    """The checks of the claim if every run is `run`, or `frozen` where W_K and W_Q do not train."""

    def each_seed(_, settings, **__):
        return dict.fromkeys(range(3), frozen if "frozen" in settings else run)

    lab = SimpleNamespace(each_seed=each_seed, of_budget=lambda values: values["quick"])
    return list(PositionsFirst().checks(lab))


def judged(checks, title):
    return [check.holds for check in checks if check.judged and check.what.startswith(title)]


def test_the_claim_holds_where_positions_rise_first_and_differs_where_they_do_not():
    still = risen(100, 160, loss=(5, 4.9))  # without W_K and W_Q a tenth of the fall is left
    first, after = checks_of(risen(100, 160), still), checks_of(risen(160, 100), still)
    assert judged(first, "own token masked") == [True] * 6
    assert judged(after, "own token masked") == [False] * 5 + [True]
    assert judged(first, "own token seen") == [True] * 4 and judged(after, "own token seen") == [False] * 4
    assert first[0].measured == [pytest.approx([100, 160], abs=1)] * 3
    assert first[0].seeds == {0: True, 1: True, 2: True}


def test_the_claim_differs_if_the_loss_falls_without_dot_products():
    run = risen(100, 160)
    found = {check.what: check for check in checks_of(run, run) if check.judged}
    (kept,) = [check for what, check in found.items() if "W_K, W_Q are frozen" in what]
    assert not kept.holds and kept.measured == [pytest.approx(1)] * 3
    assert sum(not check.holds for check in found.values()) == 1


def test_the_claim_reports_growth_layers_and_the_loss():
    run = risen(100, 160)
    told = [check for check in checks_of(run, run) if not check.judged and "masked" in check.what]
    assert [check.measured[0] for check in told] == [
        pytest.approx([100, 5], rel=0.01),
        pytest.approx([100, 160], abs=1),
        pytest.approx([100, 160], abs=1),
        pytest.approx([1 / (1 + math.exp(-5)), 1 / (1 + math.exp(1))], abs=0.01),
    ]


@dataclass(frozen=True)
class SmallLab(Lab):
    """Trains what a claim asks for at a size that a test can pay."""

    corpus: str = ""

    def run(self, task, settings=None, seed=0, **options):
        given = {"corpus": self.corpus, **(settings or {}), **SMALL}
        return super().run(task, given, seed, **options)


def test_the_claim_runs_on_the_papers_preset(rhyme, tmp_path):
    """B.1's sizes need a GPU, so this runs the same code at a smaller size."""
    host = make_host()
    lab = SmallLab(host, tmp_path / "cache", budget="paper", corpus=str(rhyme))
    (claim,) = choose(host, ["rich"], ["G10"])
    result = verify_claim(claim, lab)
    assert result.verdict in ("holds", "differs"), result.error
    hidden = {"own_token": False, **SETTINGS["long"], "steps": 40}
    runs = lab.with_seeds(3).each_seed("rich/text", hidden, probes=("position_norms",))
    assert result.checks[0].measured == [half_times(run.timeline) for run in runs.values()]
    assert {run.manifest.preset for run in runs.values()} == {"paper"}


def test_a_corpus_of_the_environment_is_judged_too(rhyme, tmp_path, monkeypatch):
    monkeypatch.setenv("STAGELENS_CORPUS", str(rhyme))
    host = make_host()
    lab = SmallLab(host, tmp_path / "cache", corpus=str(rhyme))
    (claim,) = choose(host, ["rich"], ["G10"])
    result = verify_claim(claim, lab)
    assert result.verdict in ("holds", "differs"), result.error
    titles = {check.what.partition(":")[0] for check in result.checks}
    assert titles == {"own token masked", "own token seen", "rhyme.txt"}
    assert sum("previous-token" in check.what for check in result.checks) == 1


def test_frozen_parts_do_not_train_and_all_others_do(rhyme):
    for frozen, patterns in PARTS.items():
        if frozen == "the rest":
            continue
        training = Training(task(rhyme, frozen=frozen))
        before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
        training.advance(0)
        still = {name for name, p in training.model.named_parameters() if torch.equal(p, before[name])}
        fixed = {name for name in before if any(fnmatch(name, pattern) for pattern in patterns)}
        assert fixed <= still
        assert not (still - fixed - {name for name in before if name.rpartition(".")[2] in ("b_K",)})  # has no gradient


def test_every_parameter_is_in_one_part(rhyme):
    for name, _ in task(rhyme).build_model().named_parameters():
        assert sum(any(fnmatch(name, pattern) for pattern in patterns) for patterns in PARTS.values()) == 1, name


def test_the_own_token_is_masked_if_the_config_asks_for_it(rhyme):
    it = task(rhyme, own_token=False)
    pattern = it.build_model().run_with_cache(eval_batch(it)[:, :-1])[1]["blocks.1.attn.hook_pattern"]
    own = pattern.diagonal(dim1=-2, dim2=-1)
    assert (own[..., 1:] == 0).all() and (own[..., 0] == 1).all()
    assert not make_config(TextConfig, Text.presets, "paper", []).own_token
