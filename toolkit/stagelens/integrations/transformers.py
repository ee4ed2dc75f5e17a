"""A callback for the Hugging Face `Trainer`: the training becomes a run with readings, stages and a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from stagelens.api import Recorder
from stagelens.base import UsageError
from stagelens.experiments import Schedule


class StagelensCallback(TrainerCallback):
    """Measures the model while a Hugging Face `Trainer` trains it, and writes a run.

        from stagelens.integrations.transformers import StagelensCallback

        callback = StagelensCallback(text=["some text", "some more"], run="my-run")
        Trainer(model=model, processing_class=tokenizer, callbacks=[callback], ...).train()

    Args:
        batch: What to measure on: tokens [sequence, position], or keyword arguments of the model. If they include
            `labels`, the model's own loss is recorded.
        text: Texts to measure on instead, which the Trainer's tokenizer (`processing_class`) turns into tokens. All are
            cut to the length of the shortest, so nothing is padded.
        run: The name of the run to write; None measures in memory only, in `callback.recorder`.
        schedule: When to measure. Default: 20 steps evenly spaced in log time and 40 evenly spaced ones.
        options: Of `sl.Recorder`, such as `probes`, `groups` and `runs`.

    A Trainer that resumes from a checkpoint continues the run of this name. In distributed training the main process
    measures and writes.
    """

    def __init__(
        self,
        batch: Any = None,
        *,
        text: Sequence[str] | None = None,
        run: str | None = None,
        schedule: Schedule | None = None,
        **options: Any,
    ) -> None:
        if (batch is None) == (text is None):
            raise UsageError("give the callback batch=tokens or text=[...] to measure on, one of them")
        self.batch, self.text, self.run, self.options = batch, text, run, options
        self.schedule = schedule or Schedule(refine=1)
        self.recorder: Recorder | None = None

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        model: Any = None,
        processing_class: Any = None,
        **_: Any,
    ) -> None:
        """Opens the recorder, and measures the model before its first step."""
        if not state.is_world_process_zero:
            return
        batch = self.batch if self.text is None else tokens_of(self.text, processing_class)
        written: dict[str, Any] = {}
        if self.run is not None:
            written = {"run": self.run, "config": _settings(args, model), "resume": state.global_step > 0}
        self.recorder = Recorder(model, batch=batch, **written, **self.options)
        self._due = set(self.schedule.planned(state.max_steps))
        self._measure(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._measure(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self.recorder is not None:
            self.recorder.finish()

    def _measure(self, state: Any) -> None:
        if self.recorder is not None and state.global_step in self._due:
            self.recorder.measure(state.global_step)


def tokens_of(text: Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Returns the texts as `input_ids` [text, position], cut to the length of the shortest, and as `labels`."""
    import torch

    if tokenizer is None:
        raise UsageError("text= needs the Trainer's tokenizer: give it processing_class=tokenizer, or use batch=tokens")
    rows = [tokenizer(one)["input_ids"] for one in text]
    length = min(map(len, rows), default=0)
    if length < 2:
        raise UsageError(f"the shortest of the {len(rows)} texts has {length} tokens; at least 2 are needed")
    tokens = torch.tensor([row[:length] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


SETTINGS = ("learning_rate", "per_device_train_batch_size", "max_steps", "num_train_epochs", "seed", "weight_decay")


def _settings(args: Any, model: Any) -> dict[str, Any]:
    """The settings that are stored with the run."""
    return {"model": type(model).__name__, **{name: getattr(args, name) for name in SETTINGS}}
