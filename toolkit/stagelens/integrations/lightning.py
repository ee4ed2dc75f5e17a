"""A callback for Lightning's `Trainer`: the training becomes a run with readings, stages and a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from stagelens.integrations.measuring import Measuring

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("Lightning is not installed; pip install lightning") from missing

SETTINGS = ("max_steps", "max_epochs", "accumulate_grad_batches", "precision")


class StagelensCallback(Measuring, Callback):  # type: ignore[misc]
    """Measures a LightningModule while Lightning's `Trainer` trains it, and writes a run.

        from stagelens.integrations.lightning import StagelensCallback

        callback = StagelensCallback(tokens, run="my-run")
        Trainer(callbacks=[callback], ...).fit(module, loader)

    Args:
        batch: What to measure on, as the module's `forward` takes it: tokens [sequence, position], keyword arguments
            in a mapping, or arguments in a tuple.
        text: One or more texts to measure on instead. All are cut to the length of the shortest, so nothing is padded.
        tokenizer: Turns the texts into tokens, as Hugging Face's do.
        run: The name of the run to write; None measures in memory only, in `callback.recorder`.
        schedule: When to measure. Default: 20 steps evenly spaced in log time and 40 evenly spaced ones.
        options: Of `sl.Recorder`: `loss` is a function of module and batch; `forward` calls a module that has no
            `forward` of its own; `probes`, `groups` and `runs`.

    The steps are `trainer.global_step`, and `train_loss` is the loss of the training batch before a measurement. `fit`
    with `ckpt_path` continues the run of this name. In distributed training the first process measures and writes.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the recorder, and measures the module before its first step."""
        if not trainer.is_global_zero:
            return
        settings = {"model": type(pl_module).__name__, **{name: getattr(trainer, name) for name in SETTINGS}}
        settings |= dict(pl_module.hparams)
        self.begin(pl_module, trainer.global_step, trainer.estimated_stepping_batches, settings)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Measures if the optimizer made a step that is one of the schedule's."""
        if self.recorder is None or self.recorder.measurements[-1].step == trainer.global_step:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        scalars = {}
        if isinstance(loss, Tensor) and loss.numel() == 1:
            scalars["train_loss"] = loss.detach() * trainer.accumulate_grad_batches  # Lightning divides by it
        self.measure(trainer.global_step, **scalars)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Measures the last step of a training that stopped early, and writes stages and the report."""
        self.measure_last(trainer.global_step)
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Ends the run of a training that failed or was interrupted; its measurements stay."""
        self.end_with(exception)
