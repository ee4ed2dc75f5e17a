"""A callback for the Hugging Face `Trainer`: the training becomes a run with readings, stages and a report."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from stagelens.integrations.measuring import Measuring

SETTINGS = ("learning_rate", "per_device_train_batch_size", "max_steps", "num_train_epochs", "seed", "weight_decay")


class StagelensCallback(Measuring, TrainerCallback):
    """Measures the model while a Hugging Face `Trainer` trains it, and writes a run.

        from stagelens.integrations.transformers import StagelensCallback

        callback = StagelensCallback(text=["some text", "some more"], run="my-run")
        Trainer(model=model, processing_class=tokenizer, callbacks=[callback], ...).train()

    Args:
        batch: What to measure on: tokens [sequence, position], or keyword arguments of the model. If they include
            `labels`, the model's own loss is recorded.
        text: One or more texts to measure on instead. All are cut to the length of the shortest, so nothing is padded.
        tokenizer: Turns the texts into tokens. Default: the Trainer's own (`processing_class`).
        run: The name of the run to write; None measures in memory only, in `callback.recorder`.
        schedule: When to measure. Default: 20 steps evenly spaced in log time and 40 evenly spaced ones.
        options: Of `sl.Recorder`, such as `probes`, `groups` and `runs`.

    A Trainer that resumes from a checkpoint continues the run of this name. In distributed training the main process
    measures and writes.
    """

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
        self.tokenizer = self.tokenizer or processing_class
        settings = {"model": type(model).__name__, **{name: getattr(args, name) for name in SETTINGS}}
        self.begin(model, state.global_step, state.max_steps, settings)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Measures if the step is one of the schedule's."""
        self.measure(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Measures the last step of a training that stopped early, and writes stages and the report."""
        if not args.load_best_model_at_end:  # otherwise the model is that of another step by now
            self.measure_last(state.global_step)
        self.end()
