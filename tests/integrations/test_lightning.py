"""The callback for Lightning's Trainer: it writes a run with every reading, and does not change the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import hugging_face, next_token_loss, plain_model, tokens_like_text
from recording.test_own_models import assert_same, states
from stagelens.integrations.lightning import StagelensCallback

TOKENS = tokens_like_text()
EVERY_STEP = sl.Schedule(log=1, even=6, refine=1)


class Module(lightning.LightningModule):
    """A plain model with dropout, as a LightningModule."""

    def __init__(self, lr: float = 1e-2, model: nn.Module | None = None) -> None:
        super().__init__()
        self.save_hyperparameters("lr")
        self.model = model or plain_model("scaled", dropout=0.2)
        self.losses: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = next_token_loss(self, batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def fit(callbacks: list[Any], resume: str | None = None, module: Any = None, **options: Any) -> list[Any]:
    """Returns losses, final weights and random states after six training steps over shuffled rows."""
    torch.manual_seed(0)
    module = module or Module()
    torch.manual_seed(1)
    rows = torch.utils.data.DataLoader(list(tokens_like_text(24)), batch_size=4, shuffle=True)
    settings: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {
        "accelerator": "cpu",
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
    }
    settings |= {"max_steps": 6} | options
    lightning.Trainer(callbacks=callbacks, **settings).fit(module, rows, ckpt_path=resume)
    return [module.losses, {name: value.clone() for name, value in module.state_dict().items()}, states()]


def test_a_trainer_with_the_callback_leaves_a_run_and_the_same_training() -> None:
    callback = StagelensCallback(
        TOKENS, run="mine", loss=next_token_loss, schedule=sl.Schedule(log=1, even=3, refine=1)
    )
    assert_same(fit([]), fit([callback]))
    run = sl.load("mine")
    assert (run.status, list(run.timeline.steps)) == ("finished", [0, 1, 2, 4, 6])
    assert (run.manifest.config["model"], run.manifest.config["lr"]) == ("Module", 1e-2)
    assert (run.manifest.problems, run.manifest.metric) == ({}, "loss")
    assert {"loss", "train_loss", "attention_sparsity/sparsity", "induction/prefix_matching"} <= set(run.timeline)
    assert (run.folder / "report.html").exists()


def test_a_trainer_that_resumes_continues_the_run_and_the_training() -> None:
    def in_two_parts(folder: str, measured: bool) -> list[Any]:
        for resume, steps in ((None, 3), (f"{folder}/step=3.ckpt", 6)):
            callbacks: list[Any] = [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)]
            if measured:
                callbacks.append(StagelensCallback(TOKENS, run="mine", probes=["induction"], schedule=EVERY_STEP))
            trained = fit(callbacks, resume, max_steps=steps)
        return trained

    assert_same(in_two_parts("plain", False), in_two_parts("measured", True))
    run = sl.load("mine")
    assert (run.status, list(run.timeline.steps)) == ("finished", list(range(7)))
    assert run.manifest.config["max_steps"] == 3  # of the training that began it
    saved = [torch.load(f"{name}/step=6.ckpt", weights_only=True)["state_dict"] for name in ("plain", "measured")]
    assert all(torch.equal(value, saved[1][name]) for name, value in saved[0].items())


def test_a_training_that_stops_early_or_fails_keeps_its_measurements() -> None:
    class Failing(Module):
        def training_step(self, batch: Tensor, index: int) -> Tensor:
            if index == 3:
                raise ZeroDivisionError("three")
            return super().training_step(batch, index)

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 5

    with pytest.raises(ZeroDivisionError):
        fit([StagelensCallback(TOKENS, run="failed", schedule=EVERY_STEP, probes=["induction"])], module=Failing())
    run = sl.load("failed")
    assert (run.status, run.manifest.error, list(run.timeline.steps)) == (
        "failed",
        "ZeroDivisionError: three",
        [0, 1, 2, 3],
    )
    few = sl.Schedule(log=1, even=1, refine=1)
    fit([StagelensCallback(TOKENS, run="stopped", schedule=few, probes=["induction"]), Stop()])
    assert list(sl.load("stopped").timeline.steps) == [0, 1, 5]


def test_a_training_of_unknown_length_with_accumulated_gradients() -> None:
    class Endless(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(tokens_like_text(24))

    callback = StagelensCallback(TOKENS, probes=["induction"])
    module = Module()
    loader = torch.utils.data.DataLoader(Endless(), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, loader)
    assert callback.recorder is not None
    timeline = callback.recorder.timeline
    assert list(timeline.steps) == [0, 1, 2, 3, 4, 6] and trainer.global_step == 6
    second = np.array(module.losses)[[1, 3]]  # of two accumulated batches
    np.testing.assert_allclose(timeline.series("train_loss")[1:3], second, rtol=1e-6)


def test_text_reaches_modules_that_take_tokens_and_those_that_take_names() -> None:
    class Named(Module):
        def forward(self, **batch: Tensor) -> Any:
            return self.model(**batch)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self(input_ids=batch, labels=batch).loss

    def letters(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 20 for letter in text]}

    found = []
    for module in (Module(), Named(model=hugging_face("gpt2"))):
        callback = StagelensCallback(text=["hello world", "a text"], tokenizer=letters, probes=["induction"])
        fit([callback], module=module, max_steps=1)
        assert callback.recorder is not None
        found.append(callback.recorder.context.batch)
    assert found[0].shape == found[1]["labels"].shape == (2, 6)


def test_mistakes_are_reported_in_one_line() -> None:
    with pytest.raises(sl.StagelensError, match="one of them"):
        StagelensCallback()
    with pytest.raises(sl.StagelensError, match="tokenizer="):
        fit([StagelensCallback(text=["some text"])])

    class Headless(Module):
        forward = lightning.LightningModule.forward

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return next_token_loss(self.model, batch)

    with pytest.raises(sl.StagelensError, match="forward=function"):
        fit([StagelensCallback(TOKENS)], module=Headless())
    callback = StagelensCallback(TOKENS, forward=lambda module, batch: module.model(batch), probes=["induction"])
    fit([callback], module=Headless(), max_steps=1)
