"""Misbehaving plugins: they are named, and the run continues or stops as docs/reliability.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagelens as sl
from kit.bad_plugin import PROBES
from kit.tasks import assert_same_weights, weights
from kit.victims import Told, command, difference, is_one_line, said
from stress.table import record

COMMAND = "pytest tests/stress/test_plugins.py"
PLUGIN = Path(__file__).parents[1] / "kit" / "bad_plugin.py"
SEEDS = 5


def run(victims, runs: Path, task: str, *words: object, plugins: tuple[Path, ...] = (), **limits: float):
    """Runs `task` on the command line; returns the exit code, stderr, and the run."""
    loaded = [word for place in (PLUGIN, *plugins) for word in ("--plugin-dir", place)]
    out = runs.with_name(f"{runs.name}-said")
    words = (*loaded, "run", task, *words, "--runs", runs, "--name", "r")
    code = victims.call(command, words, out, None, Told({name: str(value) for name, value in limits.items()}))
    return code, said(out), sl.load(runs / "r")


def same_but_for(probe: str, one: sl.Run, whole: sl.Run) -> bool:
    """Returns True if the runs have the same weights and the same numbers, except those of `probe`."""
    names = [name for name in one.timeline if not name.startswith(f"{probe}/")]
    assert_same_weights(weights(one), weights(whole))
    return names == list(whole.timeline) and all(
        one.timeline.series(name).tobytes() == whole.timeline.series(name).tobytes() for name in names
    )


KINDS = {  # the name of the fault, the probes that cause it, the message, and whether the run continues
    "a probe that raises, or exits": (
        {"raises": "RuntimeError: out of tune", "raises_in_hook": "AttributeError", "exits": "it called sys.exit(7)"},
        True,
    ),
    "a probe that gives nan, or another shape": (
        {"gives_nan": "is nan", "changes_shape": "changed from shape {'layer': 2} to {'layer': 3}"},
        True,
    ),
    "a probe that hangs": (
        dict.fromkeys(("sleeps", "loops", "loops_in_hook"), "TimeoutError: it took more than 0.3 s"),
        True,
    ),
    "a probe that leaks memory": ({"leaks": "memory has grown by"}, True),
    "a probe that changes the random state": (
        dict.fromkeys(
            ("draws", "draws_in_hook", "draws_numpy", "draws_python", "seeds"), "changed the global random state"
        ),
        True,
    ),
    "a probe that changes the parameters": (
        dict.fromkeys(("changes", "changes_data", "changes_in_hook"), "changed the model's parameters at step 5"),
        False,
    ),
}


def test_every_bad_probe_is_in_the_table():
    assert sorted(probe.name for probe in PROBES) == sorted(name for names, _ in KINDS.values() for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_that_misbehaves(kind, victims, tmp_path):
    probes, continues = KINDS[kind]
    wrong, lost, tried = [], [], 0
    limits = {"STAGELENS_TIME_LIMIT": 0.3, "STAGELENS_MEMORY_LIMIT": 40}
    for seed in range(SEEDS):
        _, _, whole = run(victims, tmp_path / f"{seed}", "small/regression", "--seed", seed)
        for probe, message in probes.items():
            tried += 1
            words = ("--seed", seed, "--probes", f"{probe},weight_norms")
            code, err, done = run(victims, tmp_path / f"{seed}-{probe}", "small/regression", *words, **limits)
            named = done.manifest.problems.get(probe, "") if continues else done.manifest.error
            if probe not in named or message not in named or "Traceback" in err:
                wrong.append(f"{probe}: {named!r} {err}")
            if continues and (code != 0 or done.status != "finished" or not same_but_for(probe, done, whole)):
                lost.append(f"{probe}: {code} {done.status} {err}")
            if not continues and (code != 1 or done.status != "failed" or not is_one_line(err)):
                wrong.append(f"{probe}: {code} {done.status} {err}")
            if not continues and done.checkpoints[-1] < 4:
                lost.append(f"{probe}: {done.checkpoints}")
    record(kind, tried, len(lost), len(wrong), COMMAND, "continues without it" if continues else "stops")
    assert not lost and not wrong, (lost, wrong)


@pytest.mark.parametrize(
    ("what", "fault", "step"),
    [
        ("nan", "a loss that becomes nan", 20),
        ("inf", "a loss that becomes infinite", 20),
        ("gradient", "a gradient that explodes", 21),
    ],
)
def test_a_loss_that_does_not_stay_finite(what, fault, step, victims, tmp_path):
    lost, wrong = [], []
    for seed in range(SEEDS):
        _, _, whole = run(victims, tmp_path / f"{seed}", "small/regression", "--seed", seed)
        code, err, done = run(victims, tmp_path / f"{seed}-{what}", "bad/loss", "--seed", seed, "--set", f"what={what}")
        if code != 1 or not is_one_line(err) or f"nan or infinite at step {step}; try a smaller lr" not in err:
            wrong.append(f"{code}: {err}")
        if done.status != "failed" or done.manifest.error not in err:
            wrong.append(f"{done.status}: {done.manifest.error}")
        steps = [s for s in whole.timeline.steps.tolist() if s <= 20]
        losses = whole.timeline.series("loss")[: len(steps)]
        if done.timeline.steps.tolist() != steps or done.timeline.series("loss").tobytes() != losses.tobytes():
            lost.append(f"{done.timeline.steps}")
    record(fault, SEEDS, len(lost), len(wrong), COMMAND, "stops")
    assert not lost and not wrong, (lost, wrong)


HOOKS = ("stagelens_run_started(run)", "stagelens_reading_recorded(step)", "stagelens_run_finished(run)")
OBSERVER = """
import time
import stagelens as sl

@sl.hookimpl
def {hook}:
    if {when}:
        {act}
"""


@pytest.mark.parametrize(("act", "message"), [("1 / 0", "ZeroDivisionError"), ("time.sleep(3600)", "TimeoutError")])
def test_an_observer_that_raises_or_hangs(act, message, victims, tmp_path):
    """The run stops, the plugin is named, and without the plugin the run resumes."""
    _, _, whole = run(victims, tmp_path / "whole", "small/regression")
    lost, wrong, tried = [], [], 0
    for hook in HOOKS:
        tried += 1
        plugin = tmp_path / f"observer_{tried}_{message.lower()}.py"
        plugin.write_text(OBSERVER.format(hook=hook, act=act, when="step >= 20" if "step" in hook else "True"))
        runs = tmp_path / f"{tried}"
        code, err, done = run(victims, runs, "small/regression", plugins=(plugin,), STAGELENS_TIME_LIMIT=0.3)
        if code != 1 or message not in err or f"of plugin {plugin.stem!r}" not in err:
            wrong.append(f"{hook}: {code}: {err}")
        expected = {"stagelens_reading_recorded(step)": "failed", "stagelens_run_finished(run)": "finished"}
        if done.status != expected.get(hook, "interrupted"):
            wrong.append(f"{hook}: {done.status}")
        code, err, done = run(victims, runs, "small/regression", "--resume")
        if code != 0:
            lost.append(f"{hook}: {err}")
        elif problem := difference(done, whole):
            wrong.append(f"{hook}: {problem}")
    how = "raises" if message == "ZeroDivisionError" else "hangs"
    record(
        f"a plugin whose hook {how}",
        tried,
        len(lost),
        len(wrong),
        COMMAND,
        "stops; resumes without it",
    )
    assert not lost and not wrong, (lost, wrong)
