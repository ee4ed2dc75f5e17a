"""The scene: all that a probe can see at one moment of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from stagelens.task import Batch, Group

if TYPE_CHECKING:
    from transformer_lens import HookedRootModule

Loss = Callable[[Any, Batch], Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """A hook point: its full name, the layer it belongs to (None outside the blocks), and its name in the block."""

    name: str
    layer: int | None
    hook: str

    @classmethod
    @lru_cache(maxsize=4096)
    def of(cls, name: str) -> Site:
        parts = name.split(".", 2)
        if parts[0] == "blocks" and len(parts) == 3 and parts[1].isdigit():
            return cls(name, int(parts[1]), parts[2])
        return cls(name, None, name)


@dataclass
class Scene:
    """Model and batch at `step`, what the task knows about them, and after the shared pass its output and loss."""

    model: HookedRootModule
    batch: Batch
    step: float = 0
    groups: Mapping[str, Group] = field(default_factory=dict)
    directions: Mapping[str, Tensor] = field(default_factory=dict)
    references: Mapping[str, Callable[[Batch], Tensor]] = field(default_factory=dict)
    conserved: Callable[[Any], Mapping[str, Tensor]] | None = None
    queries: slice = field(default_factory=lambda: slice(None))
    loss_function: Loss | None = None
    random_batch: bool = False  # the batch is random tokens, on which no loss means anything
    output: Any = None
    loss: Tensor | None = None
    constants: dict[Any, Any] = field(default_factory=dict, repr=False)
    shared: dict[str, tuple[Tensor, Any]] = field(default_factory=dict, init=False, repr=False)

    def once(self, activation: Tensor, key: str, make: Callable[[], T]) -> T:
        """What `make` makes of `activation`, made once for all probes that ask for `key` within one hook."""
        of, made = self.shared.get(key, (None, None))
        if of is not activation:
            made = make()
            self.shared[key] = (activation, made)
        return made  # type: ignore[return-value]

    def constant(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` makes, made once for all measurements: of the batch, of masks and shapes, never of parameters."""
        if key not in self.constants:
            self.constants[key] = make()
        return self.constants[key]  # type: ignore[no-any-return]

    def sites(self, hook: str) -> list[Site]:
        """The model's hook points that `hook` means: a full name, or the name within a block, of every block."""
        sites = [Site.of(name) for name in self.model.hook_dict]
        return [site for site in sites if hook in (site.name, site.hook)]

    def visible(self, pattern: Tensor, layer: int | None = None) -> Tensor:
        """bool [query, key]: the keys that each query of `pattern` [..., query, key] can attend to.

        It follows from the model's `cfg` as in TransformerLens (causal unless it says otherwise, local windows
        included). With fewer queries than keys, the last query stands at the last key.
        """
        n_query, n_key = pattern.shape[-2:]
        cfg = getattr(self.model, "cfg", None)
        visible = torch.ones(n_query, n_key, dtype=torch.bool, device=pattern.device)
        if getattr(cfg, "attention_dir", "causal") == "causal":
            visible = visible.tril(n_key - n_query)
            types = getattr(cfg, "attn_types", None)
            if types and layer is not None and types[layer] == "local":
                visible = visible.triu(n_key - n_query - cfg.window_size + 1)  # type: ignore[union-attr]
        return visible

    def run(self, batch: Batch | None = None, hooks: Sequence[tuple[str, Callable[..., Any]]] = ()) -> Tensor:
        """A further pass with `hooks` on: the loss, or the model's output where no loss is known."""
        with self.model.hooks(fwd_hooks=list(hooks)):
            return self.forward(self.batch if batch is None else batch)

    def forward(self, batch: Batch) -> Tensor:
        """The loss on `batch`, or the model's output where no loss is known."""
        if self.loss_function is not None:
            return self.loss_function(self.model, batch)
        output: Tensor = self.model(batch)
        return output
