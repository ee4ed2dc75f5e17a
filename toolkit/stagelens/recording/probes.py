"""The probe: reads a model through hooks at one moment and returns readings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from stagelens.recording.context import ProbeContext, Site
from stagelens.recording.errors import DoesNotApply as DoesNotApply
from stagelens.timelines import Reading, ReadingInfo

Reduced = Mapping[Site, Any]


@dataclass(frozen=True)
class Omitted:
    """A reading that a probe does not give for this model, with the reason; the recorder lists it in `skipped`."""

    name: str
    reason: str


class Probe(ABC):
    """Names the hooks it needs, reduces each activation inside its hook, and turns what is left into readings.

    A probe keeps nothing bigger than what it reports. What it must carry from one measurement to the next goes into
    `self.state`, which is saved with the checkpoints.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    described: ClassVar[Mapping[str, ReadingInfo]] = {}  # what each reading means, for `stagelens probes PROBE`
    gives: ClassVar[tuple[str, ...]] = ()  # names of the readings; unless given, those of `described`
    hooks: ClassVar[tuple[str, ...]] = ()  # full hook names, or names within a block, meaning every block's
    passes: ClassVar[str] = "0"  # forward passes beyond the shared one, as a person would say it
    default: ClassVar[bool] = True
    samples: ClassVar[bool] = False  # reads patterns at `context.read_queries` alone, in blocks, which it can `join`
    stacks: ClassVar[bool] = False  # only tensor operations, which `torch.vmap` can do for several seeds at once

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "described" in vars(cls) and "gives" not in vars(cls):
            cls.gives = tuple(cls.described)

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def applies(self, context: ProbeContext) -> str | None:
        """Returns the reason why the probe does not apply to this model; None if it does apply."""
        for hook in self.hooks:
            if not context.sites(hook):
                return f"the model has no hook {hook!r}"
        return None

    def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Any:
        """Returns what is stored of `activation`. Runs inside the hook at `site`."""
        raise NotImplementedError(f"{type(self).__name__} names hooks but has no reduce()")

    def join(self, parts: Sequence[Any]) -> Any:
        """Returns what is stored of a whole activation, from what `reduce` gave for consecutive blocks of its queries.

        Only a probe that `samples` is given more than one block: the activation at the next of `context.sampled`.
        """
        if len(parts) > 1:
            raise NotImplementedError(f"{type(self).__name__} samples queries but has no join()")
        return parts[0]

    @abstractmethod
    def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading | Omitted]:
        """Yields the readings, from what `reduce` kept of each site, in the order of the model's layers.

        A reading of `gives` that this model cannot have is given as `Omitted(name, reason)`.
        """


def stack_layers(values: Mapping[Site, Tensor] | Sequence[Tensor]) -> Tensor:
    """One tensor per layer, [head, ...] each -> [layer, head, ...]; layers with fewer heads are filled with nan."""
    tensors = list(values.values() if isinstance(values, Mapping) else values)
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    heads = max(tensor.shape[0] for tensor in tensors)
    filled = [tensor.new_full((heads, *tensor.shape[1:]), torch.nan) for tensor in tensors]
    for target, tensor in zip(filled, tensors, strict=True):
        target[: tensor.shape[0]] = tensor
    return torch.stack(filled)


def layers(reduced: Reduced) -> list[int]:
    """The coordinate of a stack over the sites of `reduced`."""
    return [index if site.layer is None else site.layer for index, site in enumerate(reduced)]


def probe(
    hooks: str | Sequence[str], dims: Sequence[str] = (), name: str | None = None, title: str = ""
) -> Callable[[Callable[..., Any]], type[Probe]]:
    """Makes a probe of a function `(activation, context) -> values`; the values of all layers are stacked.

    @sl.probe(hooks="attn.hook_pattern", dims=("head",))
    def first_key(pattern, context):          # pattern: [batch, head, query, key]
        return pattern[..., 0].mean((0, 2))  # one number per head
    """
    needed = (hooks,) if isinstance(hooks, str) else tuple(hooks)

    def decorate(function: Callable[..., Any]) -> type[Probe]:
        label = name or function.__name__

        class FunctionProbe(Probe):
            def reduce(self, activation: Tensor, site: Site, context: ProbeContext) -> Tensor:  # noqa: ARG002
                return torch.as_tensor(function(activation, context))

            def readings(self, reduced: Reduced, context: ProbeContext) -> Iterable[Reading]:  # noqa: ARG002
                values = torch.stack(list(reduced.values())) if not dims else stack_layers(reduced)
                yield Reading("value", values, ("layer", *dims), {"layer": layers(reduced)})

        FunctionProbe.name = label
        FunctionProbe.title = title or next(iter((function.__doc__ or "").strip().splitlines()), "")
        FunctionProbe.gives = ("value",)
        FunctionProbe.hooks = needed
        FunctionProbe.__name__ = FunctionProbe.__qualname__ = label
        FunctionProbe.__module__ = function.__module__
        FunctionProbe.__doc__ = function.__doc__
        return FunctionProbe

    return decorate
