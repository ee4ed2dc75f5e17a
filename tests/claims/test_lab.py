"""The lab trains a run once, reuses it while nothing has changed, and resumes interrupted runs."""

from __future__ import annotations

import pytest

from kit.tasks import Decay, Regression
from stagelens.base.errors import StagelensError, UsageError
from stagelens.claims import lab as lab_module
from stagelens.claims.lab import Lab, cache_folder, digest_of
from stagelens.host.host import make_host


@pytest.fixture
def lab(tmp_path):
    host = make_host()
    host.load_class(Regression)
    host.load_class(Decay)
    return Lab(host, tmp_path)


def again(lab, **changes):
    """Returns a lab as in a new process: with the same cache, but with nothing in memory."""
    return Lab(lab.host, lab.cache, **changes)


def folders(lab):
    return sorted(path.name for path in (lab.cache / "runs").iterdir() if not path.name.startswith("."))


def test_a_run_is_trained_once(lab):
    first = lab.run("small/regression", {"steps": 5})
    assert first.status == "finished" and first.timeline.steps[-1] == 5
    assert lab.run("small/regression", {"steps": 5}) is first
    kept = again(lab).run(Regression, {"steps": 5})
    assert (kept.folder, kept.manifest) == (first.folder, first.manifest)  # not a second of training was added
    assert len(folders(lab)) == 1


def test_the_same_config_is_the_same_run_in_any_notation(lab):
    told = lab.run("small/regression", {"steps": 40, "lr": 0.02})
    assert lab.run("small", {}).folder == told.folder


def test_what_a_run_depends_on_makes_another(lab):
    same = [lab.run("small", {"steps": 5}).folder]
    others = [
        lab.run("small", {"steps": 6}),
        lab.run("small", {"steps": 5}, seed=1),
        lab.run("small", {"steps": 5}, probes=["loss_by_position"]),
        lab.run("small/decay"),
    ]
    assert len({*same, *(run.folder for run in others)}) == 5


def test_each_seed_is_a_run(lab):
    found = lab.with_seeds(2).each_seed("small", {"steps": 5})
    assert {seed: run.manifest.seed for seed, run in found.items()} == {10: 10, 11: 11}
    assert found[10] is lab.run("small", {"steps": 5}, seed=10)


def test_the_budget_names_the_preset(lab):
    assert lab.run("small", {"steps": 5}).manifest.preset == "quick"
    long = again(lab, budget="long").run("small", {"steps": 5})
    assert long.manifest.preset == "long"
    assert lab.run("small", {"steps": 5}, preset="long").folder == long.folder


def test_without_a_preset_of_the_budget_the_next_smaller_one_is_used(lab):
    assert again(lab, budget="long").run("small/decay").manifest.preset == "quick"
    assert again(lab, budget="paper").run("small", {"steps": 5}).manifest.preset == "long"


def test_a_value_of_the_budget_or_of_the_next_smaller_one(lab):
    sizes = {"quick": 1, "long": 2}
    assert [again(lab, budget=budget).of_budget(sizes) for budget in ("quick", "long", "paper")] == [1, 2, 2]
    with pytest.raises(StagelensError, match="no value for budget 'quick' or a smaller one: there are long"):
        lab.of_budget({"long": 2})


def test_an_interrupted_run_continues_where_it_stopped(lab):
    whole = lab.run("small", {"steps": 30}, seed=3)

    def stop(label, step, steps):
        if step > 10:
            raise KeyboardInterrupt

    other = Lab(lab.host, lab.cache / "other", watch=stop)
    with pytest.raises(KeyboardInterrupt):
        other.run("small", {"steps": 30}, seed=3)
    (name,) = folders(other)
    resumed = again(other).run("small", {"steps": 30}, seed=3)
    assert resumed.name == name == whole.name
    assert resumed.timeline.scalar("loss")[1].tolist() == whole.timeline.scalar("loss")[1].tolist()


def test_a_run_that_fails_is_an_error_and_no_result(lab):
    with pytest.raises(StagelensError, match="became nan or infinite"):
        lab.run("small", {"steps": 60, "lr": 1e30})


def test_a_wrong_setting_is_reported_before_anything_is_trained(lab):
    with pytest.raises(UsageError, match="unknown config key 'step'"):
        lab.run("small", {"step": 5})
    assert not (lab.cache / "runs").exists()


def test_changed_source_makes_another_run(lab, tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "cli").mkdir(parents=True)
    (package / "model.py").write_text("a = 1\n")
    (package / "claims.py").write_text("b = 1\n")
    (package / "cli" / "show.py").write_text("c = 1\n")

    def digest():
        digest_of.cache_clear()
        return digest_of(package)

    before = digest()
    (package / "claims.py").write_text("b = 2\n")
    (package / "cli" / "show.py").write_text("c = 2\n")
    assert digest() == before  # they read runs and do not make any
    (package / "model.py").write_text("a = 2\n")
    changed = digest()
    assert changed != before
    (package / "new.py").write_text("")
    assert digest() != changed

    kept = lab.run("small", {"steps": 5})
    monkeypatch.setattr(lab_module, "digest_of", lambda source: "other source")
    trained = again(lab).run("small", {"steps": 5})
    assert trained.folder != kept.folder and trained.manifest.created > kept.manifest.created


def test_what_counts_as_source():
    from stagelens_markov.tasks import Minimal

    assert lab_module.source_of(Minimal).name == "stagelens_markov"
    assert lab_module.source_of(Regression).name == "kit"
    assert lab_module.find_source("stagelens").name == "stagelens"


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("STAGELENS_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "stagelens"
    monkeypatch.setenv("STAGELENS_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
