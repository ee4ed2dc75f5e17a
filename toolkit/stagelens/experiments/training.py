"""The training: a model, its optimizer and its data, advanced one step at a time."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stagelens.base import EnvironmentFault, UsageError, derive, seed_everywhere, untouched_rng
from stagelens.experiments.finite import FirstBad
from stagelens.experiments.flow import Diverged
from stagelens.experiments.groups import Batch
from stagelens.experiments.task import Task, TrainingPhase

if TYPE_CHECKING:
    from stagelens.models import HookedRootModule

SMALLER = "try a smaller lr, or clip=1"  # what to do about a loss that diverged


class Training:
    """A task in training. The update of step `s` depends only on the state after step s - 1 and on (seed, s)."""

    def __init__(
        self, task: Task, device: torch.device | str = "cpu", batches: Callable[[int], Batch] | None = None
    ) -> None:
        with untouched_rng():
            torch.manual_seed(derive(task.seed, "init"))
            model = task.build_model()
        from stagelens.models import fast  # the task has imported TransformerLens by now

        self.model = fast(model).to(device)
        self.model.train()
        self.task = task
        self.device = torch.device(device)
        self.optimizer = fused(task.optimizer(self.model))
        self.scheduler = task.scheduler(self.optimizer)
        self.batches = batches or task.batches(device)
        self._phases = _phase_ends(task)
        self._phase: str | None = None
        self.bad = FirstBad(device=device)
        self.loss: torch.Tensor | None = None
        self.gradient_norm: torch.Tensor | None = None
        self.compile_seconds: float | None = None  # None: not compiled
        self._compiled: Callable[[Any, Batch], torch.Tensor] | None = None

    def compile(self) -> None:
        """Compiles the training step with `torch.compile`. Probes, which call the task's loss, are not compiled."""
        if self.device.type == "cpu":
            _need_compiler()
        self._compiled = torch.compile(self.task.loss, dynamic=False, options={"fallback_random": True})
        self.compile_seconds = 0.0

    def advance(self, step: int) -> None:
        """Makes the update of `step` (from 0). Nothing here waits for the device."""
        started = time.perf_counter()
        self.enter_phase(step)
        if not self.model.training:
            self.model.train()
        seed_everywhere(derive(self.task.seed, "step", step))  # dropout
        loss = self._loss_function()(self.model, self.batches(step))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        update(self, step, loss)
        if self.compile_seconds == 0.0:
            self.compile_seconds = time.perf_counter() - started  # the first step is nearly all compilation

    def _loss_function(self) -> Callable[[Any, Batch], torch.Tensor]:
        """Returns the task's loss, compiled if that is wanted and the model has no hooks."""
        if self._compiled is None:
            return self.task.loss
        from stagelens.models import watched

        return self.task.loss if watched(self.model) else self._compiled

    def check(self) -> None:
        """Raises an error with the first step at which the loss was not finite, if there is one."""
        if (step := int(self.bad.look())) >= 0:
            raise Diverged(f"the loss became nan or infinite at step {step}; {SMALLER}")

    def scalars(self) -> dict[str, Any]:
        """Returns the numbers of the training at a measurement: loss, gradient norm, learning rate."""
        known = {"train_loss": self.loss, "gradient_norm": self.gradient_norm}
        rates = {"lr": self.optimizer.param_groups[0]["lr"]} if self.scheduler is not None else {}
        return {name: value for name, value in known.items() if value is not None} | rates

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores, and `load_state` takes."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "loss": self.loss,
            "gradient_norm": self.gradient_norm,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`; raises an error if it does not fit the model."""
        device = self.device
        try:
            self.model.load_state_dict(state["model"])
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"the checkpoint does not fit the model of {self.task.id!r}: {reason}") from None
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.loss = state["loss"].to(device) if state["loss"] is not None else None
        self.gradient_norm = state["gradient_norm"].to(device) if state["gradient_norm"] is not None else None

    def enter_phase(self, step: int) -> None:
        """Enters the training phase of `step`: only its parameters get gradients; the optimizer skips the others."""
        if not self._phases:
            return
        phase = next((phase for end, phase in self._phases if step < end), self._phases[-1][1])
        if phase.name == self._phase:
            return
        matched = False
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(any(fnmatch.fnmatch(name, pattern) for pattern in phase.trains))
            matched |= parameter.requires_grad
        if not matched:
            names = ", ".join(name for name, _ in self.model.named_parameters())
            raise UsageError(
                f"phase {phase.name!r} trains {phase.trains}, which match no parameter; there are: {names}"
            )
        self._phase = phase.name

    def clip(self, most: float) -> torch.Tensor:
        """Scales the gradient to a norm of at most `most`; returns its norm before that, []."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), most)


class Trainer(Protocol):
    """Advances one training, or several that are vectorized over their seeds."""

    task: Task
    optimizer: Optimizer
    scheduler: Any
    bad: FirstBad
    loss: torch.Tensor | None  # of the last step: [], or [seed]
    gradient_norm: torch.Tensor | None

    def enter_phase(self, step: int) -> None: ...

    def advance(self, step: int) -> None: ...

    def clip(self, most: float) -> torch.Tensor: ...


def update(trainer: Trainer, step: int, loss: torch.Tensor) -> None:
    """Makes the update of `step` once the gradients are known: clips them, steps optimizer and scheduler."""
    if trainer.task.config.clip:
        trainer.gradient_norm = trainer.clip(trainer.task.config.clip)
    trainer.optimizer.step()
    step_scheduler(trainer, step, loss)
    trainer.loss = loss.detach()
    trainer.bad.note(step, trainer.loss)


def step_scheduler(trainer: Trainer, step: int, loss: torch.Tensor) -> None:
    """Steps the scheduler if that is due after `step`."""
    if trainer.scheduler is None or (step + 1) % trainer.task.scheduler_every:
        return
    if isinstance(trainer.scheduler, ReduceLROnPlateau):
        trainer.scheduler.step(loss.item())
    else:
        trainer.scheduler.step()


def trained(
    task: Task, device: torch.device | str = "cpu", watch: Callable[[int, Any], None] | None = None
) -> HookedRootModule:
    """Returns the model of `task` after all of its training steps, in evaluation mode. Nothing is written to disk.

        model = trained(MyTask(MyConfig(steps=200), seed=0))

    `watch` is called with (step, model) before the first step and after each step; the model is then in evaluation
    mode and no graph is recorded. Random states outside are left as they were.
    Raises `Diverged` if the loss is not finite at some step.
    """

    def show(step: int) -> None:
        if watch is not None:
            with torch.no_grad():
                watch(step, training.model.eval())

    with untouched_rng(), torch.enable_grad():
        training = Training(task, device)
        show(0)
        for step in range(task.config.steps):
            training.advance(step)
            show(step + 1)
        training.check()
    model: HookedRootModule = training.model.eval()
    return model


def fused(optimizer: Optimizer) -> Optimizer:
    """Returns `optimizer`, set to its fused kernel if it has one and the task did not choose otherwise.

    The fused update is the same up to rounding. For a small model, the loop over parameters takes longer than the
    backward pass. A checkpoint stores the choice.

    The CPU kernel ignores strides. So the loop updates parameters that are not contiguous, and a gradient that is not
    contiguous is copied before the update.
    """
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        for group in optimizer.param_groups:
            open_ = group["fused"] is None and group["foreach"] is None
            plain = not (group["differentiable"] or group["capturable"])
            if open_ and plain and all(_has_kernel(parameter) for parameter in group["params"]):
                group["fused"] = True
    optimizer.register_step_pre_hook(_contiguous)
    return optimizer


def _has_kernel(parameter: torch.Tensor) -> bool:
    return parameter.device.type in ("cpu", "cuda") and parameter.dtype in (torch.float32, torch.float64)


def _contiguous(optimizer: Optimizer, *_: Any) -> None:
    """Before an update: makes the gradients of fused groups contiguous; a group of other parameters is not fused."""
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        if not all(parameter.is_contiguous() for parameter in group["params"]):
            group["fused"] = False
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()


def _need_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise EnvironmentFault(
            "compiling the step needs a C++ compiler, and none was found; install g++ or clang, or do not compile"
        ) from None


def _phase_ends(task: Task) -> list[tuple[int, TrainingPhase]]:
    """Returns each training phase with the step at which it ends."""
    ends, end = [], 0
    for phase in task.phases():
        end += phase.steps
        ends.append((end, phase))
    return ends
