"""Reports: their content, escaped names, predictions over measurements, and the page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.browsing import Opened, browser  # noqa: F401
from kit.tasks import Repeats, run
from kit.written_runs import STEPS, measurements, staircase, write_run
from stagelens.claims import Result, equal
from stagelens.claims.verifying import store
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.prediction import score
from stagelens.figures import loss_figure
from stagelens.figures.attention import attention_maps, chosen_steps
from stagelens.report.charts import comparison_chart, run_chart
from stagelens.report.pages import report_page, write_comparison, write_report
from stagelens.runs import Run, load
from stagelens.runs.manifest import load_manifest
from stagelens.runs.store import Store
from stagelens.timelines.events import half_rise

HOSTILE = "<script>alert(1)</script>"  # a folder cannot hold the slash; names in manifests and series can
HOSTILE_FOLDER = "<img src=x onerror=alert(1)>&<b>'\""
START, MIDDLE = 0.01, float(np.log(99))  # logistic growth from 0.01: half of it is there at log 99


def logistic(t: Any) -> Any:
    return 1 / (1 + (1 / START - 1) * np.exp(-np.asarray(t)))


class Logistic(sl.Flow):
    """x' = x (1 - x): theory knows the curve, the time of the half and the last level exactly."""

    id = "small/logistic"
    title = "logistic growth"
    metric = "x"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {"time": 20.0, "points": 200}}

    def initial(self) -> Mapping[str, Any]:
        return {"x": np.array(START)}

    def derivative(self, time: float, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": state["x"] * (1 - state["x"])}

    def observables(self, time: float, state: Mapping[str, Any]) -> Any:
        yield sl.Reading("x", float(state["x"]))

    def predictions(self) -> list[sl.Prediction]:
        return [
            sl.Prediction("growth", "curve", logistic, "Eq. 1", series="x"),
            sl.Prediction("half", "time", MIDDLE, "Eq. 2", series="x", measure=lambda t: half_rise(*t.scalar("x"))),
            sl.Prediction("everything", "level", 1.0, "Eq. 3", series="x"),
        ]


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A run of logistic growth, without figures."""
    return run(Logistic, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a small transformer."""
    return run(Repeats, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def hostile(tmp_path):
    """A run whose every name tries to be html."""
    series = {"loss": staircase(STEPS, (200, 600), (3.0, 2.0, 1.0)), HOSTILE: STEPS * 1.0}
    return write_run(
        tmp_path, HOSTILE_FOLDER, series, task=HOSTILE, stage_names=[HOSTILE, "</script>"], config={HOSTILE: HOSTILE}
    )


# theory


def test_theory_is_scored(grown):
    curve, half, level = grown.predictions
    assert curve["error"] < 1e-4
    assert half["expected"] == pytest.approx(MIDDLE) and half["error"] < 0.01
    assert level["expected"] == 1.0 and level["measured"] == pytest.approx(1.0, abs=0.01) and level["error"] < 0.01


def test_a_wrong_curve_is_scored_by_its_largest_distance(grown):
    wrong = sl.Prediction("shifted up", "curve", lambda t: logistic(t) + 0.25, "Eq. 0", series="x")
    (found,) = score([wrong], grown.timeline)
    assert found.error == pytest.approx(0.25 / np.ptp(logistic(grown.timeline.steps)), rel=1e-3)


def test_theory_is_drawn_over_the_series(grown):
    (axis,) = loss_figure(grown).axes
    lines = {line.get_label(): line for line in axis.lines}
    drawn = lines["theory: growth (Eq. 1)"]
    assert drawn.get_color() == "black" and drawn.get_linestyle() == "--"
    assert drawn.get_ydata() == pytest.approx(logistic(drawn.get_xdata()))
    flat = [line for line in axis.lines if list(line.get_ydata()) == [1.0, 1.0] and list(line.get_xdata()) == [0, 1]]
    upright = [line for line in axis.lines if list(line.get_xdata()) == [MIDDLE, MIDDLE]]
    assert len(flat) == len(upright) == 1
    assert {"everything", "half"} <= {text.get_text() for text in axis.texts}


def test_theory_is_in_the_page_and_its_chart(grown):
    chart = run_chart(grown, grown.experiment.predictions())
    (series,) = chart["series"]
    assert [trace["name"] for trace in series["traces"]] == ["x", "theory: growth"]
    assert series["levels"] == [{"y": 1.0, "name": "everything"}]
    assert chart["times"]["step"] == [{"at": pytest.approx(MIDDLE, abs=1e-4), "name": "half", "series": "x"}]
    page = report_page(grown)
    assert "Theory and measurement" in page and "Eq. 2" in page


def test_the_predicted_time_of_one_element_is_in_the_chart_of_its_series(tmp_path):
    heads = np.stack([STEPS, 2 * STEPS], axis=1)
    run = write_run(tmp_path, "a", {"loss": STEPS * 1.0, "p/score": (heads, ("head",))})
    (time,) = run_chart(run, [sl.Prediction("late", "time", 300.0, "Eq. 1", series="p/score[head=1]")])["times"]["step"]
    assert time == {"at": 300.0, "name": "late", "series": "p/score"}


def test_a_predicted_time_beyond_the_run_is_drawn_at_its_own_position_only(tmp_path):
    run = write_run(tmp_path, "a", {"loss": staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))})
    last = float(STEPS[-1])
    times = {"before": -50.0, "within": 600.0, "at the end": last, "beyond": 2030.0}
    chart = run_chart(run, [sl.Prediction(name, "time", at, "Eq. 1") for name, at in times.items()])
    assert {time["name"]: time["at"] for time in chart["times"]["step"]} == times
    assert {time["name"]: time["at"] * last for time in chart["times"]["fraction"]} == pytest.approx(times)
    for align, end in (("loss", 1.0), ("stage", 3.0)):
        assert [time["name"] for time in chart["times"][align]] == ["within", "at the end"]
        assert [time["at"] for time in chart["times"][align]][1] == end


# what a page holds


def test_the_report_of_a_training_holds_what_it_should(trained):
    path = write_report(trained)
    page = path.read_text()
    for heading in ("Timeline", "Stages of loss", "Figures", "Config", "How to repeat it", "Last readings"):
        assert f"<h2>{heading}</h2>" in page
    assert "stagelens.run(Repeats, preset=" in page  # no plugin registers it, so there is no command for it
    assert trained.manifest.versions["torch"] in page
    for name in ("overview", "loss", "probes", "attention"):
        for ending in ("png", "svg"):
            assert (trained.folder / "figures" / f"{name}.{ending}").stat().st_size > 1000
    drawn = {file.stem for file in (trained.folder / "figures").glob("*.png")}
    assert drawn == {"overview", "loss", "specialization", "probes", "attention", "stages", "trajectory"}
    shown = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]*)"', page)
    files = [(trained.folder / "figures" / f"{name}.png").read_bytes() for name in drawn]
    assert sorted(map(base64.b64decode, shown)) == sorted(files)


@pytest.fixture
def two_drops(trained, tmp_path):
    """A copy of that run whose loss falls at steps that are no checkpoints."""
    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder)
    (folder / "timeline.sqlite").unlink()
    last = trained.checkpoints[-1]
    steps = np.linspace(0, last, 200)
    store = Store(folder)
    store.add(*measurements(steps, {"loss": staircase(steps, (0.37 * last, 0.66 * last), (3.0, 2.0, 1.0), last / 100)}))
    store.close()
    manifest = load_manifest(folder)
    manifest.timeline, manifest.stages = "", None
    manifest.save(folder)
    return load(folder, task=Repeats)


@pytest.mark.parametrize("seconds", [0.1, 1e9])  # of training: replaying a part of it is short, or too long
def test_attention_at_a_plateaus_end_never_shows_a_later_step(two_drops, seconds):
    two_drops.manifest.seconds = seconds
    plateaus = two_drops.stages().plateaus
    assert len(plateaus) == 3
    chosen = chosen_steps(two_drops, 6)
    for number, plateau in enumerate(plateaus[:-1], start=1):
        (step,) = [step for step, what in chosen.items() if f"plateau {number}" in what]
        before = max(saved for saved in two_drops.checkpoints if saved <= plateau.end)
        assert step == (int(plateau.end) if seconds < 1 else before)
        assert (f"step {int(plateau.end)}" in chosen[step]) == (seconds > 1)  # the true end, where it is another
    last = two_drops.checkpoints[-1]
    assert chosen[0] == "start" and chosen[last] == "end"


def test_attention_maps_are_those_of_the_model_at_that_step(two_drops):
    """Between two checkpoints the maps come from the replayed model, not from a checkpoint."""
    step = next(step for step, what in chosen_steps(two_drops, 6).items() if what == "end of plateau 1")
    assert step not in two_drops.checkpoints
    exact, before = (
        attention_maps(two_drops, at)[0] for at in (step, max(s for s in two_drops.checkpoints if s < step))
    )
    tokens = eval_batch(two_drops.experiment)[:, :-1]
    with torch.no_grad():  # replaying needs gradients, and takes them here too
        _, cache = two_drops.model_at(step).run_with_cache(tokens, names_filter="blocks.0.attn.hook_pattern")
    assert exact == pytest.approx(cache["blocks.0.attn.hook_pattern"].mean(0).numpy(), abs=1e-6)
    assert np.abs(exact - before).max() > 1e-5


def test_a_step_is_replayed_once_for_all_figures(two_drops, monkeypatch):
    asked, model_at = [], Run.model_at
    monkeypatch.setattr(Run, "model_at", lambda run, step: asked.append(step) or model_at(run, step))
    for step in (0, 3, 0, 3):
        assert attention_maps(two_drops, step)[0].shape == attention_maps(two_drops, 0)[0].shape
    assert asked == [0, 3]
    assert attention_maps(load(two_drops.folder, task=Repeats), 3)[0] == pytest.approx(attention_maps(two_drops, 3)[0])
    assert asked == [0, 3, 3]  # another run has its own


def test_a_report_makes_no_network_request(trained):
    page = report_page(trained)
    assert "default-src 'none'" in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(src|href)=["'](?!data:)""", markup)


def test_claims_are_shown_where_they_were_verified(grown):
    check = {
        "what": "slope",
        "measured": 2.0,
        "expected": 3.0,
        "tolerance": "1%",
        "reference": "Fig. 1",
        "holds": False,
    }
    page = report_page(grown, claims=[{"id": "T1", "verdict": "differs", "checks": [check | {"sanity": False}]}])
    assert "<h2>Claims</h2>" in page and 'class="differs">differs' in page and "Fig. 1" in page
    assert "<h2>Claims</h2>" not in report_page(grown)


def test_the_claims_of_a_runs_plugin_come_as_last_verified(grown, tmp_path, monkeypatch):
    monkeypatch.setenv("STAGELENS_CACHE", str(tmp_path))
    check = equal("drops", 2, 3, "Fig. 7")
    store(Result("T9", grown.manifest.plugin, "drops", "Fig. 7", "differs", "quick", 1, 0.5, (check,)), tmp_path)
    page = write_report(grown, tmp_path / "page.html").read_text()
    assert "<h2>Claims</h2>" in page and "T9" in page and "Fig. 7" in page


def test_a_run_can_be_reported_without_its_plugin(hostile):
    path = write_report(hostile)
    assert "Stages of loss" in path.read_text()
    assert [file.name for file in (hostile.folder / "figures").glob("attention*")] == []


def test_a_run_without_a_measurement_has_a_page(tmp_path):
    page = report_page(write_run(tmp_path, "new", {}, [], status="running"))
    assert "chart-data" not in page and "No stages" in page


def test_names_are_text_everywhere(hostile):
    page = report_page(hostile)
    outside = page.replace(_plotly(), "")
    assert "<script>alert" not in outside and "<img src=x" not in outside
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in outside
    (data,) = re.findall(r'<script type="application/json" id="chart-data">(.*?)</script>', page, flags=re.S)
    assert "<" not in data and HOSTILE in [series["name"] for series in json.loads(data)["series"]]


def test_the_page_of_several_runs_is_escaped_too(hostile, tmp_path):
    write_run(tmp_path, "tame", {"loss": STEPS * 1.0})
    page = write_comparison([hostile, sl.load("tame", tmp_path)]).read_text().replace(_plotly(), "")
    assert "<script>alert" not in page and "<img src=x" not in page


def test_a_chart_gives_the_reason_if_an_alignment_is_impossible(tmp_path):
    chart = run_chart(write_run(tmp_path, "flat", {"loss": STEPS * 0.0 + 1}))
    problems = {one["name"]: one["problem"] for one in chart["alignments"]}
    assert problems["step"] == problems["fraction"] == ""
    assert "never falls" in problems["loss"] and "no transition" in problems["stage"]


def test_a_comparison_chart_offers_all_alignments_its_own_first(tmp_path):
    for seed, at in enumerate([(200, 600), (300, 700)]):
        write_run(tmp_path, f"seed{seed}", {"loss": staircase(STEPS, at, (3.0, 2.0, 1.0))}, seed=seed)
    chart = comparison_chart(sl.compare(["seed0", "seed1"], align="stage", folder=tmp_path))
    assert [one["name"] for one in chart["alignments"]] == ["stage", "step", "fraction", "loss"]
    mean, *seeds = chart["series"][0]["traces"]
    assert set(mean["y"]) == set(mean["low"]) == {"step", "fraction", "loss", "stage"}
    assert [trace["name"] for trace in seeds] == ["seed 0", "seed 1"]


def test_a_comparison_chart_has_the_transitions_of_every_group(tmp_path):
    for seed, at in enumerate([(200, 600), (300, 700)]):
        write_run(tmp_path, f"seed{seed}", {"loss": staircase(STEPS, at, (3.0, 2.0, 1.0))}, seed=seed)
    write_run(tmp_path, "flat", {"loss": STEPS * 0.0 + 1}, task="made/other")
    chart = comparison_chart(sl.compare(["seed0", "seed1"], folder=tmp_path))
    assert set(chart["transitions"]) == {"step", "fraction", "loss", "stage"}
    (group,) = chart["transitions"]["step"]
    assert group["at"] == pytest.approx([200, 600, 300, 700], abs=5)
    assert group["colour"] == chart["series"][0]["traces"][0]["colour"]
    assert chart["transitions"]["fraction"][0]["at"] == pytest.approx([0.2, 0.6, 0.3, 0.7], abs=0.005)
    assert [one["at"] for one in chart["transitions"]["stage"]] == [[1, 2]]
    mixed = comparison_chart(sl.compare(["seed0", "flat"], folder=tmp_path))
    assert sorted(len(one["at"]) for one in mixed["transitions"]["step"]) == [0, 2]
    assert "stage" not in mixed["transitions"]  # not possible for the flat run


# in a browser


def test_switching_series_and_alignment_changes_the_figure(browser, tmp_path):
    curve = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))
    rise = (np.stack([STEPS, 2.0 * STEPS], axis=1), ("head",))
    made = write_run(tmp_path, "run", {"loss": curve, "s/rise": rise})
    opened = Opened(browser, written(made))
    first = opened.paths
    assert [trace["name"] for trace in opened.drawn] == ["loss"]
    assert opened.drawn[0]["y"] == pytest.approx(curve, abs=1e-4)
    opened.choose("series", "s/rise")
    assert [trace["name"] for trace in opened.drawn] == ["head 0", "head 1"]
    assert opened.drawn[1]["y"] == pytest.approx(2.0 * STEPS)
    assert len(opened.paths) == 2 and opened.paths[0] != first[0]
    opened.choose("align", "fraction")
    assert opened.drawn[0]["x"] == pytest.approx(STEPS / 1000)
    opened.choose("align", "stage")
    assert (opened.drawn[0]["x"][0], opened.drawn[0]["x"][-1]) == (0, 3)
    opened.page.set_checked("#chart-log-x", True)
    opened.page.check("#chart-log-y")
    opened.page.check("#chart-events")
    assert opened.drawn[-1]["name"] is None  # the events' markers
    opened.close()


def test_hostile_names_are_inert(browser, hostile):
    opened = Opened(browser, written(hostile))
    opened.choose("series", HOSTILE)
    texts = opened.page.evaluate("[...document.querySelectorAll('#chart text')].map((t) => t.textContent)")
    assert HOSTILE in texts  # as the axis' title, letter by letter
    assert opened.page.inner_text("h1") == HOSTILE_FOLDER
    assert opened.page.locator("img[src=x]").count() == 0
    opened.close()


def test_a_comparison_can_be_switched_in_the_browser(browser, tmp_path):
    for seed, at in enumerate([(200, 600), (300, 700)]):
        write_run(tmp_path, f"seed{seed}", {"loss": staircase(STEPS, at, (3.0, 2.0, 1.0))}, seed=seed)
    path = sl.compare(["seed0", "seed1"], folder=tmp_path).save(tmp_path / "both.html")
    opened = Opened(browser, path)
    by_step = opened.drawn
    for align in ("fraction", "loss", "stage"):
        opened.choose("align", align)
        assert opened.drawn[2]["x"] != by_step[2]["x"]
    assert opened.drawn[2]["name"] == "made/up, 2 seeds"
    *_, entry, lines = opened.drawn
    assert entry["name"] == "thin vertical lines: transitions" and lines["x"] == [1, 1, None, 2, 2, None]
    assert "thin vertical lines: transitions" in str(opened.page.text_content("#chart .legend"))
    assert "transitions of each run" in opened.page.inner_text("body")
    opened.close()


def written(made: Any) -> Any:
    """Returns the report of a run without its figures."""
    path = made.folder / "report.html"
    path.write_text(report_page(made), encoding="utf-8")
    return path


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
