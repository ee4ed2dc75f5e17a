"""What the callbacks for other libraries' loops share: what to measure on, when, and the run that is written."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stagelens.api import Recorder
from stagelens.base import UsageError
from stagelens.experiments import Schedule
from stagelens.runs import FILE, Status, runs_folder

UNKNOWN = 1000  # at least so many steps are planned if the length of the training is unknown


class Measuring:
    """A recorder that opens when a training begins, measures at the steps of a schedule, and ends with the training.

    The arguments are those of the callbacks. `recorder` is None before the training, and on other processes than the
    first.
    """

    recorder: Recorder | None = None

    def __init__(
        self,
        batch: Any = None,
        *,
        text: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        run: str | None = None,
        schedule: Schedule | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if (batch is None) == (text is None):
            raise UsageError("give the callback batch=tokens or text=[...] to measure on, one of them")
        self.batch, self.text, self.tokenizer = batch, text, tokenizer
        self.run, self.options = run, options
        self.schedule = schedule or Schedule(refine=1)

    def begin(self, model: nn.Module, step: int, steps: float | None, settings: Mapping[str, Any]) -> None:
        """Opens the recorder at `step` of a training of `steps`, and measures. None: their number is unknown."""
        self.end("interrupted")  # of an earlier training, which raised
        batch = self.batch
        if self.text is not None:
            batch = as_taken(model, tokens_of(self.text, self.tokenizer))
        written: dict[str, Any] = {}
        if self.run is not None:
            there = (runs_folder(self.options.get("runs")) / self.run / FILE).exists()
            written = {"run": self.run, "resume": step > 0, "config": None if there and step > 0 else settings}
        self.recorder = Recorder(model, batch=batch, **written | self.options)
        self._steps = None if steps is None or steps < 1 or math.isinf(steps) else int(steps)
        self.measure(step)

    def measure(self, step: int, **scalars: Any) -> None:
        """Measures if `step` is one of the schedule's."""
        steps = self._steps or max(UNKNOWN, 10 ** len(str(step)))
        if self.recorder is not None and step in self.schedule.planned(steps):
            self.recorder.measure(step, **scalars)

    def measure_last(self, step: int) -> None:
        """Measures at the end of the training, unless it was just done."""
        if self.recorder is not None and self.recorder.measurements[-1].step != step:
            self.recorder.measure(step)

    def end(self, status: Status = "finished", error: str = "") -> None:
        """Ends the run, if one is open: with stages, figures and the report if it is finished."""
        if self.recorder is not None:
            self.recorder.finish(status, error)

    def end_with(self, error: BaseException) -> None:
        """Ends the run of a training that raised `error`."""
        if self.recorder is not None:
            self.recorder.__exit__(type(error), error, error.__traceback__)


def tokens_of(text: str | Sequence[str], tokenizer: Any) -> torch.Tensor:
    """Returns one or more texts as tokens [text, position], cut to the length of the shortest: nothing is padded."""
    if tokenizer is None:
        raise UsageError(
            "text= needs the Trainer's tokenizer: give the callback tokenizer=, or the Hugging Face Trainer "
            "processing_class=, or use batch=tokens"
        )
    rows = [tokenizer(one)["input_ids"] for one in ([text] if isinstance(text, str) else text)]
    length = min(map(len, rows), default=0)
    if length < 2:
        raise UsageError(f"the shortest of the {len(rows)} texts has {length} tokens; at least 2 are needed")
    return torch.tensor([row[:length] for row in rows])


def as_taken(model: nn.Module, tokens: torch.Tensor) -> Any:
    """Returns tokens as the model takes them: with `labels` if it has Hugging Face's argument names, else alone."""
    named = {"input_ids": tokens, "labels": tokens}
    try:
        inspect.signature(model.forward).bind(**named)
    except TypeError:
        return tokens
    return named
