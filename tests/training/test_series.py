"""`stagelens probe` turns a folder of saved models into a timeline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

import stagelens as sl
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.host import make_host
from stagelens.models import build_transformer
from stagelens.runs import held, load_manifest
from stagelens.training.saved_checkpoints.series import find_series
from stagelens.training.saved_checkpoints.tokens import load_batch

SHAPE = {"n_layers": 2, "n_heads": 2, "d_model": 16, "n_ctx": 12, "d_vocab": 10}
PROBES = ["attention_sparsity", "induction"]


def weights(seed: int) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in build_transformer(**SHAPE, seed=seed).state_dict().items()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Four models at the steps 0, 100, 200 and 300, each from another seed."""
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE))
    for step in (0, 100, 200, 300):
        save_file(weights(seed=step), folder / f"step_{step}.safetensors")
    return folder


def probed(saved: Path, tmp_path: Path, **options: object) -> sl.Run:
    return sl.probe_checkpoints(saved, probes=PROBES, runs=tmp_path / "runs", report=False, **options)


def test_each_checkpoint_is_measured_as_the_model_it_holds(saved: Path, tmp_path: Path) -> None:
    tokens = torch.randint(10, (8, 12), generator=torch.Generator().manual_seed(1))
    run = probed(saved, tmp_path, batch=tokens)
    assert run.timeline.steps.tolist() == [0, 100, 200, 300]
    for index, step in enumerate((0, 100, 200, 300)):
        recorder = sl.Recorder(build_transformer(**SHAPE, seed=step), PROBES, tokens)
        recorder.measure(step)
        for name in ("attention_sparsity/entropy", "induction/prefix_matching", "induction/copying"):
            np.testing.assert_array_equal(run.timeline.series(name)[index], recorder.timeline.series(name)[0])
    logits = build_transformer(**SHAPE, seed=200)(tokens).log_softmax(-1)
    by_hand = -logits[:, :-1].gather(-1, tokens[:, 1:, None]).mean()
    assert run.timeline.series("loss")[2] == pytest.approx(by_hand.item(), rel=1e-5)


def test_the_command_line_measures_what_python_measures(saved: Path, tmp_path: Path, cli) -> None:
    tokens = torch.randint(10, (8, 12), generator=torch.Generator().manual_seed(1))
    save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")
    words = ["--probes", ",".join(PROBES), "--batch", tmp_path / "tokens.safetensors", "--runs", tmp_path / "cli"]
    answer = cli("probe", saved, *words, "--json")
    assert answer.code == 0, answer.err
    run = probed(saved, tmp_path, batch=tmp_path / "tokens.safetensors")
    expected = json.loads(json.dumps(run.summary(), default=str))
    same = ("task", "status", "steps", "final", "stages", "phases", "skipped", "problems")
    assert {key: answer.json[key] for key in same} == {key: expected[key] for key in same}
    printed = sl.load(answer.json["run"])
    for name in run.timeline:
        np.testing.assert_array_equal(printed.timeline.series(name), run.timeline.series(name), err_msg=name)


def test_a_config_and_weights_of_transformer_lens_itself_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "lens"
    folder.mkdir()
    model = build_transformer(**SHAPE, seed=3)
    config = {key: value for key, value in model.cfg.to_dict().items() if isinstance(value, int | float | str | None)}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({"model": model.state_dict()}, folder / "7.pt")
    run = sl.probe_checkpoints(folder, probes=PROBES, runs=tmp_path / "runs", report=False)
    recorder = sl.Recorder(model, ["induction"], torch.zeros(1, 12, dtype=torch.int64))
    recorder.measure(7)
    ours, theirs = run.timeline["induction/previous_token"], recorder.timeline["induction/previous_token"]
    np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-5)


def test_without_a_batch_no_loss_is_made_up(saved: Path, tmp_path: Path) -> None:
    run = probed(saved, tmp_path)
    assert "loss" not in run.timeline
    assert run.manifest.metric == "induction/prefix_matching"
    assert run.status == "finished"


def test_what_needs_real_text_is_skipped_on_random_tokens_and_the_run_says_what_it_was_measured_on(
    saved: Path, tmp_path: Path
) -> None:
    probes = ["induction", "loss_by_position", "gradient"]
    run = sl.probe_checkpoints(saved, probes=probes, runs=tmp_path / "runs", name="random")
    assert {"induction/prefix_matching", "induction/copying"} <= set(run.timeline)
    assert "induction/icl_score" not in run.timeline and "loss_by_position/loss" not in run.timeline
    for name in ("loss_by_position", "induction/icl_score"):
        assert "random tokens" in run.manifest.skipped[name]
    assert run.manifest.config["measured_on"] == "random tokens, seed 0"
    assert "<dd>random tokens, seed 0</dd>" in (run.folder / "report.html").read_text()

    tokens = torch.randint(10, (8, 12), generator=torch.Generator().manual_seed(1))
    save_file({"tokens": tokens}, tmp_path / "my.safetensors")
    run = sl.probe_checkpoints(saved, probes=probes, batch=tmp_path / "my.safetensors", runs=tmp_path / "runs")
    long = {"induction/prefix_matching_by_gap", "induction/icl_score_fixed"}  # the sequences are short
    assert run.manifest.skipped.keys() == long and "induction/icl_score" in run.timeline
    assert "my.safetensors</dd>" in (run.folder / "report.html").read_text()
    assert "prefix_matching_chance" not in {p["series"] for p in run.summary()["probe_events"]}


def test_stride_and_range_choose_checkpoints(saved: Path) -> None:
    assert list(find_series([saved], every=2).files) == [0, 200]
    assert list(find_series([saved], first=50, last=200).files) == [100, 200]
    with pytest.raises(UsageError, match="no checkpoint between the steps 400 and None; there are 0 to 300"):
        find_series([saved], first=400)


def test_folders_named_by_step_are_a_series_too(tmp_path: Path) -> None:
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file(weights(step), tmp_path / f"checkpoint-{step}" / "model.safetensors")
    assert list(find_series([tmp_path]).files) == [10, 20]


def test_identical_weights_are_reported_with_their_files(saved: Path, tmp_path: Path) -> None:
    save_file(weights(seed=100), saved / "step_200.safetensors")
    (warning,) = probed(saved, tmp_path).manifest.warnings
    assert "step_100.safetensors and" in warning and "step_200.safetensors hold identical weights" in warning


def test_a_missing_step_and_a_wrong_order_are_reported(saved: Path) -> None:
    for step in (400, 500, 700):
        save_file(weights(step), saved / f"step_{step}.safetensors")
    (warning,) = find_series([saved]).warnings
    assert "missing between" in warning and "step_500" in warning and "step_700" in warning
    backwards = find_series([saved / "step_200.safetensors", saved / "step_100.safetensors"])
    assert list(backwards.files) == [100, 200]
    assert "out of order" in backwards.warnings[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_layers": 10**400}, r"says n_layers = 1000+, but .*step_0\.safetensors has only \d+ tensors"),
        ({"n_layers": 10**9}, "says n_layers = 1000000000, but"),
        ({"n_layers": 1}, "there 'blocks.1.attn.W_K' is one too many"),
        ({"n_layers": 3}, "there 'blocks.2.ln1.w' is missing"),
        ({"d_vocab": 10**9}, r"there 'embed.W_E' has another shape, \[10, 16\] and not \[1000000000, 16\]"),
        ({"n_ctx": 10**6}, r"there 'pos_embed.W_pos' has another shape"),
        ({"n_ctx": 2**62}, "is not the config of a HookedTransformer"),
        ({"d_mlp": 10**9}, "there 'blocks.0.ln2.w' is missing"),
        ({"n_heads": "2"}, "is not the config of a HookedTransformer"),
        ({"n_heads": 3}, "n_heads = 3 does not divide d_model = 16"),
        ({"act_fn": "relu", "d_head": 8, "num_experts": 10**9}, "says num_experts = 1000000000, but"),
        ({"act_fn": "relu", "d_head": 8, "d_model": 10**6}, "has another shape"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused_before_it_is_built(
    saved: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    (saved / "config.json").write_text(json.dumps(SHAPE | change))
    with Largest() as largest, pytest.raises(UsageError, match=says) as caught:
        probed(saved, tmp_path)
    assert "\n" not in str(caught.value) and "config.json" in str(caught.value)
    assert largest.numbers < 10**5, "a tensor of the wrong size was made"
    assert not (tmp_path / "runs").exists()


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes in memory."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type != "meta":
            self.numbers = max(self.numbers, made.numel())
        return made


def test_two_files_of_one_step_are_an_error(saved: Path) -> None:
    save_file(weights(1), saved / "again_100.safetensors")
    with pytest.raises(UsageError, match="are both of step 100"):
        find_series([saved])


@pytest.mark.parametrize(
    ("prepare", "error", "says"),
    [
        (lambda f: (f / "config.json").unlink(), UsageError, "has no config.json next to it"),
        (lambda f: (f / "config.json").write_text("[1]"), UsageError, "is not the config of a HookedTransformer"),
        (lambda f: (f / "config.json").write_text('{"n_layers": "x", "odd": 1}'), UsageError, "is not the config"),
        (lambda f: (f / "config.json").write_text("{"), EnvironmentFault, "cannot be read"),
        (lambda f: (f / "step_0.safetensors").write_bytes(b"junk"), EnvironmentFault, "step_0.safetensors cannot"),
    ],
)
def test_what_cannot_be_read_is_one_line(saved: Path, tmp_path: Path, prepare, error, says: str) -> None:
    prepare(saved)
    with pytest.raises(error, match=says) as caught:
        probed(saved, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_pickle_that_runs_code_is_refused(saved: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "pwned",))

    torch.save({"model": Evil()}, saved / "step_400.pt")
    assert "step_400.pt cannot be read" in probed(saved, tmp_path).manifest.error
    assert not (tmp_path / "pwned").exists()


def test_the_batch_must_be_tokens(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, 3)}, tmp_path / "floats.safetensors")
    with pytest.raises(UsageError, match="expected one tensor of tokens"):
        load_batch(tmp_path / "floats.safetensors")
    tokens = torch.arange(6).view(2, 3)
    for saved in (tokens, {"tokens": tokens}):
        torch.save(saved, tmp_path / "tokens.pt")
        assert torch.equal(load_batch(tmp_path / "tokens.pt"), tokens)
    for wrong in ([tokens], {"tokens": tokens, "mask": tokens}, {"lr": 0.1}):
        torch.save(wrong, tmp_path / "tokens.pt")
        with pytest.raises(UsageError, match="expected one tensor of tokens"):
            load_batch(tmp_path / "tokens.pt")


def test_observers_are_called_for_saved_checkpoints_as_for_every_run(saved: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, Any]] = []

    class Observer:
        @sl.hookimpl
        def stagelens_run_started(self, run: sl.Run) -> None:
            heard.append(("started", run.status))

        @sl.hookimpl
        def stagelens_reading_recorded(self, run: sl.Run, step: float, readings: Any) -> None:
            heard.append((f"at {step}", {reading.name.partition("/")[0] for reading in readings}))
            with pytest.raises(UsageError, match="is being written by process"), held(run.folder):
                pass

        @sl.hookimpl
        def stagelens_run_finished(self, run: sl.Run) -> None:
            heard.append(("finished", run.status))

    host = make_host()
    host.load("observer", "1", Observer)
    probed(saved, tmp_path, host=host)
    measured = [(f"at {step}", set(PROBES)) for step in (0, 100, 200, 300)]
    assert heard == [("started", "running"), *measured, ("finished", "finished")]


def test_the_stages_of_saved_checkpoints_are_stored(saved: Path, tmp_path: Path) -> None:
    run = sl.probe_checkpoints(saved, probes=PROBES, runs=tmp_path / "runs")
    stored = load_manifest(run.folder)
    assert stored.stages == run.found_stages() is not None
    assert stored.seconds > 0 and stored.status == "finished" and stored.timeline


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(b"no weights"), r"step_200.safetensors cannot be read"),
        (lambda path: save_file({"embed.W_E": torch.zeros(3, 3)}, path), "step_200.safetensors is of another arch"),
    ],
)
def test_a_checkpoint_that_fails_is_reported_and_the_others_are_measured(saved, tmp_path, damage, says) -> None:
    whole = probed(saved, tmp_path, name="whole")
    damage(saved / "step_200.safetensors")
    run = probed(saved, tmp_path, name="damaged")
    found = sl.load(run.folder)
    assert found.status == "interrupted" and re.search(says, found.manifest.error)
    (warning,) = found.warnings
    assert re.search(says, warning) and "\n" not in warning
    assert found.timeline.steps.tolist() == [0, 100, 300]
    for name in whole.timeline:
        np.testing.assert_array_equal(found.timeline.series(name), whole.timeline.series(name)[[0, 1, 3]])
