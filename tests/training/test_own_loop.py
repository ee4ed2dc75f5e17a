"""A run that a user's own training loop writes: readable at every moment, and like every other run afterwards."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray

import stagelens as sl
from kit.own_models import VOCAB, hugging_face, next_token_loss, plain_model, tokens_like_text
from stagelens.training.settings import settings_of

TOKENS = tokens_like_text()
PROBES = ["attention_sparsity", "induction"]


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loop(recorder: sl.Recorder, model: Any, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in steps:
        recorder.measure(step)
        optimizer.zero_grad()
        next_token_loss(model, TOKENS).backward()
        optimizer.step()


def recorder_of(model: Any, probes: Any = PROBES, **options: Any) -> sl.Recorder:
    return sl.Recorder(model, probes, batch=TOKENS, loss=next_token_loss, **options)


def test_a_with_block_leaves_a_run_that_every_command_can_use(cli: Any) -> None:
    @dataclass
    class Settings:
        lr: float = 0.01
        dtype: Any = torch.float32

    model = plain_model("scaled")
    with recorder_of(model, run="mine", config=Settings(), stage_names=["first"]) as recorder:
        loop(recorder, model, range(8))
        assert sl.load("mine").status == "running"  # it can be read meanwhile
        assert list(sl.load("mine").timeline.steps) == list(range(8))
    run = sl.load("mine")
    assert (run.status, run.manifest.steps, run.manifest.config) == (
        "finished",
        7,
        {"lr": 0.01, "dtype": "torch.float32"},
    )
    assert (run.folder / "report.html").exists()
    for name in recorder.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), recorder.timeline.series(name))
    for words in (
        ["show", "mine"],
        ["runs"],
        ["stages", "mine", "--metric", "attention_sparsity/sparsity"],
        ["compare", "mine", "mine"],
        ["report", "mine"],
        ["export", "mine", "--format", "csv"],
    ):
        answer = cli(*words)
        assert answer.code == 0, (words, answer.err)
    assert "mine" in cli("runs").out


def test_resuming_continues_the_timeline() -> None:
    """Also of probes that carry a state: distances from the first parameters, the gradient before, a component."""
    probes = [*PROBES, "weight_norms", "gradient", "qk_alignment"]
    model = plain_model("scaled")
    whole = recorder_of(plain_model("scaled"), probes)
    loop(whole, whole.context.model.model, range(6))
    first = recorder_of(model, probes, run="mine", config={"lr": 1})
    loop(first, model, range(3))
    first.finish()
    again = recorder_of(model, probes, run="mine", config={"lr": 1}, resume=True)
    loop(again, model, range(3, 6))
    run = again.finish()
    assert run is not None
    for timeline in (run.timeline, again.timeline):
        assert list(timeline.steps) == list(range(6))
        for name in whole.timeline:
            np.testing.assert_allclose(timeline.series(name), whole.timeline.series(name), rtol=1e-6, atol=1e-9)
    Path("runs/mine/probes/weight_norms.pt").write_bytes(b"damaged")
    with pytest.raises(sl.StagelensError, match=r"weight_norms.pt cannot be read; restore it, or delete it"):
        recorder_of(model, probes, run="mine", resume=True)


def test_a_state_is_written_only_if_it_changed() -> None:
    model = plain_model("scaled")
    recorder = recorder_of(model, ["weight_norms", "gradient"], run="mine")
    recorder.measure(0)
    files = [Path("runs/mine/probes") / f"{name}.pt" for name in ("weight_norms", "gradient")]
    for file in files:
        file.unlink()
    loop(recorder, model, range(1, 3))
    assert [file.exists() for file in files] == [False, True]  # the start stays, the newest gradient does not
    recorder.finish()


def test_a_loop_that_raises_leaves_a_failed_run_with_its_measurements() -> None:
    model = plain_model("scaled")
    with pytest.raises(ZeroDivisionError), recorder_of(model, run="mine") as recorder:
        loop(recorder, model, range(3))
        _ = 1 / 0
    run = sl.load("mine")
    assert (run.status, list(run.timeline.steps)) == ("failed", [0, 1, 2])
    assert "ZeroDivisionError" in run.manifest.error


def test_a_killed_process_loses_no_measurement() -> None:
    tests = Path(__file__).parents[1]
    script = (
        "from kit.own_models import *\n"
        "import stagelens as sl\n"
        "model = plain_model('scaled')\n"
        "recorder = sl.Recorder(model, ['attention_sparsity'], batch=tokens_like_text(), run='mine')\n"
        "for step in range(10**6):\n"
        "    recorder.measure(step)\n"
        "    print(step, flush=True)\n"
    )
    paths = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        seen = -1
        while seen < 5:
            seen = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = [int(line) for line in process.stdout.read().split()]
    last = max([seen, *rest])
    run = sl.load("mine")
    assert run.status == "interrupted"
    assert list(run.timeline.steps)[: last + 1] == list(range(last + 1))
    assert run.summary()["steps"] == run.summary()["step"] >= last
    recorder = sl.Recorder(plain_model("scaled"), ["attention_sparsity"], batch=TOKENS, run="mine", resume=True)
    recorder.measure(10**6)
    recorder.finish()
    assert sl.load("mine").status == "finished"


def test_mistakes_are_reported_in_one_line() -> None:
    model = plain_model("scaled")
    with recorder_of(model, run="mine", config={"lr": 2, "seed": 0}) as recorder:
        recorder.measure(0)
    with pytest.raises(sl.StagelensError, match=r"run 'mine' has ended, so step 1 cannot be written"):
        recorder.measure(1)
    (Path("runs") / "other").mkdir()
    (Path("runs") / "other" / "file.txt").write_text("x")
    for words, options in {
        "run 'mine' exists in runs; give resume=True": {"run": "mine"},
        r"with seed 0 and lr=2 \(given 1\), no width \(given 3\); resume": {
            "run": "mine",
            "config": {"lr": 1, "width": 3},
            "resume": True,
        },
        "holds other files and is not a run": {"run": "other"},
        "run name 3: expected a plain folder name": {"run": 3},
        "belong to a run": {"config": {"lr": 1}},
        "config is a list": {"run": "new", "config": [1]},
        "predictions has a str; expected a list of Predictions": {"run": "new", "predictions": ["x"]},
        "predictions has a int": {"run": "new", "predictions": 3},
        "stage_names has a str; expected a list of strs": {"run": "new", "stage_names": "one"},
        "forward is a int; expected a function": {"run": "new", "forward": 3},
        "unknown probe": {"run": "new", "probes": ["x"]},
    }.items():
        with pytest.raises(sl.StagelensError, match=words):
            sl.Recorder(model, **{"probes": PROBES, "batch": TOKENS} | options)
    with pytest.raises(sl.StagelensError, match="PlainTransformer cannot be called on the batch"):
        sl.Recorder(model, PROBES, batch="text", run="new")
    assert not Path("runs/new").exists()
    for words, loss in {
        r"loss returned a tensor of shape \[8, 24, 20\]": lambda model, batch: model(batch),
        "loss returned a NoneType; it must return one number": lambda model, batch: None,
    }.items():
        recorder = sl.Recorder(model, PROBES, batch=TOKENS, run="new", loss=loss)  # replaces one without measurements
        with pytest.raises(sl.StagelensError, match=words), recorder:
            recorder.measure(0)
    recorder = recorder_of(model, run="new")
    with pytest.raises(sl.StagelensError, match=r"train_loss of shape \[2\] was given at step 0; give one"), recorder:
        recorder.measure(0, train_loss=torch.zeros(2))
    held = recorder_of(model, run="busy")
    with pytest.raises(sl.StagelensError, match="busy"):
        recorder_of(model, run="busy", resume=True)
    held.finish()
    recorder_of(model, run="busy", resume=True).finish()


def test_groups_directions_references_predictions_and_stage_names_of_a_loop(cli: Any) -> None:
    model = plain_model("scaled")
    uniform = torch.full((*TOKENS.shape, VOCAB), -math.log(VOCAB))
    predictions = [
        sl.Prediction("start", "level", 5.0, "by hand"),
        sl.Prediction("end", "level", 1.1, "by hand"),
        sl.Prediction("fall", "time", 20.0, "by hand"),
        sl.Prediction("line", "curve", lambda step: 0.5 * step, "by hand", series="half"),
    ]
    with sl.Recorder(
        model,
        ["head_specialization", "kl_to_references", "qk_alignment"],
        batch=TOKENS,
        run="mine",
        groups={"previous": sl.Group(offsets=(1,)), "first": sl.Group(positions=(0,))},
        directions={"up": torch.eye(8)[0]},
        references={"uniform": lambda batch: uniform},
        stage_names=["the fall"],
        predictions=predictions,
    ) as recorder:
        for step in range(40):
            recorder.measure(step, loss=5.0 if step < 20 else 1.0, half=0.5 * step)
    run = sl.load("mine")
    assert recorder.problems == {} and run.problems == {}
    assert list(run.timeline["head_specialization/mass"].coords["group"].values)[:2] == ["previous", "first"]
    assert "up" in run.timeline["qk_alignment/reference"].coords["direction"]
    assert [one.name for one in run.stages().transitions] == ["the fall"]
    logits = model(TOKENS).log_softmax(-1)
    expected = float((uniform.exp() * (uniform - logits)).sum(-1).mean().detach())
    assert float(run.timeline["kl_to_references/kl"].values[0].squeeze()) == pytest.approx(expected, rel=1e-4)
    found = {one["name"]: (one["measured"], one["error"]) for one in run.predictions}
    assert found["start"] == (5.0, 0.0) and found["end"][0] == 1.0
    assert found["fall"][0] == pytest.approx(20, abs=1)
    assert found["line"][1] == 0.0
    assert "by hand" in (run.folder / "report.html").read_text(encoding="utf-8")
    drawn = {one.name for one in sl.load("mine").experiment.predictions()}
    assert drawn == {"start", "end", "fall"}  # a curve is a function, which no run stores
    answer = cli("show", "mine")
    assert answer.code == 0 and "by hand" in answer.out
    with pytest.raises(sl.StagelensError, match="load a checkpoint that you saved"):
        run.model_at(3)


def test_a_run_without_a_seed_has_none_also_when_it_is_resumed(cli: Any) -> None:
    model = plain_model("scaled")
    for steps in (range(2), range(2, 4)):
        with recorder_of(model, run="mine", config={"lr": 0.01}, resume=True) as recorder:
            loop(recorder, model, steps)
        assert sl.load("mine").seed is None
    assert sl.load("mine").timeline.save("copy", config={"seed": 0}).seed == 0
    page = (Path("runs") / "mine" / "report.html").read_text(encoding="utf-8")
    assert "<dt>seed</dt>" not in page and cli("export", "mine", "--format", "netcdf").code == 0


def test_a_timeline_in_memory_becomes_a_run(cli: Any) -> None:
    model = plain_model("scaled")
    recorder = recorder_of(model)
    with pytest.raises(sl.StagelensError, match="no measurements"):
        recorder.timeline.save("mine")
    loop(recorder, model, range(8))
    level = sl.Prediction("chance", "level", 3.0, "log 20")
    run = recorder.timeline.save("mine", config={"lr": 0.01}, predictions=[level])
    assert (run.status, run.manifest.config, run.manifest.metric) == ("finished", {"lr": 0.01}, "loss")
    assert run.manifest.probes == PROBES
    assert (run.folder / "report.html").exists()
    for name in recorder.timeline:
        xarray.testing.assert_identical(sl.load("mine").timeline[name], recorder.timeline[name])
    for words in (["show", "mine"], ["stages", "mine"], ["compare", "mine", "mine"], ["runs"], ["export", "mine"]):
        answer = cli(*words)
        assert answer.code == 0, (words, answer.err)
    with pytest.raises(sl.StagelensError, match="exists in runs"):
        recorder.timeline.save("mine")
    with pytest.raises(TypeError):
        recorder.timeline.save("other", colour="red")
    assert not Path("runs/other").exists()


def test_settings_are_stored_as_people_have_them() -> None:
    @dataclass
    class Inner:
        path: Any
        rate: float = math.inf

    given = {
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "act": torch.nn.functional.gelu,
        "kind": torch.nn.GELU,
        "inner": Inner(Path("data")),
        "small": torch.arange(3),
        "large": np.zeros((100, 100)),
        "huge": 2**70,
        1: {2, 3},
        "none": None,
    }
    given["itself"] = given
    found = settings_of(given)
    inside = found.pop("itself")
    assert inside["dtype"] == "torch.float32"
    assert found == {
        "dtype": "torch.float32",
        "device": "cpu",
        "act": "gelu",
        "kind": "GELU",
        "inner": {"path": "data", "rate": None},
        "small": [0, 1, 2],
        "large": "ndarray [100, 100]",
        "huge": str(2**70),
        "1": [2, 3],
        "none": None,
    }
    from stagelens.models import build_transformer  # this file also runs with TransformerLens 4

    transformer = build_transformer(n_layers=1, n_heads=2, d_model=8, n_ctx=8, d_vocab=5, seed=0)
    for config in (transformer.cfg, transformer.cfg.to_dict(), hugging_face("gpt2").config, argparse.Namespace(lr=1)):
        assert json.loads(json.dumps(settings_of(config), allow_nan=False))
    with pytest.raises(sl.StagelensError, match=r"token .*, and the model's vocabulary has 5 tokens"):
        sl.Recorder(transformer, batch=TOKENS, run="new")
    assert not Path("runs").exists()
    for wrong in ([1], "text", 3, Inner):
        with pytest.raises(sl.StagelensError, match="expected a mapping"):
            settings_of(wrong)


def test_runs_that_differ_in_the_seed_of_their_config_are_seeds_of_one_group(cli: Any) -> None:
    for seed in (1, 2):
        model = plain_model("scaled")
        with recorder_of(model, run=f"seed{seed}", config={"lr": 0.01, "seed": seed}) as recorder:
            loop(recorder, model, range(4))
    run = sl.load("seed2")
    assert (run.manifest.seed, run.manifest.config) == (2, {"lr": 0.01})
    assert sl.load("seed2").seed == 2
    (group,) = sl.compare(["seed1", "seed2"]).groups
    assert group.seeds == [1, 2]
    model = plain_model("scaled")
    with recorder_of(model, run="seed2", resume=True) as recorder:
        loop(recorder, model, range(4, 6))
    assert sl.load("seed2").manifest.seed == 2
    with pytest.raises(
        sl.StagelensError, match="'seed2' is loop with seed 2 and the same config; resume it with its own"
    ):
        recorder_of(model, run="seed2", resume=True, config={"lr": 0.01, "seed": 3})
    file = Path("runs") / "seed2" / "run.json"
    earlier = json.loads(file.read_text()) | {"seed": 0, "config": {"lr": 0.01, "seed": 2}}
    del earlier["checksum"]
    file.write_text(json.dumps(earlier))  # as an earlier version wrote it
    with recorder_of(model, run="seed2", resume=True, config={"lr": 0.01, "seed": 2}) as recorder:
        loop(recorder, model, range(6, 8))
    assert sl.load("seed2").manifest.config == {"lr": 0.01, "seed": 2}
