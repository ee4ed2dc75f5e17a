"""`stagelens runs` lists the runs, and chooses and sorts them."""

from __future__ import annotations

import pytest

from kit.written_runs import write_run


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for name, seed, lr, status in [("a", 2, 0.1, "finished"), ("b", 10, 0.01, "failed"), ("c", 3, 0.1, "finished")]:
        write_run(folder, name, {"loss": [1.0]}, [0], seed=seed, config={"lr": lr}, status=status)
    return folder


def names(answer):
    return "".join(row["name"] for row in answer.json)


def test_runs_are_chosen_by_keys_and_config_keys_and_sorted(cli, runs):
    assert names(cli("runs", "--where", "status=finished and lr>0.05", "--sort", "-seed", "--json")) == "ca"
    assert names(cli("runs", "--sort", "seed", "--json")) == "acb"
    (row,) = cli("runs", "--where", "lr<0.05", "--json").json
    assert "lr" not in row and row.keys() == cli("runs", "--json").json[0].keys()
    lines = cli("runs", "--where", "seed>=3", "--sort", "name").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["b", "c"]


def test_what_no_run_meets_is_said(cli, runs):
    assert "none of the 3 runs in runs meets --where 'seed=99'" in cli("runs", "--where", "seed=99").out
    assert cli("runs", "--where", "seed=99", "--json").json == []


def test_a_wrong_key_or_expression_is_one_line(cli, runs):
    for words, said in [
        (["--where", "sed=1"], "did you mean 'seed'?"),
        (["--sort", "sed"], "did you mean 'seed'?"),
        (["--where", "seed"], "expected KEY=VALUE"),
    ]:
        answer = cli("runs", *words)
        assert answer.code == 2 and said in answer.complaint


def test_a_file_is_no_directory_of_runs(cli, runs):
    (runs.parent / "notes.txt").write_text("not a run")
    answer = cli("runs", "--runs", "notes.txt")
    assert answer.code == 2 and answer.complaint.startswith("notes.txt is a file; expected a directory of runs")
    assert "no runs in empty" in cli("runs", "--runs", "empty").out  # a directory that is not there yet has none
