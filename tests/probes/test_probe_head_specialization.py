"""head_specialization, with groups and with lags, on patterns whose numbers can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probe_models import Written, measured, refusal, tokens, transformer, written_pattern
from scipy.spatial.distance import jensenshannon

import stagelens as sl
from stagelens_probes.head_specialization import coverage, overlap

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


def test_one_head_cannot_be_compared():
    assert "one head" in refusal(transformer(n_heads=1), "head_specialization", tokens())
    assert "one head" in refusal(written_pattern([[1.0, 0], [0.5, 0.5]]), "head_specialization")
