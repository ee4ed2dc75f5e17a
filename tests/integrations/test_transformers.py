"""The callback for the Hugging Face Trainer: it writes a run with every reading and does not change the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

import stagelens as sl
from kit.own_models import hugging_face, tokens_like_text
from stagelens.integrations.transformers import StagelensCallback

BATCH = {"input_ids": tokens_like_text(), "labels": tokens_like_text()}


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        row = tokens_like_text(1, seed=i)[0]
        return {"input_ids": row, "labels": row}


def letters(text: str) -> dict[str, list[int]]:
    """A tokenizer of single letters."""
    return {"input_ids": [ord(letter) % 20 for letter in text]}


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def train(callbacks: list[Any], folder: str = "saved", resume: str | None = None, tokenizer: Any = None) -> Any:
    model = hugging_face("gpt2")
    arguments = TrainingArguments(
        folder, max_steps=6, save_steps=3, report_to=[], disable_tqdm=True, dataloader_pin_memory=False
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks)
    if tokenizer is not None:
        trainer.callback_handler.processing_class = tokenizer
    trainer.train(resume_from_checkpoint=resume)
    return model


def test_a_trainer_with_the_callback_leaves_a_run_and_the_same_weights() -> None:
    plain = train([], "plain").state_dict()
    callback = StagelensCallback(BATCH, run="mine", schedule=sl.Schedule(log=1, even=3, refine=1))
    measured = train([callback]).state_dict()
    for name, value in plain.items():
        assert torch.equal(value, measured[name]), name
    run = sl.load("mine")
    assert run.status == "finished"
    assert list(run.timeline.steps) == [0, 1, 2, 4, 6]
    assert run.manifest.config["model"] == "GPT2LMHeadModel"
    assert run.manifest.problems == {}
    assert {"loss", "attention_sparsity/sparsity", "induction/prefix_matching"} <= set(run.timeline)
    assert (run.folder / "report.html").exists()


def test_a_trainer_that_resumes_continues_the_run() -> None:
    schedule = sl.Schedule(log=1, even=6, refine=1)
    options: dict[str, Any] = {"run": "mine", "schedule": schedule, "probes": ["induction"]}
    train([StagelensCallback(BATCH, **options)])
    before = sl.load("mine").timeline.series("loss")
    train([StagelensCallback(BATCH, **options)], resume="saved/checkpoint-3")
    run = sl.load("mine")
    assert (run.status, list(run.timeline.steps)) == ("finished", list(range(7)))
    torch.testing.assert_close(torch.tensor(run.timeline.series("loss")), torch.tensor(before), rtol=1e-6, atol=0)


def test_text_is_measured_with_the_trainers_tokenizer() -> None:
    callback = StagelensCallback(text=["hello world", "a longer text"], probes=["attention_sparsity"])
    train([callback], tokenizer=letters)
    assert callback.recorder is not None
    assert callback.recorder.context.batch["input_ids"].shape == (2, 11)
    assert "loss" in callback.recorder.timeline
    one = StagelensCallback(text="hello world", probes=["attention_sparsity"])
    train([one], tokenizer=letters)
    assert one.recorder is not None and one.recorder.context.batch["input_ids"].shape == (1, 11)


def test_mistakes_are_reported_in_one_line() -> None:
    with pytest.raises(sl.StagelensError, match="one of them"):
        StagelensCallback()
    with pytest.raises(sl.StagelensError, match="needs the Trainer's tokenizer"):
        train([StagelensCallback(text=["some text"])])
