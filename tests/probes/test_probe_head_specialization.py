"""head_specialization with groups and with lags, on patterns whose readings can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import stagelens as sl
from kit.probe_models import PATTERN, Written, measured, refusal, tokens, transformer, written_pattern
from stagelens_probes.head_specialization import coverage, coverage_chance, overlap

GROUPS = {"recent": sl.Group(offsets=(0, 1)), "first": sl.Group(positions=(0,))}
DIFFUSE, COMPETITIVE, COOPERATIVE = 0, 1, 2


def one_query(*heads: list[float]) -> Written:
    """Heads with one query at the end of four keys."""
    return written_pattern(torch.tensor(heads)[:, None])


def test_mass_over_groups_and_the_rest_by_hand():
    # keys 2 and 3 are `recent` for the query at 3, key 0 is `first`, key 1 is the rest
    model = one_query([0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0, 0])
    readings = measured(model, "head_specialization", groups=GROUPS)
    np.testing.assert_allclose(readings["mass"][0], [[0.7, 0.1, 0.2], [0, 0.5, 0.5]], atol=1e-6)
    np.testing.assert_array_equal(readings["leader"][0], [0, 1])
    assert readings["coverage"] == 1


def test_mass_over_lags_by_hand():
    # head 0 looks back one key, head 1 at itself; the query at 0 has no choice and does not count
    previous = [[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]
    readings = measured(written_pattern([previous, np.eye(3)]), "head_specialization")
    np.testing.assert_allclose(readings["mass"][0], [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(readings["leader"][0], [1, 0])
    assert readings["overlap"] == pytest.approx(0) and readings["coverage"] == 1
    assert readings["phase"] == COOPERATIVE


def test_a_bidirectional_model_has_lags_to_both_sides():
    following = np.roll(np.eye(3), 1, axis=1)  # 0 -> 1, 1 -> 2, 2 -> 0
    model = written_pattern([following, np.eye(3)], attention_dir="bidirectional")
    recorder = sl.Recorder(model, probes=["head_specialization"], batch=0)
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"][0, 0]
    assert mass.lag.values.tolist() == [-2, -1, 0, 1, 2]
    np.testing.assert_allclose(mass[0], [0, 2 / 3, 0, 0, 1 / 3])
    assert mass[1].sel(lag=0) == 1


def test_mass_over_lags_sums_to_one_and_counts_each_lag_once():
    pattern = torch.rand(2, 2, 5, 5, generator=torch.Generator().manual_seed(1)).tril()
    pattern /= pattern.sum(-1, keepdim=True)
    mass = measured(written_pattern(pattern), "head_specialization")["mass"][0]
    mean = pattern.mean(0)[:, 1:].numpy()  # [head, query, key]
    expected = [[np.trace(mean[h], offset=1 - lag) / 4 for lag in range(5)] for h in range(2)]
    np.testing.assert_allclose(mass, expected, rtol=1e-6)


def test_overlap_is_one_minus_the_mean_jensen_shannon_divergence():
    mass = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mass /= mass.sum(-1, keepdim=True)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    expected = np.mean([1 - jensenshannon(mass[i], mass[j], base=2) ** 2 for i, j in pairs])
    assert overlap(mass).item() == pytest.approx(expected)


def test_coverage_counts_distinct_leading_groups_and_not_the_rest():
    assert coverage(torch.tensor([0, 0, 1]), n_groups=3) == pytest.approx(2 / 3)
    assert coverage(torch.tensor([0, 1, 3]), n_groups=3) == pytest.approx(2 / 3)  # 3 is the rest
    assert coverage(torch.tensor([0, 1, 1, 1]), n_groups=2) == 1


@pytest.mark.parametrize(
    ("heads", "phase"),
    [
        (([0.25] * 4, [0.25] * 4), DIFFUSE),
        (([0.0, 0, 0, 1], [0, 0, 0.1, 0.9]), COMPETITIVE),
        (([0.0, 0, 0, 1], [1, 0, 0, 0]), COOPERATIVE),
    ],
)
def test_phases(heads, phase):
    assert measured(one_query(*heads), "head_specialization", groups=GROUPS)["phase"] == phase


def test_the_phase_and_the_leader_have_names():
    recorder = sl.Recorder(
        one_query([0.0, 0, 0, 1], [1, 0, 0, 0]), probes=["head_specialization"], batch=0, groups=GROUPS
    )
    recorder.measure(0)
    assert recorder.timeline["head_specialization/phase"].attrs["flag_meanings"] == "diffuse competitive cooperative"
    assert recorder.timeline["head_specialization/leader"].attrs["flag_meanings"] == "recent first rest"
    assert recorder.timeline["head_specialization/mass"].coords["group"].values.tolist() == ["recent", "first", "rest"]


def test_groups_that_overlap_still_compare_as_distributions():
    groups = {"a": sl.Group(positions=(0, 1)), "b": sl.Group(positions=(1, 2))}
    model = one_query([0.0, 1, 0, 0], [0.0, 1, 0, 0])
    assert measured(model, "head_specialization", groups=groups)["overlap"] == pytest.approx(1)


def two_layers(first, second, **cfg):
    """A model of two layers with these patterns, [head, query, key] each."""
    patterns = {0: torch.tensor(np.array(first)), 1: torch.tensor(np.array(second))}
    return Written({f"blocks.{layer}.attn.hook_pattern": pattern[None] for layer, pattern in patterns.items()}, **cfg)


PREVIOUS = np.roll(np.eye(4), -1, axis=1)
PREVIOUS[0] = [1, 0, 0, 0]
FIRST = np.eye(4)[[0, 0, 0, 0]]


def test_early_layers_are_read_at_every_query_and_the_last_at_those_that_the_loss_reads():
    last = np.concatenate([PREVIOUS[:3], FIRST[3:]])  # attends to the first key at the query that is scored
    model = two_layers([PREVIOUS, FIRST], [last, last])
    recorder = sl.Recorder(model, probes=["head_specialization"], batch=0)
    recorder.context.queries = slice(-1, None)
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"][0]  # [layer, head, lag]
    np.testing.assert_allclose(mass[0], [[0, 1, 0, 0], [0, 1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(mass[1], [[0, 0, 0, 1]] * 2)


def test_groups_name_their_layers():
    groups = {"first layer": sl.Group(positions=(0,), layers=(0,)), "second": sl.Group(offsets=(1,), layers=(1,))}
    recorder = sl.Recorder(two_layers([FIRST, PREVIOUS], [FIRST, PREVIOUS]), ["head_specialization"], 0, groups=groups)
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"][0]  # [layer, head, group]
    np.testing.assert_allclose(mass[0], [[1, 0, 0], [1 / 3, 0, 2 / 3]])
    np.testing.assert_allclose(mass[1], [[0, 1 / 3, 2 / 3], [0, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(recorder.timeline["head_specialization/coverage"][0], [1, 1])  # of one group each


def test_a_layer_that_no_group_names_has_no_overlap_coverage_or_phase():
    groups = {"first": sl.Group(positions=(0,), layers=(0,))}
    found = measured(two_layers([FIRST, PREVIOUS], [FIRST, PREVIOUS]), "head_specialization", groups=groups)
    for name in ("overlap", "coverage", "phase"):
        assert not np.isnan(found[name][0]) and np.isnan(found[name][1]), name
    np.testing.assert_allclose(found["mass"][1], [[0, 1]] * 2)


@pytest.mark.parametrize("position", [-4, -1])
def test_negative_positions_count_from_the_last_key(position):
    model = one_query([0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0, 0])
    before, after = (
        measured(model, "head_specialization", groups={"a": sl.Group(positions=(p,))}) for p in (position, position + 4)
    )
    np.testing.assert_array_equal(before["mass"], after["mass"])
    assert before["mass"].sum(-1) == pytest.approx(1) and before["mass"][0, 0, 0] == pytest.approx(
        [0.1, 0, 0, 0.4][position]
    )


def problem_with(groups):
    recorder = sl.Recorder(one_query([0.25] * 4, [0.25] * 4), ["head_specialization"], 0, groups=groups)
    recorder.measure(0)
    return recorder.problems["head_specialization"]


@pytest.mark.parametrize("position", [4, -5])
def test_a_position_outside_the_context_is_refused_by_its_groups_name(position):
    problem = problem_with({"fine": sl.Group(positions=(0,)), "far": sl.Group(positions=(0, position))})
    assert "group 'far'" in problem and f"position {position} was given, but there are 4 keys" in problem
    assert "from -4 to 3" in problem


def test_a_layer_that_the_model_does_not_have_is_refused():
    assert "group 'late' names layer 2; the model has attention in layers [0]" in problem_with(
        {"late": sl.Group(positions=(0,), layers=(0, 2))}
    )


def test_lags_to_the_right_follow_from_the_mask_and_not_from_the_config():
    class SeesTheNext(Written):
        def visible_keys(self, layer, n_query, n_key):
            return torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query + 1)

    following = np.minimum(np.arange(4) + 1, 3)
    pattern = torch.tensor(np.stack([np.eye(4)[following], np.eye(4)]))
    recorder = sl.Recorder(SeesTheNext({PATTERN: pattern[None]}), ["head_specialization"], 0)
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"][0, 0]  # [head, lag]
    assert mass.lag.values.tolist() == [-1, 0, 1, 2, 3]
    np.testing.assert_allclose(mass, [[3 / 4, 1 / 4, 0, 0, 0], [0, 1, 0, 0, 0]])


def test_one_head_cannot_be_compared():
    assert "one head" in refusal(transformer(n_heads=1), "head_specialization", tokens())
    assert "one head" in refusal(written_pattern([[1.0, 0], [0.5, 0.5]]), "head_specialization")


@pytest.mark.parametrize(("n_heads", "n_groups"), [(2, 2), (2, 5), (4, 3), (8, 8), (3, 1)])
def test_the_chance_level_of_coverage_is_that_of_heads_that_choose_a_group_at_random(n_heads, n_groups):
    leaders = torch.randint(n_groups, (4000, n_heads), generator=torch.Generator().manual_seed(0))
    drawn = torch.stack([coverage(leader, n_groups) for leader in leaders])
    error = drawn.std().item() / 4000**0.5
    assert coverage_chance(n_heads, n_groups) == pytest.approx(drawn.mean().item(), abs=4 * error + 1e-6)


def test_the_chance_level_is_recorded_by_layer_for_the_groups_that_name_it():
    groups = {"a": sl.Group(offsets=(0,)), "b": sl.Group(offsets=(1,)), "c": sl.Group(offsets=(2,), layers=(1,))}
    found = measured(transformer(), "head_specialization", tokens(), groups=groups)["coverage_chance"]
    np.testing.assert_allclose(found, [2 * (1 - 0.5**3) / 2, 3 * (1 - (2 / 3) ** 3) / 3])
    five = measured(transformer(), "head_specialization", tokens())["coverage_chance"]  # of the groups of tokens
    np.testing.assert_allclose(five, 5 * (1 - 0.8**3) / 3)
    lags = measured(written_pattern(torch.rand(3, 10, 10)), "head_specialization")["coverage_chance"]
    np.testing.assert_allclose(lags, 10 * (1 - 0.9**3) / 3)


@pytest.mark.parametrize("d", [3, 4, 8])
def test_a_head_along_a_random_direction_rarely_leads_and_one_along_a_named_one_does(d):
    """Keys and queries of rank one, as in linear attention at its start: 400 heads of random directions."""
    stream = torch.Generator().manual_seed(d)
    axes = torch.eye(d)
    groups = {f"e{i}": sl.Group(directions=(f"e{i}",)) for i in range(d)}
    directions = {f"e{i}": axis for i, axis in enumerate(axes)}

    def leaders(vectors):
        """Leading groups [head] of heads whose keys and queries are along `vectors` [head, d]."""
        along = torch.randn(2, 6, len(vectors), 1, generator=stream) * vectors
        model = Written(
            {"blocks.0.attn.hook_k": along, "blocks.0.attn.hook_q": along, PATTERN: torch.ones(2, len(vectors), 6, 6)}
        )
        return measured(model, "head_specialization", groups=groups, directions=directions)["leader"][0]

    random = leaders(torch.randn(400, d, generator=stream))
    assert 0.01 < np.mean(random < d) < 0.08  # the margin leaves 5%
    assert leaders(axes).tolist() == list(range(d))
