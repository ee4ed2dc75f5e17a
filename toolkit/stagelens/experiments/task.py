"""The task: data, model, loss and optimizer under one id, with a validated config and presets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stagelens.experiments.config import Config, TaskConfig
from stagelens.experiments.experiment import Experiment
from stagelens.experiments.groups import Batch, Group

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer

    from stagelens.experiments.schedule import Schedule
    from stagelens.models import HookedRootModule


@dataclass(frozen=True)
class TrainingPhase:
    """A part of the training in which only the parameters whose names match `trains` are updated."""

    name: str
    steps: int
    trains: tuple[str, ...]  # glob patterns of parameter names


class Task(Experiment):
    """Data, model, loss and optimizer of a training. An id and the three abstract methods are enough."""

    Config: ClassVar[type[Config]] = TaskConfig
    probes: ClassVar[Sequence[str] | None] = None  # the names of probes that run in addition to the default ones
    without: ClassVar[Mapping[str, str]] = {}  # probes that have no meaning for this task, each with the reason
    scheduler_every: ClassVar[int] = 1  # training steps per step of the scheduler

    @abstractmethod
    def build_model(self) -> HookedRootModule:
        """The model at its initialization, on the CPU; its randomness comes from `self.seed`."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Batch:
        """Returns `n` sequences drawn with `generator`, on the CPU: the run is evaluated and probed on such a batch."""

    def sample_train(self, n: int, generator: torch.Generator) -> Batch:
        """Returns `n` sequences to train on, drawn with `generator`, on the CPU. Default: as `sample` draws them.

        Override it if training uses another distribution than evaluation. The two may return different types of
        batches if `loss` takes both.
        """
        return self.sample(n, generator)

    @abstractmethod
    def loss(self, model: HookedRootModule, batch: Batch) -> Tensor:
        """The scalar loss of `model` on `batch`. It calls the model once."""

    def optimizer(self, model: HookedRootModule) -> Optimizer:
        """The optimizer of all parameters. Default: Adam at the config's `lr`."""
        import torch

        return torch.optim.Adam(model.parameters(), lr=self.config.lr)

    def batches(self, device: torch.device | str) -> Callable[[int], Batch]:
        """Returns a function from a step to its training batch, on `device`.

        Default: fresh sequences of `sample_train` at every step, or passes over a set of `train_size` of them. A task
        that trains on all of its data at every step, or on their exact moments, returns `FixedBatch(data, device)`.
        """
        from stagelens.experiments.batches import Batches

        return Batches(self, device)

    def scheduler(self, optimizer: Optimizer) -> Any:  # noqa: ARG002
        """Any torch scheduler, stepped every `scheduler_every` steps; ReduceLROnPlateau sees the training loss."""
        return None

    def metrics(self, output: Any, batch: Batch) -> Mapping[str, Tensor | float]:  # noqa: ARG002
        """Scalars of the model's `output` on the evaluation batch, in addition to the loss."""
        return {}

    def phases(self) -> Sequence[TrainingPhase]:
        """Parts of the training that update only some parameters. Default: one part that updates all."""
        return ()

    def groups(self) -> Mapping[str, Group]:
        """Named sets of keys, or of `directions`, that head specialization is measured against."""
        return {}

    def induction_target(self) -> Group | None:
        """The keys that an induction head attends to on the task's own sequences, for the probe `induction`.

        Default: None. Then the probe measures the model on random tokens that repeat.
        """
        return None

    def directions(self) -> Mapping[str, Tensor]:
        """Named directions of the key and query space that alignment is measured against, each [d_head]."""
        return {}

    def references(self) -> Mapping[str, Callable[[Batch], Tensor]]:
        """Named reference predictors: batch -> log-probabilities shaped as the model's output."""
        return {}

    def conserved(self, model: HookedRootModule) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Named quantities that theory says training conserves, of the model's current parameters."""
        return {}

    def queries(self) -> slice:
        """The queries that the loss reads. The probes read these in the last layer, and all queries in earlier ones.

        The slice counts the model's inputs. A model that has fewer queries or outputs has those of the last inputs.
        """
        return slice(None)

    def answers(self, model: HookedRootModule, inputs: Any) -> Tensor:
        """`model(inputs)` at the `queries()`, [batch, query, ...], for the loss; the output has a position per input.

        A model that has a method `answers(inputs, queries)` may skip what these queries do not need. The models of
        `build_transformer` have one.
        """
        answers = getattr(model, "answers", None)
        found: Tensor = model(inputs)[:, self.queries()] if answers is None else answers(inputs, self.queries())
        return found

    def schedule(self) -> Schedule:
        """When to measure."""
        from stagelens.experiments.schedule import Schedule

        return Schedule()
