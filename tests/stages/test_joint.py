"""Stages of the whole model, on timelines whose joint transitions are known."""

from __future__ import annotations

import numpy as np
import pytest

import stagelens as sl
from kit.hard_curves import noise
from kit.joint_timelines import Known, agrees, noise_alone, staged
from kit.written_runs import staircase, timeline
from stagelens.stages.components import components, lasting, varimax
from stagelens.stages.together import Move, together

STEPS = np.arange(200)


def found(known: Known) -> np.ndarray:
    return np.interp([t.at for t in sl.joint_stages(known.timeline).transitions], known.timeline.steps, known.u)


def test_known_transitions_are_found_at_their_times():
    rng = np.random.default_rng(2026)
    cases = [staged(rng, decays=0) for _ in range(14)]
    assert np.mean([agrees(found(known), known) for known in cases]) >= 0.9


@pytest.mark.parametrize("decays", [1, 3])
def test_smooth_decays_among_the_readings_are_no_transitions(decays):
    rng = np.random.default_rng([2026, decays])
    cases = [staged(rng, decays=decays) for _ in range(14)]
    assert np.mean([agrees(found(known), known) for known in cases]) >= 0.85


def test_decays_alone_have_one_plateau():
    decays = np.exp(-STEPS[:, None] / np.array([20, 50, 100]))
    stages = sl.joint_stages(timeline(STEPS, {"decay": (decays, ("head",))}))
    assert stages.transitions == ()
    assert "steadily" in stages.explanation


def test_a_number_that_falls_steadily_does_not_move_in_a_transition_of_others():
    rng = np.random.default_rng(10)
    drop, decay = staircase(STEPS, [140], [0, -1], 2), np.exp(-STEPS / 80)
    series = {"loss": drop + 0.01 * rng.normal(size=200), "decay": decay + 0.001 * rng.normal(size=200)}
    (transition,) = sl.joint_stages(timeline(STEPS, series)).transitions
    assert [mover.reading for mover in transition.readings] == ["loss"]


@pytest.mark.parametrize(("readings", "rho"), [(40, 0.0), (40, 0.5), (60, 0.8), (40, 0.95)])
def test_readings_of_noise_alone_have_no_transition(readings, rho):
    rng = np.random.default_rng(7)
    timelines = 40 if rho > 0.9 else 8  # of which a few have two at once, so that a mean over 8 says little
    counts = [len(sl.joint_stages(noise_alone(rng, readings, rho)).transitions) for _ in range(timelines)]
    assert np.mean(counts) <= 0.1


def test_a_circuit_that_forms_while_the_loss_is_flat_is_a_stage():
    rng = np.random.default_rng(0)
    loss = staircase(STEPS, [150], [3, 1], 3) + 0.02 * noise(rng, 200, 0.5)
    heads = np.stack([0.01 * noise(rng, 200, 0.5) for _ in range(4)], axis=1)
    heads[:, 2] += staircase(STEPS, [60], [0, 0.8], 2)
    stages = sl.joint_stages(
        timeline(STEPS, {"loss": loss, "train_loss": loss + 0.02, "probe/score": (heads, ("head",))})
    )
    early, late = stages.transitions
    assert [mover.reading for mover in early.readings] == ["probe/score[head=2]"]
    assert early.at == pytest.approx(60, abs=2)
    assert early.readings[0].at == pytest.approx(60, abs=2)
    assert early.readings[0].after - early.readings[0].before == pytest.approx(0.8, abs=0.02)
    assert {mover.reading for mover in late.readings} == {"loss", "train_loss"}
    assert late.at == pytest.approx(150, abs=3)
    assert [stage.kind for stage in stages] == ["plateau", "transition"] * 2 + ["plateau"]
    assert stages[0].start == 0
    assert stages[-1].end == 199


def test_the_reading_that_moves_first_comes_first():
    rng = np.random.default_rng(1)
    series = {f"r{lag}": staircase(STEPS, [90 + lag], [0, 1], 3) + 0.01 * rng.normal(size=200) for lag in (8, 0, 4)}
    (transition,) = sl.joint_stages(timeline(STEPS, series)).transitions
    assert [mover.reading for mover in transition.readings] == ["r0", "r4", "r8"]
    assert [mover.at for mover in transition.readings] == pytest.approx([90, 94, 98], abs=1)


def test_a_strength_is_the_move_in_units_of_the_wander():
    rng = np.random.default_rng(2)
    series = {"r": staircase(STEPS, [100], [0, 1], 1) + 0.05 * rng.normal(size=200)}
    (transition,) = sl.joint_stages(timeline(STEPS, series)).transitions
    assert transition.readings[0].strength == pytest.approx(1 / 0.05, rel=0.1)


def test_copies_of_one_reading_count_once():
    rng = np.random.default_rng(3)
    other = staircase(STEPS, [140], [0, 1], 3) + 0.02 * rng.normal(size=200)
    shares = []
    for copies in (1, 48):
        shared = staircase(STEPS, [50], [0, 1], 3)[:, None] + 0.02 * rng.normal(size=(200, copies))
        stages = sl.joint_stages(timeline(STEPS, {"heads": (shared, ("head",)), "other": other}))
        assert [t.at for t in stages.transitions] == pytest.approx([50, 140], abs=2)
        shares.append(components([shared, other[:, None]], rotate=False).shares[:2])
    assert shares[1] == pytest.approx(shares[0], abs=0.01)


def test_labels_companions_constants_and_gaps_do_not_matter():
    rng = np.random.default_rng(4)
    score = staircase(STEPS, [100], [0, 1], 3) + 0.02 * rng.normal(size=200)
    jump = np.where(STEPS < 40, 0.0, 1.0)
    gaps = np.where(STEPS % 3 == 1, np.nan, score)
    series = {
        "score": score,
        "score_error": jump,
        "score_chance": jump,
        "leader": (jump, (), ("a", "b")),
        "constant": np.ones(200),
        "rounded": 1 + 1e-8 * jump,
        "infinite": np.where(STEPS < 40, 0, np.inf),
        "never": np.full(200, np.nan),
        "gaps": gaps,
    }
    (transition,) = sl.joint_stages(timeline(STEPS, series)).transitions
    assert transition.at == pytest.approx(100, abs=2)
    assert {mover.reading for mover in transition.readings} == {"score", "gaps"}


def test_units_do_not_matter():
    rng = np.random.default_rng(5)
    series = {"a": staircase(STEPS, [60], [0, 1], 3), "b": staircase(STEPS, [130], [1, 0], 3)}
    series = {name: values + 0.02 * rng.normal(size=200) for name, values in series.items()}
    scaled = {"a": 1e6 * series["a"] - 5, "b": -1e-6 * series["b"]}
    ats = [[t.at for t in sl.joint_stages(timeline(STEPS, given)).transitions] for given in (series, scaled)]
    assert ats[0] == pytest.approx(ats[1])


def test_too_little_is_explained():
    assert "no reading changes" in sl.joint_stages(timeline(STEPS, {"a": np.ones(200)})).explanation
    assert "too few" in sl.joint_stages(timeline(STEPS[:3], {"a": STEPS[:3] + 0.0})).explanation
    with pytest.raises(sl.StagelensError, match="1 steps were measured"):
        sl.joint_stages(timeline([0], {"a": [1.0]}))


def test_persistent_changes_of_noise_and_of_a_step():
    rng = np.random.default_rng(8)
    step = np.where(STEPS < 100, 0.0, 1.0) + 0.05 * rng.normal(size=200)
    values = np.stack([rng.normal(size=200), noise(rng, 200, 0.8), step], axis=1)
    white, wandering, moved = lasting(values)
    assert white < 0.15
    assert wandering < 0.8
    assert moved > 0.95
    assert components([values[:, :2]]).scores.shape == (200, 0)


def test_varimax_undoes_a_rotation_of_simple_loadings():
    loadings = np.zeros((9, 3))
    loadings[np.arange(9), np.arange(9) // 3] = 1
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))[0]
    rotation = varimax(loadings @ turn)
    assert rotation @ rotation.T == pytest.approx(np.eye(3))
    assert np.abs(loadings @ turn @ rotation).max(axis=1) == pytest.approx(np.ones(9), abs=1e-6)


def test_overlapping_moves_are_one_transition():
    moves = [Move(0, 0.1, 0.15, 0.2, 1.0), Move(1, 0.18, 0.22, 0.3, 2.0), Move(0, 0.5, 0.5, 0.5, 1.0)]
    first, second = together(moves)
    assert first.moves == tuple(moves[:2])
    assert first.size == pytest.approx(5**0.5)
    assert first.at == pytest.approx((0.15 + 4 * 0.22) / 5)
    assert second.moves == (moves[2],)
    assert together([]) == []
