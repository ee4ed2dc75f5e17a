"""Damaged files: a few of each kind, read by the fast readers. `make stress` has two thousand, and all readers."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

import stagelens as sl
from kit.mutations import ANY, STATEMENTS, one_header, one_statement, rewritten
from kit.tasks import Regression, run, weights
from kit.written_runs import STEPS, staircase, write_run
from stagelens.base.documents import CHECKSUM, load_sealed, save_sealed
from stagelens.base.errors import EnvironmentFault, StagelensError
from stagelens.runs import checkpoint
from stagelens.runs.manifest import load_manifest
from stagelens.runs.store import Store, read_measurements

CASES = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and one of another seed next to it."""
    runs = tmp_path_factory.mktemp("runs")
    run(Regression, runs, name="other", seed=1)
    return run(Regression, runs, name="ended").folder


@pytest.fixture
def ended(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "ended")


def content(folder):
    """Returns the content of a run: its manifest, its numbers, its weights."""
    opened = sl.load(folder)
    series = [opened.timeline.series(name).tobytes() for name in opened.timeline]
    tensors = [tensor.numpy().tobytes() for tensor in weights(opened).values()]
    return opened.manifest, opened.timeline.steps.tolist(), list(opened.timeline), series, tensors


@pytest.mark.parametrize(
    ("file", "mutations"),
    [
        ("run.json", (*ANY, rewritten)),
        ("timeline.sqlite", (*ANY, one_statement(STATEMENTS))),
        ("checkpoints/000000040.safetensors", (*ANY, one_header)),
    ],
)
def test_damage_is_reported_in_one_line_or_does_no_harm(ended, file, mutations):
    before, expected, told = (ended / file).read_bytes(), content(ended), 0
    for number in range(CASES):
        rng = random.Random(f"{file} {number}")
        (ended / file).write_bytes(rng.choice(mutations)(before, rng))
        try:
            found = content(ended)
        except StagelensError as error:
            assert "\n" not in str(error)
            told += 1
        else:
            assert found == expected, number
        for beside in ended.glob("timeline.sqlite-*"):
            beside.unlink()
    assert told > CASES / 2


def test_a_digit_changed_in_a_manifest_is_reported_and_one_without_a_checksum_opens(ended):
    path = ended / "run.json"
    text = path.read_text()
    path.write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(EnvironmentFault, match="does not match its checksum"):
        load_manifest(ended)
    path.write_text(
        "\n".join(line for line in text.splitlines() if CHECKSUM not in line).replace('"format": 1,', '"format": 1')
    )
    assert load_manifest(ended).seed == 0


@pytest.mark.parametrize("loss", ["rows", "everything", "the file"])
def test_measurements_that_are_gone_from_a_run_that_ended_are_reported(ended, loss):
    if loss == "the file":
        (ended / "timeline.sqlite").unlink()
    else:
        store = Store(ended)
        store.forget_after(10 if loss == "rows" else -1)
        store.close()
    with pytest.raises(EnvironmentFault, match="not those that the run ended with"):
        sl.load(ended).timeline  # noqa: B018


def test_the_timeline_and_the_checkpoint_of_another_run_are_reported(whole, ended):
    name = "checkpoints/000000040.safetensors"
    shutil.copy(whole.parent / "other" / name, ended / name)
    with pytest.raises(EnvironmentFault, match="another config or seed"):
        sl.load(ended, task=Regression).model_at()
    shutil.copy(whole.parent / "other" / "timeline.sqlite", ended)
    with pytest.raises(EnvironmentFault, match="not those that the run ended with"):
        sl.load(ended).timeline  # noqa: B018


def test_the_checkpoint_of_another_step_is_reported(ended):
    first, last = (checkpoint.path_of(ended, step) for step in (0, 40))
    shutil.copy(first, last)
    with pytest.raises(EnvironmentFault, match="it is of step '0'"):
        sl.load(ended, task=Regression).model_at()


def test_a_run_that_is_written_while_it_is_open_does_not_count_as_damaged(ended):
    opened = sl.load(ended)
    manifest = load_manifest(ended)
    manifest.status, manifest.timeline = "running", ""
    manifest.save(ended)
    store = Store(ended)
    store.forget_after(10)
    store.close()
    assert opened.timeline.steps[-1] == 10


def test_a_changed_byte_of_a_tensor_is_reported_and_an_old_checkpoint_opens(tmp_path):
    path = checkpoint.save(tmp_path, 1, "a/b", {"model": {"w": torch.ones(64)}})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x01")
    with pytest.raises(EnvironmentFault, match="does not match its checksum"):
        checkpoint.load(path)
    from safetensors.torch import save_file

    metadata = {
        "stagelens": "1",
        "task": "a/b",
        "step": "1",
        "trees": '{"model": {"$dict": [["w", {"$tensor": "w"}]]}}',
    }
    save_file({"w": torch.ones(3)}, path, metadata)
    assert checkpoint.load(path, "a/b", "anything")["model"]["w"].tolist() == [1, 1, 1]


def test_a_row_lost_in_silence_is_reported_while_a_run_continues(tmp_path):
    """The manifest has no digest yet, so the damage must be detected from the file itself."""
    folder = write_run(tmp_path, "going", {"loss": staircase(STEPS, (200,), (2.0, 1.0))}, status="running").folder
    path = folder / "timeline.sqlite"
    before, expected = path.read_bytes(), [m.step for m in read_measurements(folder)]
    for page in range(1, len(before) // 4096):
        at = 4096 * page + 3  # the count of a page's cells
        path.write_bytes(before[:at] + bytes([before[at], max(0, before[at + 1] - 1)]) + before[at + 2 :])
        try:
            assert [m.step for m in read_measurements(folder)] == expected
        except EnvironmentFault:
            continue


def test_a_sweeps_table_is_sealed(tmp_path):
    path = tmp_path / "sweep.json"
    save_sealed(path, {"table": [{"run": "a", "status": "finished"}]})
    assert load_sealed(path) == {"table": [{"run": "a", "status": "finished"}]}
    path.write_text(path.read_text().replace("finished", "finishee"))
    with pytest.raises(ValueError, match="checksum"):
        load_sealed(path)
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]
