"""The recorder measures any model in training, and the training is the same as without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import HEADS, LAYERS, hugging_face, next_token_loss, plain_model, tokens_like_text

TOKENS = tokens_like_text()
EVERY = ["attention_sparsity", "head_specialization", "induction", "qk_alignment", "weight_norms", "loss_by_position"]
COSTLY = ["head_ablation", "gradient", "curvature"]
Measure = Callable[[int], Any]


def states() -> tuple[Any, ...]:
    import random

    import numpy as np

    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


def train(model: nn.Module, measure: Measure, loss: Any = next_token_loss, autocast: bool = False) -> list[Any]:
    """Losses, final weights and random states of a short training with dropout."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    losses = []
    for step in range(4):
        measure(step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(model, tokens_like_text(seed=step))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return [losses, {name: value.clone() for name, value in model.state_dict().items()}, states()]


def assert_same(plain: list[Any], measured: list[Any]) -> None:
    assert plain[0] == measured[0]
    assert plain[2] == measured[2]
    for name, value in plain[1].items():
        assert torch.equal(value, measured[1][name]), name


@pytest.mark.parametrize("way", ["scaled", "multihead", "weights", "by hand", "einsum", "folded"])
def test_a_measured_training_is_the_unmeasured_one(way: str) -> None:
    plain = train(plain_model(way, dropout=0.2), lambda step: None)
    model = plain_model(way, dropout=0.2)
    recorder = sl.Recorder(model, [*EVERY, *COSTLY], batch=TOKENS, loss=next_token_loss)
    assert_same(plain, train(model, recorder.measure))
    assert recorder.problems == {}
    assert len(recorder.timeline.steps) == 4


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "bert"])
def test_a_measured_training_of_a_hugging_face_model_is_the_unmeasured_one(kind: str) -> None:
    def loss(model: Any, tokens: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]

    plain = train(hugging_face(kind), lambda step: None, loss)
    model = hugging_face(kind)
    recorder = sl.Recorder(model, EVERY, batch={"input_ids": TOKENS, "labels": TOKENS})
    assert_same(plain, train(model, recorder.measure, loss))
    assert recorder.problems == {}
    assert "loss" in recorder.timeline  # the model's own, on the batch's labels
    expected = {"attention_sparsity/sparsity": (4, LAYERS, HEADS), "induction/copying": (4, LAYERS, HEADS)}
    assert recorder.timeline["weight_norms/head_norm"].shape == (4, 4 * LAYERS, HEADS)
    for name, shape in expected.items():
        assert recorder.timeline[name].shape == shape, name
    omitted = {"bert": {"loss_by_position", "induction/icl_score"}}.get(kind, set())
    assert omitted <= set(recorder.skipped)


@pytest.mark.parametrize("setting", ["compiled", "autocast", "checkpointed", "compiled in place"])
def test_a_measured_training_is_the_unmeasured_one_under(setting: str) -> None:
    def made() -> Any:
        model: Any = hugging_face("gpt2") if setting == "checkpointed" else plain_model("scaled", dropout=0.2)
        if setting == "checkpointed":
            model.gradient_checkpointing_enable()
        if setting == "compiled":
            return torch.compile(model, backend="aot_eager")
        if setting == "compiled in place":
            model.compile(backend="aot_eager")
        return model

    def loss(model: Any, tokens: Tensor) -> Tensor:
        return next_token_loss(lambda x: getattr(out := model(x), "logits", out), tokens)

    autocast = setting == "autocast"
    plain = train(made(), lambda step: None, loss, autocast)
    model = made()
    recorder = sl.Recorder(model, EVERY, batch=TOKENS, loss=loss)
    assert_same(plain, train(model, recorder.measure, loss, autocast))
    assert recorder.problems == {}


def test_a_recorder_sees_the_training_of_a_plain_model() -> None:
    model = plain_model("by hand")
    recorder = sl.Recorder(model, batch=TOKENS, loss=next_token_loss)
    watched = sl.watch(model, TOKENS)
    for step in range(2):
        recorder.measure(step)
        _, cache = watched.run_with_cache(TOKENS)
        pattern = torch.stack([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(LAYERS)])
        top = pattern[:, :, :, 1:].amax(-1).mean((1, 3))
        torch.testing.assert_close(
            torch.tensor(recorder.timeline["attention_sparsity/top_mass"].values[step]).float(), top, atol=1e-5, rtol=0
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)


def test_the_hugging_face_trainer_with_saving_and_resuming(tmp_path: Path) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, i: int) -> dict[str, Tensor]:
            row = tokens_like_text(1, seed=i)[0]
            return {"input_ids": row, "labels": row}

    class Measuring(TrainerCallback):
        def __init__(self, recorder: sl.Recorder) -> None:
            self.recorder = recorder

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.recorder.measure(state.global_step)

    def trained(folder: Path, measured: bool, resume: bool = False) -> dict[str, Tensor]:
        model = hugging_face("gpt2")
        arguments = TrainingArguments(
            str(folder),
            max_steps=6,
            save_steps=3,
            per_device_train_batch_size=4,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        recorder = sl.Recorder(model, EVERY, batch=TOKENS)
        callbacks: list[TrainerCallback] = [Measuring(recorder)] if measured else []
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3") if resume else None)
        assert not measured or recorder.problems == {}
        return {name: value.clone() for name, value in model.state_dict().items()}

    plain = trained(tmp_path / "plain", False)
    for measured in (trained(tmp_path / "measured", True), trained(tmp_path / "measured", True, resume=True)):
        for name, value in plain.items():
            assert torch.equal(value, measured[name]), name


def test_mistakes_are_reported_in_one_line() -> None:
    with pytest.raises(sl.StagelensError, match="given a str; it needs a model"):
        sl.Recorder("gpt2", batch=TOKENS)  # type: ignore[arg-type]
    with pytest.raises(sl.StagelensError, match="needs a batch"):
        sl.Recorder(plain_model("scaled"))
