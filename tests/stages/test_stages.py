"""`detect_stages` against curves whose stages are known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kit.curves import SHAPES, TRAITS, Curve, decay, staircase
from stagelens.base.errors import UsageError
from stagelens.stages import Stages, detect_group, detect_stages


def two_steps(points: int = 120, noise: float = 0.01, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Levels 3, 2, 0.5 with transitions at 300 and 700."""
    steps = np.linspace(0, 1000, points)
    values = 3 - 1 / (1 + np.exp(-(steps - 300) / 8)) - 1.5 / (1 + np.exp(-(steps - 700) / 8))
    return steps, values + noise * np.random.default_rng(seed).normal(size=points)


@pytest.fixture(scope="module")
def judged() -> list[tuple[Curve, Stages]]:
    curves = [staircase(np.random.default_rng([1, seed])) for seed in range(300)]
    return [(curve, detect_stages(curve.steps, curve.values)) for curve in curves]


@pytest.mark.xfail(strict=True, reason="about 94%: the goal of 95% is missed, see docs/stages.md")
def test_the_number_of_transitions_is_right_for_95_of_100_curves(judged: list[tuple[Curve, Stages]]) -> None:
    assert fraction_right(judged) >= 0.95


def test_the_number_of_transitions_is_right_as_often_as_the_docs_say(judged: list[tuple[Curve, Stages]]) -> None:
    assert fraction_right(judged) >= 0.93


def fraction_right(judged: list[tuple[Curve, Stages]]) -> float:
    return float(np.mean([len(stages.transitions) == len(curve.times) for curve, stages in judged]))


def test_transitions_are_timed_to_3_percent_of_the_distance_between_neighbours(
    judged: list[tuple[Curve, Stages]],
) -> None:
    errors = [
        curve.errors([transition.at for transition in stages.transitions])
        for curve, stages in judged
        if len(stages.transitions) == len(curve.times)
    ]
    assert np.median(np.concatenate(errors)) < 0.03


def test_drops_have_the_right_size_and_sign(judged: list[tuple[Curve, Stages]]) -> None:
    off = [
        transition.drop / drop - 1
        for curve, stages in judged
        if len(stages.transitions) == len(curve.times) and not {"unfinished", "overshoot"} & curve.traits
        for transition, drop in zip(stages.transitions, curve.drops, strict=True)
    ]
    assert np.median(np.abs(off)) < 0.05
    assert np.mean(np.array(off) > -1) > 0.99


def test_the_generator_mixes_every_trait(judged: list[tuple[Curve, Stages]]) -> None:
    traits = [trait for curve, _ in judged for trait in curve.traits]
    assert min(traits.count(trait) for trait in set(traits)) >= 15
    assert len(set(traits)) == len(TRAITS) + len(SHAPES)
    assert {len(curve.times) for curve, _ in judged} == set(range(8))


def test_smooth_decays_have_no_transition() -> None:
    curves = [decay(np.random.default_rng([2, seed])) for seed in range(250)]
    wrong = [bool(detect_stages(curve.steps, curve.values).transitions) for curve in curves]
    assert np.mean(wrong) <= 0.02


@pytest.mark.parametrize("axis", ["linear", "log"])
@pytest.mark.parametrize("steps", [np.linspace(0, 1e4, 200), np.geomspace(1, 1e4, 200)], ids=["even", "log-spaced"])
def test_an_exponential_decay_has_no_transition_on_either_axis(steps: np.ndarray, axis: str) -> None:
    for noise in (0.0, 0.02):
        values = np.exp(-steps / 700) + noise * np.random.default_rng(0).normal(size=len(steps))
        assert detect_stages(steps, values, axis=axis).transitions == ()  # type: ignore[arg-type]


def test_stages_of_a_clean_staircase() -> None:
    stages = detect_stages(*two_steps(noise=0.0))
    assert [stage.kind for stage in stages] == ["plateau", "transition", "plateau", "transition", "plateau"]
    assert [t.at for t in stages.transitions] == pytest.approx([300, 700], abs=5)
    assert [t.drop for t in stages.transitions] == pytest.approx([1, 1.5], rel=0.02)
    assert [p.level for p in stages.plateaus] == pytest.approx([3, 2, 0.5], abs=0.02)
    # the logistic function's 10 to 90 % rise is 4.39 widths; the neighbours of the first are 0 and 700
    assert stages.transitions[0].sharpness == pytest.approx(1 - 4.39 * 8 / 700, abs=0.01)


def test_stages_cover_the_curve_without_gaps(judged: list[tuple[Curve, Stages]]) -> None:
    for curve, stages in judged:
        assert (stages[0].start, stages[-1].end) == pytest.approx((curve.steps[0], curve.steps[-1]))
        assert [stage.end for stage in stages[:-1]] == pytest.approx([stage.start for stage in stages[1:]])


def test_a_loss_that_falls_at_once_and_drops_later_has_two_transitions() -> None:
    steps = np.linspace(0, 1000, 200)
    fall = np.exp(-steps / 40)
    drop = 1 / (1 + np.exp(-(steps - 600) / 10))
    rng = np.random.default_rng(0)
    assert detect_stages(steps, fall + 0.01 * rng.normal(size=200)).transitions == ()
    found = detect_stages(steps, fall - drop + 0.01 * rng.normal(size=200)).transitions
    assert [t.at for t in found] == pytest.approx([0, 600], abs=25)


def test_an_unfinished_transition_lasts_to_the_last_step() -> None:
    steps, values = two_steps(400)
    before = steps <= 705
    stages = detect_stages(steps[before], values[before])
    assert len(stages.transitions) == 2
    assert stages[-1].kind == "transition"
    assert stages[-1].end == steps[before][-1]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
    sign=st.sampled_from([-1.0, 1.0]),
    stretch=st.floats(1e-2, 1e2),
)
def test_affine_maps_of_values_and_steps_change_nothing_else(
    seed: int, scale: float, shift: float, sign: float, stretch: float
) -> None:
    steps, values = two_steps(noise=0.03, seed=seed)
    one = detect_stages(steps, values)
    two = detect_stages(stretch * steps, sign * scale * values + shift)
    assert [stage.kind for stage in one] == [stage.kind for stage in two]
    for a, b in zip(one, two, strict=True):
        assert (b.start, b.end, b.at) == pytest.approx((stretch * a.start, stretch * a.end, stretch * a.at), rel=1e-3)
        assert b.drop == pytest.approx(sign * scale * a.drop, rel=1e-3)
        assert b.level == pytest.approx(sign * scale * a.level + shift, rel=1e-3, abs=1e-3 * scale)
        assert b.sharpness == pytest.approx(a.sharpness, abs=1e-3)


def test_parameters_set_the_least_drop() -> None:
    steps, values = two_steps()
    assert len(detect_stages(steps, values, min_drop=0.5).transitions) == 1
    assert len(detect_stages(steps, values, significance=1e4).transitions) == 0


def test_auto_takes_the_log_axis_for_log_spaced_steps() -> None:
    assert detect_stages(np.geomspace(1, 1e5, 50), np.arange(50.0)).axis == "log"
    assert detect_stages(np.r_[0, np.geomspace(1, 1e5, 50)], np.arange(51.0)).axis == "log"
    assert detect_stages(np.linspace(0, 1e5, 50), np.arange(50.0)).axis == "linear"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 100])
def test_a_constant_series_is_one_plateau(count: int) -> None:
    (stage,) = detect_stages(range(count), [2.5] * count)
    assert (stage.kind, stage.level, stage.start, stage.end) == ("plateau", 2.5, 0, count - 1)


@pytest.mark.parametrize("values", [[1, 0], [1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1, 0]])
def test_a_handful_of_points_is_no_error(values: list[float]) -> None:
    stages = detect_stages(range(len(values)), values)
    assert (stages[0].start, stages[-1].end) == (0, len(values) - 1)


@pytest.mark.parametrize(
    ("steps", "values", "message"),
    [
        ([1, 2, 3], [1, 2], "same length"),
        ([1], [1], "at least two"),
        ([], [], "at least two"),
        ([1, 2, 3], [1, float("nan"), 2], "step 2 is nan"),
        ([1, 2, 3], [1, 2, float("inf")], "step 3 is inf"),
        ([1, 3, 2], [1, 2, 3], "step 2 comes after step 3"),
        ([1, 2, 2], [1, 2, 3], "step 2 comes after step 2"),
        ([[1, 2]], [[1, 2]], "same length"),
        ([1, 2], ["a", "b"], "values must be a list of real numbers"),
        ([1j, 2], [1, 2], "steps must be a list of real numbers"),
        ([1, 2], [[1], [2, 3]], "values must be a list of real numbers"),
    ],
)
def test_bad_input_is_a_usage_error_of_one_line(steps: list[float], values: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        detect_stages(steps, values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["min_drop", "significance"])
@pytest.mark.parametrize("least", [-0.1, float("nan")])
def test_a_negative_least_drop_is_a_usage_error(name: str, least: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {least:g}; it must be 0 or more"):
        detect_stages(*two_steps(), **{name: least})


def test_a_bad_axis_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'auto', 'linear' or 'log'"):
        detect_stages([1, 2, 3], [1, 2, 3], axis="sqrt")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="0 or more"):
        detect_stages([-1, 2, 3], [1, 2, 3], axis="log")


def test_stages_are_json_and_carry_names() -> None:
    stages = detect_stages(*two_steps()).named(["bigram", "induction"])
    dicts = json.loads(json.dumps(stages.to_dicts(), allow_nan=False))
    plain = {"kind", "start", "end", "level", "drop", "name", "at", "sharpness"}
    assert set(dicts[0]) == plain | {"strength", "at_low", "at_high", "drop_low", "drop_high"}
    assert [d["name"] for d in dicts] == ["", "bigram", "", "induction", ""]
    assert "induction" in repr(stages)
    assert len(repr(stages).splitlines()) == 6
    with pytest.raises(UsageError, match="1 names were given for 2 transitions"):
        stages.named(["bigram"])


def test_a_group_gives_the_median_and_spread_of_each_transition() -> None:
    steps = np.linspace(0, 1000, 200)
    late = np.array([500.0, 600, 700, 650, 550])
    series = [1 / (1 + np.exp((steps - 200) / 5)) + 2 / (1 + np.exp((steps - at) / 5)) for at in late]
    first, second = detect_group(steps, series).transitions
    assert (first.at, first.high - first.low) == pytest.approx((200, 0), abs=5)
    assert (second.at, second.low, second.high) == pytest.approx((600, *np.percentile(late, [16, 84])), abs=5)
    assert (first.count, second.count) == (5, 5)
    assert (first.drop, second.drop) == pytest.approx((1, 2), rel=0.05)


def test_a_series_that_lacks_a_transition_is_matched_by_its_levels() -> None:
    steps, values = two_steps()
    late = np.where(steps < 650, values[0], 0.5)  # both drops at once: neither of the two
    only_second = np.where(steps < 400, 2.0, 0.5)
    group = detect_group(steps, [values, two_steps(seed=1)[1], only_second, late])
    assert [t.count for t in group.transitions] == [2, 3]
    assert group.transitions[1].times[2] == pytest.approx(400, abs=10)
    assert group.transitions[0].times[2:] == (None, None)
    json.dumps(group.to_dicts())


def test_a_group_without_series_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="at least one"):
        detect_group([1, 2, 3], [])


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        ([3.0, 2.0, 0.5], ["a", "b"]),
        ([3.0, 2.5, 2.0, 1.2, 0.5], ["a, b", "c, d"]),  # two levels at a time, as where one drop learns two things
        ([3.0, 2.0, 0.5, 0.1], ["a", "b"]),  # on its way
        ([3.0, 0.5], ["", "a"]),  # a plateau that theory does not know
    ],
)
def test_transitions_are_named_by_the_levels_that_they_lead_to(levels: list[float], names: list[str]) -> None:
    stages = detect_stages(*two_steps()).named_by_level("abcd"[: len(levels) - 1], levels)
    assert [transition.name for transition in stages.transitions] == names
