"""What formed when: known curves give known sentences, and curves without a rise give no formation."""

from __future__ import annotations

import numpy as np
import pytest

from kit.written_runs import STEPS, staircase, timeline
from stagelens.timelines import HEADLINES, head_lines, what_formed
from stagelens.timelines.formed import change_of, short
from stagelens.timelines.headlines import SPECIALIZATION, companion

HEADS = ("layer", "head")
GROUPS = ("I(1)", "I(2)", "rest")


def rises(*ends: tuple[float, float, float]) -> np.ndarray:
    """[step, 1, head]: each head goes from its first value to its last around its step."""
    return np.stack([staircase(STEPS, (at,), (low, high)) for low, high, at in ends], 1)[:, None]


def sentences(series, **options):
    return {one.probe: (one.step, one.what) for one in what_formed(timeline(STEPS, series), **options)}


def specialized(*heads: tuple[int, float]):
    """Series of heads whose mass goes from a third of each group to all of one around a step: (group, step)."""
    masses = [np.full((len(STEPS), 3), 1 / 3) for _ in heads]
    for mass, (group, at) in zip(masses, heads, strict=True):
        part = staircase(STEPS, (at,), (0.0, 1.0))[:, None]
        mass[:] = (1 - part) * mass + part * np.eye(3)[group]
    mass = np.stack(masses, 1)[:, None]
    return {
        "head_specialization/mass": (mass, (*HEADS, "group"), {"group": GROUPS}),
        "head_specialization/leader": (mass.argmax(-1), HEADS, GROUPS),
    }


def test_the_first_head_to_become_sparse_is_named_with_its_step_and_the_number_of_the_others():
    found = sentences(
        {"attention_sparsity/sparsity": (rises((0.05, 0.97, 60), (0.0, 0.9, 400), (0.1, 0.12, 9)), HEADS)}
    )
    step, what = found["attention_sparsity"]
    assert step == pytest.approx(60, abs=1)
    assert what == "step 60: head 0 becomes sparse (sparsity .05 → .97); 2 of 3 heads by step 400"


def test_a_head_that_becomes_sparse_locks_onto_the_group_that_it_then_leads():
    series = specialized((0, 60), (1, 400))
    series["attention_sparsity/sparsity"] = (rises((0.05, 0.97, 60), (0.0, 0.9, 400)), HEADS)
    found = sentences(series)
    assert found["attention_sparsity"][1].startswith("step 60: head 0 locks onto I(1) (sparsity .05 → .97)")
    step, what = found["head_specialization"]
    assert step == pytest.approx(400, abs=3)
    assert what == "step 400: 2 of 2 heads have specialized: head 0 on I(1), head 1 on I(2)"


def test_heads_that_take_one_group_or_the_rest():
    assert sentences(specialized((0, 60), (0, 300)))["head_specialization"][1] == (
        "step 300: 2 of 2 heads have specialized on I(1)"
    )
    assert sentences(specialized((1, 60), (2, 300)))["head_specialization"][1] == (
        "step 60: head 0 specializes on I(2) (mass .33 → 1.00)"
    )
    assert sentences(specialized((2, 60), (2, 300)))["head_specialization"] == (
        None,
        "no head specializes (mass at most .00 on one group at the end)",
    )


def test_induction_counts_only_above_its_chance_level_by_three_errors():
    def found(error: float):
        return sentences(
            {
                "induction/prefix_matching": (rises((0.05, 0.6, 310)), HEADS),
                "induction/prefix_matching_error": (np.full((len(STEPS), 1, 1), error), HEADS),
                "induction/prefix_matching_chance": (np.full((len(STEPS), 1), 0.05), ("layer",)),
            }
        )["induction"]

    step, what = found(0.1)
    assert step == pytest.approx(310, abs=1)
    assert what == "step 310: head 0 becomes an induction head (prefix matching .05 → .60, chance .05)"
    assert found(0.2) == (
        None,
        "no head becomes an induction head (prefix matching at most .60 at the end, chance .05)",
    )


def test_alignment_reads_the_steady_reading_and_older_runs_the_other():
    values = (rises((0.2, 0.9, 100)), HEADS)
    both = sentences({"qk_alignment/score_top": values, "qk_alignment/key_query": (rises((0.1, 0.1, 5)), HEADS)})
    assert both["qk_alignment"][1] == (
        "step 100: keys and queries of head 0 align (first component of the scores .20 → .90)"
    )
    assert "(alignment .20 → .90)" in sentences({"qk_alignment/key_query": values})["qk_alignment"][1]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_in_which_nothing_forms_is_reported(seed):
    noise = 0.1 + 0.02 * np.random.default_rng(seed).normal(size=(len(STEPS), 2, 3))
    series = {f"{one.probe}/{one.readings[0]}": (noise, HEADS) for one in HEADLINES if one is not SPECIALIZATION}
    found = what_formed(timeline(STEPS, series))
    assert len(found) == 3 and all(one.step is None for one in found)
    assert [one.what.partition(" (")[0] for one in found] == [
        "no head becomes sparse",
        "no head becomes an induction head",
        "keys and queries of no head align",
    ]


def test_what_is_there_from_the_start_did_not_form():
    found = sentences({"attention_sparsity/sparsity": (rises((0.9, 0.95, 60)), HEADS)})
    assert found["attention_sparsity"] == (None, "head 0 is sparse from the start (sparsity .90 → .95)")


def test_what_forms_and_is_lost_is_said_to_be_lost():
    there_and_back = staircase(STEPS, (200, 700), (0.05, 0.8, 0.1))[:, None, None]
    step, what = sentences({"induction/prefix_matching": (there_and_back, HEADS)})["induction"]
    assert step is None and what.startswith(
        "no head becomes an induction head (prefix matching at most .10 at the end)"
    )
    assert "head 0 reaches .80 at step" in what and what.endswith("and loses it")


def test_the_earliest_formation_comes_first_and_times_of_flows_have_digits():
    series = {
        "attention_sparsity/sparsity": (rises((0.0, 0.9, 600)), HEADS),
        "qk_alignment/score_top": (rises((0.0, 0.9, 100)), HEADS),
        "induction/prefix_matching": (rises((0.1, 0.1, 100)), HEADS),
    }
    found = what_formed(timeline(STEPS, series))
    assert [one.probe for one in found] == ["qk_alignment", "attention_sparsity", "induction"]
    assert found[0].to_dict() == {"probe": "qk_alignment", "step": found[0].step, "what": found[0].what}
    short_steps = timeline(STEPS / 1000, {"attention_sparsity/sparsity": series["attention_sparsity/sparsity"]})
    assert what_formed(short_steps, "time")[0].what.startswith("time 0.6: head 0")


def test_a_timeline_without_the_four_probes_has_no_formations():
    assert what_formed(timeline(STEPS, {"loss": STEPS * 1.0, "other/reading": STEPS * 1.0})) == []
    assert what_formed(timeline([], {})) == []


def test_heads_that_do_not_exist_are_not_counted():
    values = np.broadcast_to(rises((0.0, 0.9, 60), (0.0, 0.9, 80)), (len(STEPS), 2, 2)).copy()
    values[:, 1, 1] = np.nan
    (found,) = what_formed(timeline(STEPS, {"attention_sparsity/sparsity": (values, HEADS)}))
    assert found.what.startswith("step 60: layer 0 head 0") and "3 of 3 heads by step 80" in found.what


def test_the_headline_of_specialization_is_the_mass_on_the_leader():
    series = specialized((0, 60), (1, 400), (2, 100))
    lines = head_lines(timeline(STEPS, series), SPECIALIZATION)
    mass = series["head_specialization/mass"][0][:, 0]
    named = mass[:, :, :2].max(-1)  # of head 2, whose leader is the rest, the largest named group
    assert lines.labels == ["head 0", "head 1", "head 2"] and lines.values == pytest.approx(named)


def test_heads_of_a_layer_that_no_group_names_have_no_line():
    dims = ("layer", "head", "group")
    mass, chance = np.full((len(STEPS), 2, 2, 2), 0.4), np.full((len(STEPS), 2, 2), 0.3)
    mass[:, 1], chance[:, 1] = [0.0, 1.0], [0.0, 1.0]  # all on the rest
    coords = {"group": ("near", "rest")}
    series = {"head_specialization/mass": (mass, dims, coords)}
    series["head_specialization/mass_chance"] = (chance, ("layer", "group"), coords)
    lines = head_lines(timeline(STEPS, series), SPECIALIZATION)
    assert lines.labels == ["layer 0 head 0", "layer 0 head 1"]
    assert len(lines.names) == 4 and lines.chance.shape == lines.values.shape == (len(STEPS), 2)


def test_a_companion_without_a_dim_is_the_same_along_it():
    chance = np.array([[0.1, 0.3]] * len(STEPS))
    made = timeline(STEPS, {"p/s": (np.zeros((len(STEPS), 2, 3)), HEADS), "p/s_chance": (chance, ("layer",))})
    assert companion(made, "p/s", "_chance")[7] == pytest.approx(np.array([[0.1] * 3, [0.3] * 3]))
    assert companion(made, "p/s", "_error") is None


def test_a_change_of_few_measurements_has_no_step():
    assert change_of(np.arange(3), np.array([0.0, 0.5, 1.0])).step is None
    assert np.isnan(change_of(np.arange(3), np.full(3, np.nan)).last)


@pytest.mark.parametrize(
    ("value", "text"), [(0.966, ".97"), (1.0, "1.00"), (-0.05, "-.05"), (0.999, "1.00"), (0, ".00")]
)
def test_short_numbers(value, text):
    assert short(value) == text
