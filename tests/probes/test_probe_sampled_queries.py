"""Known patterns, sampled queries and standard errors of attention_sparsity and head_specialization."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import lens_model, measured, next_token_loss, tokens, transformer, written_pattern
from stagelens.models import build_transformer
from stagelens.recording.queries import read_queries

BOTH = ["attention_sparsity", "head_specialization"]
N = 12


def rows(*keys):
    """A head [query, key] that attends uniformly to `keys(q)` of each query."""
    pattern = torch.zeros(N, N, dtype=torch.float64)
    for q in range(N):
        chosen = [k for key in keys for k in [key(q)] if 0 <= k <= q] or [q]
        pattern[q, chosen] = 1 / len(chosen)
    return pattern


HEADS = {
    "one key": rows(lambda q: q),
    "sink": rows(lambda q: 0),
    "lag 1": rows(lambda q: q - 1),
    "two keys": rows(lambda q: q, lambda q: q - 2),
    "uniform": torch.ones(N, N, dtype=torch.float64).tril() / torch.arange(1, N + 1)[:, None],
}
GROUPS = {"own": sl.Group(offsets=(0,)), "lag 1": sl.Group(offsets=(1,)), "lag 2": sl.Group(offsets=(2,))}
GROUPS["start"] = sl.Group(positions=(0,))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 2, 0, 3, 1]])
def test_heads_written_by_hand_in_any_order(order):
    model = written_pattern(torch.stack(list(HEADS.values()))[order].expand(3, -1, -1, -1))
    found = {probe: measured(model, probe, groups=GROUPS) for probe in BOTH}
    counts = np.arange(2, N + 1)
    chance = (1 / counts).mean()
    sparse, special = found.values()
    names = [list(HEADS)[i] for i in order]
    at = {name: names.index(name) for name in names}
    for name, perplexity in (("one key", 1), ("sink", 1), ("lag 1", 1)):
        assert sparse["perplexity"][0, at[name]] == pytest.approx(perplexity)
        assert sparse["sparsity_by_third"][0, at[name]] == pytest.approx(1)
    assert sparse["sparsity_by_third"][0, at["uniform"]] == pytest.approx(0, abs=1e-9)
    assert sparse["entropy"][0, at["two keys"]] == pytest.approx(np.log(2) * (N - 2) / (N - 1))
    assert sparse["first_key_mass"][0, at["sink"]] == 1
    assert sparse["first_key_mass"][0, at["uniform"]] == pytest.approx(chance)
    assert sparse["first_key_mass_chance"][0] == pytest.approx(chance)
    assert special["mass_chance"][0, [0, 1, 3]] == pytest.approx(chance)
    assert special["lift"][0, at["uniform"]] == pytest.approx(1)
    assert special["lift"][0, at["lag 1"], 1] == pytest.approx(1 / chance)
    labels = [*GROUPS, "rest"]
    leader = {name: labels[int(special["leader"][0, i])] for name, i in at.items()}
    assert {name: leader[name] for name in ("one key", "sink", "lag 1", "uniform")} == {
        "one key": "own",
        "sink": "start",
        "lag 1": "lag 1",
        "uniform": "rest",
    }
    assert leader["two keys"] in ("own", "lag 2")
    assert np.allclose(special["mass_error"], 0, atol=1e-9)  # three equal sequences


@pytest.mark.parametrize(
    ("heads", "phase"),
    [
        (("sink", "sink"), "diffuse"),  # a shared sink is not competition
        (("uniform", "uniform"), "diffuse"),
        (("lag 1", "lag 1"), "competitive"),
        (("lag 1", "lag 1", "sink"), "competitive"),  # of the heads that have a leader
        (("lag 1", "one key", "lag 1"), "cooperative"),
        (("lag 1", "sink"), "cooperative"),
    ],
)
def test_competition_is_for_a_named_group(heads, phase):
    model = written_pattern(torch.stack([HEADS[name] for name in heads]).expand(2, -1, -1, -1))
    found = measured(model, "head_specialization", groups=GROUPS)["phase"]
    assert ("diffuse", "competitive", "cooperative")[int(found[0])] == phase


def test_the_first_of_groups_that_are_all_positions_is_no_sink():
    """Heads of a flow compete for the first feature; a first key next to groups of other kinds is a sink."""
    positions = {f"I({k + 1})": sl.Group(positions=(k,)) for k in range(3)}
    heads = torch.stack([HEADS["sink"]] * 2).expand(2, -1, -1, -1)
    found = measured(written_pattern(heads), "head_specialization", groups=positions)
    assert found["leader"].tolist() == [[0, 0]] and found["phase"].tolist() == [1]  # competitive
    found = measured(written_pattern(heads), "head_specialization", groups=positions | {"own": sl.Group(offsets=(0,))})
    assert found["phase"].tolist() == [0]


def random_pattern(n_batch, n, seed=0, n_head=3):
    scores = 3 * torch.randn(n_batch, n_head, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.mark.parametrize("name", ["entropy", "sparsity", "top_mass", "first_key_mass", "perplexity", "mass"])
def test_standard_errors_are_those_of_a_bootstrap_over_sequences(name):
    pattern = random_pattern(24, 10)
    probe = "head_specialization" if name == "mass" else "attention_sparsity"
    error = measured(written_pattern(pattern), probe, groups=GROUPS)[f"{name}_error"][0]
    draws = np.random.default_rng(0).integers(24, size=(150, 24))
    again = [measured(written_pattern(pattern[draw]), probe, groups=GROUPS)[name][0] for draw in draws]
    np.testing.assert_allclose(error, np.std(again, axis=0), rtol=0.35, atol=1e-12)


def test_of_one_sequence_the_error_is_that_of_its_queries_and_noise_has_no_leader():
    found = measured(written_pattern(random_pattern(1, 40)), "head_specialization", groups=GROUPS)
    assert (found["mass_error"][0, :, :3] > 0).all()
    assert (found["leader"][0] == 4).all()  # the rest


def test_short_contexts_are_exact_and_long_ones_are_within_their_error():
    pattern = random_pattern(8, 60)
    for probe in BOTH:
        exact = measured(written_pattern(pattern), probe, tokens(8, 60), max_queries=None)
        same = measured(written_pattern(pattern), probe, tokens(8, 60), max_queries=60)
        some = measured(written_pattern(pattern), probe, tokens(8, 60), max_queries=15)
        for name in ("mass", "lift") if probe == BOTH[1] else ("entropy", "sparsity", "first_key_mass"):
            np.testing.assert_array_equal(exact[name], same[name])
            error = some.get(
                f"{name}_error", some["mass_error"] / some["mass_chance"][:, None] if name == "lift" else 0
            )
            away = np.abs(some[name] - exact[name]) / error
            assert away.max() < 4 and np.abs(some[name] - exact[name]).max() > 0, name


@pytest.mark.parametrize("at_most", [None, 70])
def test_blocks_have_all_queries_in_turn_and_the_keys_that_these_see(at_most):
    pattern = random_pattern(2, 100)
    queries = read_queries(range(1, 100), pattern[0, 0] > 0, 2, at_most)
    blocks = queries.blocks((2, 3, 100, 2**20))
    assert len(blocks) == (3 if at_most else 4)
    torch.testing.assert_close(torch.cat([block.position for block in blocks], 1), queries.position)
    whole = queries.of(pattern)
    for block, part in zip(blocks, whole.split(32, dim=2), strict=True):
        n_key = int(block.position.max()) + 1
        assert block.visible.shape[-1] == n_key < 100 or block is blocks[-1]
        torch.testing.assert_close(block.of(pattern), part[..., :n_key])
        assert not part[..., n_key:].any()


@pytest.mark.parametrize("probe", BOTH)
@pytest.mark.parametrize("n_batch", [1, 4])
@pytest.mark.parametrize("max_queries", [None, 13])
@pytest.mark.parametrize("groups", [GROUPS, None])
def test_patterns_are_read_in_blocks_of_queries_with_the_same_numbers(probe, n_batch, max_queries, groups, monkeypatch):
    """The blocks have 5 queries. Without groups the masses are those of lags."""
    model, batch = written_pattern(random_pattern(n_batch, 24)), torch.zeros(n_batch, 24)
    found = []
    for size in (100, 5):
        monkeypatch.setattr("stagelens.recording.queries.LONG", size)
        monkeypatch.setattr("stagelens.recording.queries.AT_ONCE", 0)
        found.append(measured(model, probe, batch, groups=groups, max_queries=max_queries))
    for name, values in found[1].items():
        np.testing.assert_allclose(values, found[0][name], atol=1e-12, err_msg=name)


def test_the_error_covers_the_sampling_of_queries():
    """Queries differ much and sequences do not: all of the error comes from the sample."""
    n = 64
    sharp = torch.stack([torch.eye(n), torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]]).double()
    mixed = torch.where((torch.arange(n) * 7 % 5 < 2)[None, :, None], sharp[:1], sharp[1:]).expand(12, 2, n, n)
    exact, some = (measured(written_pattern(mixed), BOTH[0], max_queries=size) for size in (None, 16))
    assert exact["sparsity_error"][0] == pytest.approx(0, abs=1e-12)
    away = np.abs(some["sparsity"] - exact["sparsity"]) / some["sparsity_error"]
    assert (some["sparsity_error"] > 1e-3).all() and away.max() < 3


@pytest.mark.parametrize("length", [12, 150])
def test_the_fused_path_shows_the_probes_what_hooks_see(length):
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 8, "n_ctx": length, "d_vocab": 64, "seed": 0}
    model, batch = build_transformer(**sizes), tokens(3, length, 64)
    probes = [*BOTH, "qk_alignment", "induction"]
    found = []
    for hooked in (False, True):
        handle = model.blocks[0].hook_resid_pre.register_forward_hook(lambda *_: None) if hooked else None
        recorder = sl.Recorder(model, probes, batch, loss=next_token_loss)
        recorder.measure(0)
        assert not recorder.problems
        found.append(recorder.timeline.dataset)
        if handle is not None:
            handle.remove()
    for name in found[0].data_vars:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_a_probe_that_samples_must_join_its_blocks():
    class Sampling(FirstKey):
        samples = True

    for kind, problem in ((FirstKey, None), (Sampling, "Sampling samples queries but has no join()")):
        recorder = sl.Recorder(written_pattern(random_pattern(2, 70)), [kind], torch.zeros(2, 70), max_queries=40)
        recorder.measure(0)
        assert list(recorder.problems) == ([] if problem is None else ["first"])
        assert problem is None or problem in recorder.problems["first"]


class FirstKey(sl.Probe):
    """The mean attention to the first key at the queries that it is given."""

    name = "first"
    gives = ("mass",)
    hooks = ("attn.hook_pattern",)

    def reduce(self, activation, site, context):
        return activation[..., 0].mean()

    def readings(self, reduced, context):
        yield sl.Reading("mass", torch.stack(list(reduced.values())), ("layer",))


def test_a_probe_of_whole_patterns_gets_whole_patterns():
    shapes = []

    @sl.probe(hooks="attn.hook_pattern", dims=("head",))
    def whole(pattern, context):
        shapes.append(tuple(pattern.shape))
        return pattern.mean((0, 2, 3))

    model = transformer(n_ctx=20)
    sl.Recorder(model, [whole, *BOTH], tokens(2, 20), max_queries=5).measure(0)
    assert shapes == [(2, 3, 20, 20)] * 2


def test_a_hook_of_the_user_stays_and_sees_the_pass():
    seen, model = [], lens_model()
    model.add_hook("blocks.0.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.shape), is_permanent=True)
    sl.Recorder(sl.fast(model), BOTH, tokens()).measure(0)
    assert seen


def test_fewer_sequences_are_a_setting():
    batch = tokens(6)
    some = measured(transformer(), BOTH[1], batch, max_sequences=2)
    fewer = measured(transformer(), BOTH[1], batch[:2])
    np.testing.assert_allclose(some["mass"], fewer["mass"], rtol=1e-5)
    with pytest.raises(sl.StagelensError, match="max_queries=0 was given; give an integer from 1 up, or None for all"):
        sl.Recorder(transformer(), BOTH, batch, max_queries=0)


def test_the_steps_of_a_pattern_have_all_its_weights_and_leave_out_masked_keys():
    visible = torch.ones(40, 40, dtype=torch.bool).tril()
    pattern = torch.randn(2, 3, 40, 40).masked_fill(~visible, -torch.inf).softmax(-1)
    queries = read_queries(range(40), visible, n_batch=2, at_most=None)
    steps = queries.steps(pattern)
    assert [tuple(step.shape[2:]) for step in steps] == [(16, 16), (16, 32), (8, 40)]
    joined = torch.cat([torch.nn.functional.pad(step, (0, 40 - step.shape[-1])) for step in steps], dim=2)
    assert torch.equal(joined, pattern)
