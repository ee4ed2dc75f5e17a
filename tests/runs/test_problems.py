"""A plugin that raises after the training loses one figure or prediction; summary and report are still written."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagelens as sl
from stagelens.base.problems import noting
from stagelens.host.host import make_host

PLUGIN = Path(__file__).parents[1] / "kit" / "fallible_plugin.py"
LINES = PLUGIN.read_text().splitlines()
AT_ONCE = [
    ["stage_names()", "prediction 'measured'", "prediction 'curve'", "figures()", "stagelens_run_finished"],
    ["predictions()", "figures() ends the process"],
]


def place_of(fails: str) -> str:
    """file:line at which the plugin raises."""
    number = next(n for n, line in enumerate(LINES, start=1) if line.endswith(f"# in {fails}"))
    return f"{PLUGIN}:{number}"


def settings(fails: str) -> list[str]:
    return ["--set", f"fails={fails}", "--device", "cpu"]


@pytest.fixture
def fallible(cli):
    return lambda *words: cli("--plugin-dir", PLUGIN, *words)


@pytest.mark.parametrize("fails", AT_ONCE)
def test_a_run_whose_plugin_raises_is_finished_and_names_the_lines(fallible, tmp_path, fails) -> None:
    answer = fallible("run", "fallible", *settings(",".join(fails)), "--json")
    found = answer.json
    assert answer.code == 1 and found["status"] == "finished" and found["step"] == 6
    assert found["problems"].keys() == {one.removesuffix(" ends the process") for one in fails}
    report = (tmp_path / found["run"] / "report.html").read_text()
    for one in fails:
        problem = found["problems"][one.removesuffix(" ends the process")]
        assert problem.endswith(f"({place_of(one)})") and f"error: {problem}\n" in answer.err
        assert (place_of(one) in report) is (one != "stagelens_run_finished")  # which is called after the report
    figures = {path.name for path in (tmp_path / found["run"] / "figures").glob("*.png")}
    assert figures == {f"{name}.png" for name in ("overview", "loss", "probes", "attention", "stages", "trajectory")}
    named = [prediction["name"] for prediction in found["predictions"]]
    assert named == ([] if "predictions()" in fails else ["level"])


def test_a_figure_that_cannot_be_written_is_left_out_and_its_function_is_named(fallible, tmp_path) -> None:
    answer = fallible("run", "fallible", *settings("figure 'own'"), "--json")
    line = 1 + next(n for n, line in enumerate(LINES) if "def figures" in line)
    assert answer.code == 1 and answer.json["problems"].keys() == {"figure 'own'"}
    assert "figure 'own' of fallible/one failed: ValueError" in answer.err and f"({PLUGIN}:{line})" in answer.err
    folder = tmp_path / answer.json["run"]
    assert {"other.png", "loss.png"} <= {path.name for path in (folder / "figures").iterdir()}
    assert (folder / "report.html").exists()


def test_problems_come_first_in_the_summary_and_in_the_report(fallible, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FALLIBLE_PROBE", "1")
    ran = fallible("run", "fallible", *settings("figures()"))
    assert ran.code == 1
    first, second, third = ran.out.splitlines()[:3]
    assert first.startswith("problem: probe 'fallible' at hook 'hook_embed' failed: LookupError: no embedding")
    line = 1 + next(n for n, line in enumerate(LINES) if 'LookupError("no embedding")' in line)
    assert first.endswith(f"({PLUGIN}:{line})")
    assert second.startswith("problem: figures() of fallible/one failed") and third.startswith("fallible-one-quick")
    shown = fallible("show", "fallible-one-quick-seed0")
    assert shown.code == 0 and shown.out.splitlines()[:3] == [first, second, third]
    page = (tmp_path / "runs" / "fallible-one-quick-seed0" / "report.html").read_text()
    assert page.index("no embedding") < page.index("<h2>")


def test_report_and_compare_and_seeds(fallible, tmp_path) -> None:
    """Each command calls only the callbacks that it needs."""
    together = fallible("run", "fallible", *settings("predictions()"), "--seeds", 2)
    assert together.code == 1 and together.out.startswith("problem: predictions() of fallible/one failed")
    assert together.out.strip().endswith("fallible-one-quick-seeds.html")
    assert together.err.count(place_of("predictions()")) == 1
    written = fallible("report", "fallible-one-quick-seed0", "--json")
    assert written.code == 1 and Path(written.json["file"]).exists()
    assert place_of("predictions()") in written.json["problems"][0] and place_of("predictions()") in written.err
    both = ["fallible-one-quick-seed0", "fallible-one-quick-seed1"]
    assert fallible("report", *both).code == fallible("compare", *both).code == 0  # which ask no plugin


def test_a_sweep_reports_the_problems_of_its_points_and_writes_its_table(fallible) -> None:
    words = ["--set", "fails=predictions(),fit", "--workers", 1, "--device", "cpu", "--fit", "size"]
    answer = fallible("sweep", "fallible", "--grid", "size=1,2,3", *words)
    assert answer.code == 1 and "3 points, 3 done, 0 failed" in answer.out
    assert answer.out.startswith("problem: ") and place_of("fit") in answer.out.splitlines()[0]
    assert f"({place_of('predictions()')}) (3 points)" in answer.out.splitlines()[1]
    assert f"no power-law fit: fit of fallible/one failed: LookupError: no features ({place_of('fit')})" in answer.err
    again = fallible("sweep", "fallible", "--grid", "size=1,2,3", *words[:-2], "--json")  # the points are there
    ((problem, runs),) = again.json["problems"].items()
    assert again.code == 1 and len(runs) == 3 and f"error: {problem}\n" == again.err


def test_python_finds_the_problems_in_the_run(tmp_path, imports) -> None:
    host = make_host([PLUGIN])
    done = sl.run("fallible", settings={"fails": "figures()"}, runs=tmp_path, host=host, device="cpu")
    assert done.status == "finished" and list(done.problems) == ["figures()"]


def test_an_error_of_the_environment_is_not_blamed_on_the_plugin() -> None:
    from stagelens.base.errors import EnvironmentFault

    problems: dict[str, str] = {}
    with pytest.raises(EnvironmentFault), noting(problems, "figures()"):
        raise EnvironmentFault("the disk is full")
    assert problems == {}
