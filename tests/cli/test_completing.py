"""Tab completion, as a shell asks for it: of tasks, presets, runs, probes, config keys and series."""

from __future__ import annotations

import shlex

import pytest

from kit.written_runs import STEPS, staircase, write_run


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


def test_a_mistake_completes_nothing(complete):
    assert complete("stagelens run no-such-task --set st") == []
    assert complete("stagelens stages no-such-run --metric lo") == []
