"""Stacking: trains several seeds of one config together, with parameters [seed, ...]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from stagelens.experiments import Batch, FirstBad, Task, Training, fused, update
from stagelens.training.flatten_graph import traced

# Optimizers whose update of a number depends on that number's own gradients alone.
ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam),
    *(torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.ASGD),
)
Function = Callable[..., tuple[Tensor, Sequence[Tensor | None]]]  # -> losses [seed] and gradients
PADDING = "which torch.func.vmap respects in the first seed only"
SHARED = {"step", "mu_product", "eta", "mu"}  # what an optimizer keeps of a whole parameter, not of each number


class NotStackable(Exception):
    """Trainings cannot be vectorized; the message gives the reason."""


class Stacked:
    """Trainings that differ in nothing but the seed, advanced together.

    The members' parameters become views of the stack, so that a member's model is up to date at every step; the rest
    of a member (loss, optimizer, scheduler) is brought up to date by `settle`.
    """

    def __init__(self, members: Sequence[Training]) -> None:
        first = members[0]
        for member in members:
            _refuse(member)
        self.members = list(members)
        self.task = first.task
        self.model = deepcopy(first.model).train()
        named = [dict(member.model.named_parameters()) for member in members]
        self.parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        for name, parameter in self.parameters.items():
            parameter.grad = None
            parameter.data = torch.stack([own[name].detach() for own in named])
            for index, own in enumerate(named):
                own[name].data = parameter.data[index]
        self.optimizer = fused(first.task.optimizer(self.model))
        self._check_groups(first)
        self.scheduler = first.task.scheduler(self.optimizer)
        self._take_over()
        self.loss: Tensor | None = None  # [seed]
        self.gradient_norm: Tensor | None = None  # [seed]
        self.bad = FirstBad((len(members),), first.device)
        self._phase: str | None = None
        self._follow_gradients()
        self._stack_buffers()
        self._batches: _Batches | None = None
        self._lasting = False  # whether the batches so far were always the same, the very tensors
        self._functions: dict[Any, Function] = {}  # by the batch's form, and by what is trained

    def advance(self, step: int) -> None:
        """Makes the update of `step` in every member."""
        self.enter_phase(step)
        update(self, step, self.backward(step))

    def backward(self, step: int) -> Tensor:
        """Returns the losses [seed] of the members on their batches of `step`, and sets `.grad` of each parameter."""
        batches = self._stacked_batch(step)
        trained = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        key = (batches if self._lasting else batches.form, *trained)
        inputs = [*(tensor for tensor, _ in self.state().values()), *batches.leaves]
        if key not in self._functions:
            self._functions[key] = traced(self._with_gradients(batches, trained), inputs, self._fixed(batches))
        with torch.no_grad():
            losses, gradients = self._functions[key](*inputs)
        for parameter in self.parameters.values():
            parameter.grad = None
        for name, gradient in zip(trained, gradients, strict=True):
            self.parameters[name].grad = gradient
        return losses

    def _fixed(self, batches: _Batches) -> range:
        """Returns which inputs are the same at every step: the buffers, and batches that never change."""
        return range(len(self.parameters), len(self.state()) + (len(batches.leaves) if self._lasting else 0))

    def state(self) -> dict[str, tuple[Tensor, int | None]]:
        """Returns the parameters and buffers, each with the dimension of the seed; None if all seeds share it."""
        return {name: (parameter, 0) for name, parameter in self.parameters.items()} | self._buffers

    def settle(self, saving: bool = False) -> None:
        """Copies the stacked parameters back into the members; with `saving`, the optimizer states too."""
        bad = self.bad.look()
        for index, member in enumerate(self.members):
            if self.loss is not None:
                member.loss = self.loss[index]
                member.bad.step = bad[index]
            if self.gradient_norm is not None:
                member.gradient_norm = self.gradient_norm[index]
            _copy_settings(self.optimizer, member.optimizer)
            if saving:
                self._hand_back(index, member)

    def _stacked_batch(self, step: int) -> _Batches:
        """Returns the batches of the members at `step`. Batches that never change are stacked once."""
        batches = [member.batches(step) for member in self.members]
        if self._batches is None:
            self._batches = _Batches(batches)
            self._lasting = self._batches.are([member.batches(step + 1) for member in self.members])
        elif not self._batches.are(batches):
            self._batches, self._lasting = _Batches(batches), False
        return self._batches

    def _stack_buffers(self) -> None:
        """Returns the buffers: those that are equal in all members once, the others as [seed, ...]."""
        buffers = [dict(member.model.named_buffers()) for member in self.members]
        self._buffers: dict[str, tuple[Tensor, int | None]] = {}
        for name, value in buffers[0].items():
            same = all(torch.equal(own[name], value) for own in buffers)
            self._buffers[name] = (value, None) if same else (torch.stack([own[name] for own in buffers]), 0)

    def _with_gradients(self, batches: _Batches, trained: Sequence[str]) -> Function:
        """Returns a function from (*parameters, *buffers, *batch) to losses [seed] and gradients of `trained`."""
        lens = _LossOf(self.task, self.model)
        names = [f"model.{name}" for name in self.state()]
        places = [place for _, place in self.state().values()]
        indices = [list(self.parameters).index(name) for name in trained]

        def loss(*inputs: Tensor) -> Tensor:
            own = dict(zip(names, inputs, strict=False))
            result: Tensor = functional_call(lens, own, (tree_unflatten(list(inputs[len(names) :]), batches.tree),))
            return result

        losses_of = torch.vmap(loss, in_dims=(*places, *[0] * len(batches.leaves)), randomness="different")

        def with_gradients(*inputs: Tensor) -> tuple[Tensor, list[Tensor | None]]:
            free = {index: inputs[index].detach().requires_grad_() for index in indices}
            with torch.enable_grad():
                losses = losses_of(*(free.get(index, tensor) for index, tensor in enumerate(inputs)))
            every = torch.ones_like(losses)  # members share no parameter, so each gets the gradient of its own loss
            found = torch.autograd.grad(losses, list(free.values()), every, allow_unused=True)
            layout = torch.contiguous_format  # that of the parameters; fused optimizers ignore strides
            return losses.detach(), [None if one is None else one.clone(memory_format=layout) for one in found]

        return with_gradients

    def enter_phase(self, step: int) -> None:
        """Enters the training phase of `step` in every member."""
        for member in self.members:
            member.enter_phase(step)
        if (phase := self.members[0]._phase) != self._phase:
            self._phase = phase
            self._follow_gradients()

    def _follow_gradients(self) -> None:
        """Makes the stack train the parameters that the first member trains."""
        for name, parameter in self.members[0].model.named_parameters():
            self.parameters[name].requires_grad_(parameter.requires_grad)

    def clip(self, most: float) -> Tensor:
        """Clips the gradient of each member to the norm `most`, as `clip_grad_norm_` does. Returns the norms [seed]."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack(
            [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients]
        )  # [parameter, seed]
        total: Tensor = torch.linalg.vector_norm(norms, dim=0)
        scale = (most / (total + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
        return total

    def _check_groups(self, first: Training) -> None:
        """Raises an error unless the optimizer treats a stacked parameter as it treats that of one member."""
        own = _group_names(first.optimizer, first.model)
        if own != _group_names(self.optimizer, self.model):
            raise NotStackable("its optimizer groups parameters by their shape")

    def _take_over(self) -> None:
        """Copies the optimizer and scheduler states of the members into those of the stack, as after a checkpoint."""
        states = [_states(member.optimizer, member.model) for member in self.members]
        for name, values in states[0].items():
            shape = self.parameters[name].shape[1:]
            self.optimizer.state[self.parameters[name]] = {
                key: torch.stack([state[name][key] for state in states])
                if isinstance(value, Tensor) and value.shape == shape and key not in SHARED
                else deepcopy(value)
                for key, value in values.items()
            }
        _copy_settings(self.members[0].optimizer, self.optimizer)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(self.members[0].scheduler.state_dict())

    def _hand_back(self, index: int, member: Training) -> None:
        own = dict(member.model.named_parameters())
        for name, values in _states(self.optimizer, self.model).items():
            shape = self.parameters[name].shape
            member.optimizer.state[own[name]] = {
                key: value[index] if isinstance(value, Tensor) and value.shape == shape else deepcopy(value)
                for key, value in values.items()
            }
        if self.scheduler is not None:
            member.scheduler.load_state_dict(self.scheduler.state_dict())


class _Batches:
    """The batches of the members, `own`, as tensors [seed, ...], and the structure of a batch."""

    def __init__(self, own: list[Batch]) -> None:
        leaves, trees = zip(*(tree_flatten(batch) for batch in own), strict=True)
        if not all(isinstance(leaf, Tensor) for one in leaves for leaf in one):
            raise NotStackable("its batches are not made of tensors alone")
        self.own, self._versions = own, _versions(own)
        self.leaves, self.tree = [torch.stack(one) for one in zip(*leaves, strict=True)], trees[0]
        self.form = (str(self.tree), *(leaf.shape for leaf in self.leaves))

    def are(self, batches: list[Batch]) -> bool:
        """Returns True if `batches` are the stacked objects, and their tensors were not changed in place since."""
        same = all(a is b for a, b in zip(batches, self.own, strict=True))
        return same and None not in self._versions and _versions(batches) == self._versions


class _LossOf(nn.Module):
    """batch -> the task's loss of `model`, as a module: its parameters can then be put in from outside."""

    def __init__(self, task: Task, model: Any) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model, batch)


def _versions(batches: list[Batch]) -> list[int | None]:
    """Returns the version counter of each tensor; None if torch has none."""
    leaves = [leaf for batch in batches for leaf in tree_leaves(batch)]
    return [None if leaf.is_inference() else leaf._version for leaf in leaves]


def _refuse(first: Training) -> None:
    if type(first.optimizer) not in ELEMENTWISE:
        raise NotStackable(f"its optimizer {type(first.optimizer).__name__} does not act on each number alone")
    if isinstance(first.scheduler, ReduceLROnPlateau):
        raise NotStackable("its learning rate follows the loss of each seed")
    if type(first).advance is not Training.advance:
        raise NotStackable("it has its own training loop")
    for name, module in first.model.named_modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            raise NotStackable(f"its embedding {name!r} has a padding_idx, {PADDING}")
    for one, other in _overlapping(first.model):
        raise NotStackable(f"its {one!r} and {other!r} share memory")


def _overlapping(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Pairs of different tensors of `model` in the same memory, at least one of them a parameter.

    A parameter that has several names is one tensor: it stays one in the stack.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    owners: dict[int, str] = {}
    for name, tensor in (parameters | buffers).items():
        owner = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
        if owner != name and owner in parameters and tensor.numel():
            yield owner, name


def _group_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]


def _states(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns the optimizer state of each parameter, by name."""
    return {name: state for name, p in model.named_parameters() if (state := optimizer.state.get(p))}


def _copy_settings(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """Returns the settings of each parameter group, such as the learning rate."""
    for ours, theirs in zip(source.param_groups, target.param_groups, strict=True):
        theirs.update({key: value for key, value in ours.items() if key != "params"})
