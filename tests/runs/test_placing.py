"""A second run of the same name gets another name, or replaces the first run, which is removed only at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

import stagelens as sl
from kit.tasks import Crash, CrashAt, Decay, Regression, host_with, run
from stagelens.base.errors import UsageError
from stagelens.runs import LOCK, catalogue

NAME = "small-regression-quick-seed0"


def names(folder):
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_a_second_run_prints_its_name_before_it_starts(tmp_path) -> None:
    told: list[str] = []
    run(Regression, tmp_path, notify=told.append)
    assert told == []
    second = run(Regression, tmp_path, notify=lambda text: told.append((text, names(tmp_path))))
    ((text, there),) = told
    assert text.startswith(f"run {NAME!r} exists in {tmp_path}; this one is named '{NAME}-2' (--replace")
    assert second.name == f"{NAME}-2" and there == {NAME}


@pytest.mark.parametrize("kind", [Regression, Decay])
@pytest.mark.parametrize("name", [None, "mine"])
def test_replacing_leaves_only_the_new_run(tmp_path, kind, name) -> None:
    told: list[str] = []
    first = run(kind, tmp_path, name=name)
    (first.folder / "timeline.csv").write_text("of the first")
    second = run(kind, tmp_path, name=name, replace=True, notify=told.append)
    assert second.folder == first.folder and second.status == "finished"
    assert names(tmp_path) == {first.name} and not (second.folder / "timeline.csv").exists()
    kept = f"it is renamed to '{first.name}-replaced', and removed when this command finishes the new run"
    assert told == [f"run {first.name!r} is replaced; {kept}"]
    assert run(kind, tmp_path, name="new", replace=True).name == "new"  # there is nothing to replace


def test_a_run_that_does_not_finish_keeps_the_one_that_it_replaces(tmp_path) -> None:
    first = run(Regression, tmp_path, settings={"lr": 0.01})
    values = first.timeline.series("loss").tobytes()
    for number in ("", "-2"):
        with pytest.raises(Crash):
            run(Regression, tmp_path, host_with(CrashAt(20)), replace=True)
        assert (tmp_path / f"{NAME}-replaced{number}").exists()
    kept = sl.load(f"{NAME}-replaced", tmp_path)
    assert kept.status == "finished" and kept.timeline.series("loss").tobytes() == values
    assert sl.load(f"{NAME}-replaced-2", tmp_path).status == sl.load(NAME, tmp_path).status == "failed"
    assert len(catalogue(tmp_path)) == 3
    assert run(Regression, tmp_path, name=NAME, resume=True).status == "finished"
    assert len(catalogue(tmp_path)) == 3  # what a later command finishes removes nothing


def test_a_run_that_cannot_even_start_puts_the_old_one_back(tmp_path, monkeypatch) -> None:
    from stagelens.base.errors import EnvironmentFault
    from stagelens.runs.manifest import Manifest

    first = run(Regression, tmp_path)

    def full(manifest, folder):
        raise EnvironmentFault("the disk is full")

    monkeypatch.setattr(Manifest, "save", full)
    with pytest.raises(EnvironmentFault):
        run(Regression, tmp_path, replace=True)
    assert names(tmp_path) == {first.name} and sl.load(first.folder).status == "finished"


def test_a_run_that_is_being_written_is_not_replaced(tmp_path) -> None:
    first = run(Regression, tmp_path)
    with FileLock(first.folder / LOCK), pytest.raises(UsageError, match="is being written by process"):
        run(Regression, tmp_path, replace=True)
    assert names(tmp_path) == {first.name} and sl.load(first.folder).status == "finished"


def test_a_mistake_replaces_nothing(tmp_path) -> None:
    first = run(Regression, tmp_path)
    for wrong in ({"settings": {"lr": -1}}, {"resume": True}, {"probes": ["no"]}):
        with pytest.raises(UsageError):
            run(Regression, tmp_path, replace=True, **wrong)
    assert names(tmp_path) == {first.name} and sl.load(first.folder).manifest.created == first.manifest.created


def test_the_seeds_of_an_ensemble_are_replaced(tmp_path) -> None:
    options = {"seeds": 2, "runs": tmp_path, "device": "cpu", "report": False}
    first = sl.run_ensemble(Regression, **options)
    second = sl.run_ensemble(Regression, **options, replace=True, settings={"lr": 0.01})
    assert not first.alone and [one.folder for one in second] == [one.folder for one in first]
    assert names(tmp_path) == {one.name for one in first} and second[1].manifest.settings == {"lr": 0.01}


def test_the_command_line_prints_the_name_in_its_first_line(cli, tmp_path) -> None:
    words = ["--plugin-dir", Path(__file__).parents[1] / "kit" / "sweep_plugin.py", "run", "power/law", "--json"]
    first, second, third = cli(*words), cli(*words), cli(*words, "--replace")
    assert first.err == ""
    name = first.json["name"]
    assert second.err.splitlines()[0].startswith(f"note: run {name!r} exists in runs; this one is named '{name}-2'")
    assert second.json["name"] == f"{name}-2"
    assert third.err.splitlines()[0].startswith(f"note: run {name!r} is replaced") and third.json["name"] == name
    assert names(tmp_path / "runs") == {name, f"{name}-2"}
    assert "give one of them" in cli(*words, "--replace", "--resume").complaint


def test_runs_of_unfinished_replacements_are_removed_by_the_one_that_finishes(tmp_path) -> None:
    told: list[str] = []
    run(Regression, tmp_path)
    for _ in range(2):
        with pytest.raises(Crash):
            run(Regression, tmp_path, host_with(CrashAt(20)), replace=True)
    run(Regression, tmp_path, name=f"{NAME}-replaced-3")  # the user's own file
    assert names(tmp_path) == {NAME, *(f"{NAME}-replaced{number}" for number in ("", "-2", "-3"))}
    run(Regression, tmp_path, replace=True, notify=told.append)
    assert names(tmp_path) == {NAME, f"{NAME}-replaced-3"} and not (tmp_path / NAME / ".replaced").exists()
    ((first, second),) = [text.split(", and so is ") for text in told]
    assert f"'{NAME}-replaced-4'" in first
    assert second == f"'{NAME}-replaced' and '{NAME}-replaced-2' of an earlier replacement"


def test_a_replaced_run_that_was_taken_up_again_is_not_removed(tmp_path) -> None:
    run(Regression, tmp_path)
    with pytest.raises(Crash):
        run(Regression, tmp_path, host_with(CrashAt(20)), replace=True)
    with pytest.raises(Crash):
        run(Regression, tmp_path, host_with(CrashAt(20)), replace=True)
    run(Regression, tmp_path, name=f"{NAME}-replaced-2", resume=True)
    run(Regression, tmp_path, replace=True)
    assert names(tmp_path) == {NAME, f"{NAME}-replaced-2"}


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_link_to_a_run_is_not_replaced(tmp_path, seeds) -> None:
    first = run(Regression, tmp_path, name="first-seed0")
    (tmp_path / "link-seed0").symlink_to("first-seed0")
    with pytest.raises(UsageError, match=r"link-seed0 is a link to .*first-seed0; give the name of that run") as told:
        sl.run_ensemble(Regression, seeds=seeds, runs=tmp_path, name="link", device="cpu", replace=True)
    assert "\n" not in str(told.value) and (tmp_path / "link-seed0").is_symlink()
    assert sl.load(first.folder).status == "finished" and names(tmp_path) - {"link-seed1"} == {first.name, "link-seed0"}


def test_a_run_is_never_removed_through_a_link(tmp_path) -> None:
    from stagelens.runs.placing import _remove

    first = run(Regression, tmp_path)
    (tmp_path / "link").symlink_to(first.folder)
    _remove(tmp_path / "link")
    assert sl.load(first.folder).status == "finished" and (tmp_path / "link").is_symlink()


class Late(Regression):
    """Theory expects something after the end."""

    id = "small/late"

    def predictions(self):
        return [sl.Prediction("late", "time", 1e6, "Eq. 1")]


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("replace", [True, False])
def test_notes_about_names_come_before_the_warnings_of_theory(tmp_path, seeds, replace) -> None:
    told: list[str] = []
    options = {"seeds": seeds, "runs": tmp_path, "device": "cpu", "report": False}
    sl.run_ensemble(Late, **options)
    sl.run_ensemble(Late, **options, replace=replace, notify=told.append)
    assert [text.startswith("theory expects") for text in told] == [False] * seeds + [True]
    assert all(text.startswith("run 'small-late-quick-seed") for text in told[:-1])
