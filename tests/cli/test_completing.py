"""Tab completion, as a shell asks for it: of tasks, presets, runs, probes, config keys and series."""

from __future__ import annotations

import shlex

import pytest

from kit.written_runs import STEPS, staircase, write_run
from stagelens.claims import BUDGETS
from stagelens.comparing import ALIGNMENTS
from stagelens.sweeps.executors import EXECUTORS
from stagelens.sweeps.executors.on_ray import RESULTS
from stagelens.timelines.exporting import ENDINGS


@pytest.fixture
def complete(cli, monkeypatch):
    """Returns a function from what was typed to the words that a shell offers. The last word is incomplete."""

    def completed(typed: str) -> list[str]:
        words = shlex.split(typed) + ([""] if typed.endswith(" ") else [])
        monkeypatch.setenv("_STAGELENS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        answer = cli()
        assert answer.code == 0 and answer.err == ""
        return answer.out.split()

    return completed


def test_tasks_by_id_and_by_plugin(complete):
    assert complete("stagelens run mark") == ["markov", "markov/minimal", "markov/full", "markov/flow"]
    assert complete("stagelens tasks rich/h") == ["rich/high-dim"]


def test_presets_of_the_task(complete):
    assert complete("stagelens run recall/flow --preset q") == ["quick"]


def test_probes_also_after_a_comma_and_a_plus(complete):
    assert complete("stagelens probes head_") == ["head_specialization", "head_ablation"]
    assert complete("stagelens run markov --probes +gra") == ["+gradient"]
    assert complete("stagelens run markov --probes induction,qk") == ["induction,qk_alignment"]


def test_runs_and_their_series(complete, tmp_path):
    write_run(tmp_path / "runs", "stairs", {"loss": staircase(STEPS, [100], [2, 1])})
    assert complete("stagelens show st") == ["stairs"]
    assert complete("stagelens compare stairs st") == ["stairs"]
    assert complete("stagelens stages stairs --metric lo") == ["loss"]
    assert complete("stagelens stages stairs --runs nowhere --metric lo") == []


def test_readings_before_there_is_a_run(complete):
    assert complete("stagelens sweep markov --measure attention_sparsity/top") == [
        "attention_sparsity/top_mass",
        "attention_sparsity/top_mass_error",
    ]
    assert "plateau_length" in complete("stagelens sweep markov --measure plat")


def test_config_keys_of_the_task(complete):
    assert complete("stagelens run recall/flow --set resp") == ["responses="]
    assert complete("stagelens sweep recall/flow --grid ord") == ["order="]


def test_the_series_and_events_of_a_flow(complete):
    assert complete("stagelens sweep recall/flow --measure bet") == ["beta"]
    assert complete("stagelens sweep recall/flow --measure 'beta['") == [f"beta[head={head}]" for head in range(3)]
    assert complete("stagelens sweep recall/flow --measure attention_sparsity/eff") == [
        "attention_sparsity/effective_keys"
    ]
    assert complete("stagelens sweep recall/flow --measure event:") == ["event:escape"]
    assert complete("stagelens sweep recall/flow --measure plateau_length:conserved/p") == [
        "plateau_length:conserved/proof"
    ]
    assert "beta" not in complete("stagelens sweep markov --measure be")


def test_plugins_claims_and_figures(complete):
    papers = ["emergence", "linear-icl", "markov", "recall", "rich"]
    assert sorted(complete("stagelens verify ")) == sorted(complete("stagelens figure ")) == papers
    assert complete("stagelens figure recall fig") == ["fig2", "fig3", "fig4"]
    assert complete("stagelens verify recall --claim R1") == ["R1"]
    assert {"M1", "R1", "S1"} <= set(complete("stagelens verify --claim "))


def test_fixed_choices_are_those_that_the_commands_take(complete):
    assert complete("stagelens compare a b --align ") == [*ALIGNMENTS]
    assert complete("stagelens export a --format ") == [*ENDINGS]
    assert complete("stagelens verify --budget ") == complete("stagelens figure --budget ") == [*BUDGETS]
    assert complete("stagelens sweep markov --executor ") == [*EXECUTORS]
    assert complete("stagelens sweep markov --results ") == [*RESULTS]
    assert complete("stagelens stages a --axis lo") == ["log"]
    assert complete("stagelens run markov --device c") == ["cpu", "cuda"]


def test_keys_to_fit(complete):
    assert complete("stagelens sweep recall/flow --fit order,resp") == ["order,responses"]


def test_probes_of_checkpoints(complete):
    assert complete("stagelens probe checkpoints --probes induc") == ["induction"]


def test_a_mistake_completes_nothing(complete):
    assert complete("stagelens run no-such-task --set st") == []
    assert complete("stagelens stages no-such-run --metric lo") == []
