"""The context: all that a probe can see at one moment of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from stagelens.base import UsageError
from stagelens.experiments import Batch, Group
from stagelens.recording.precision import as_trained, wide

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
class ProbeContext:
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
    n_inputs: int | None = None  # positions of what the model is called on, from the start of the shared pass on
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

    def queries_at(self, site: Site) -> slice:
        """The queries to read at `site`: those that the loss reads in the last layer, all of them in earlier layers.

        The later layers read every position of the earlier ones, whatever the loss reads of the output.
        """
        last = self.constant("last layer", lambda: _last_layer(self.model.hook_dict))
        return self.queries if site.layer in (None, last) else slice(None)

    def padding(self) -> str | None:
        """Why probes that average over positions do not apply: the batch is padded. None if it is not.

        A batch is padded if it is a mapping whose `attention_mask`, [batch, position], has zeros.
        """
        mask = self.batch.get("attention_mask") if isinstance(self.batch, Mapping) else None
        if not isinstance(mask, Tensor) or mask.ndim != 2 or bool((mask != 0).all()):
            return None
        return (
            f"the batch is padded: its attention_mask has {int((mask == 0).sum())} zeros, and padding would count as "
            "keys, queries and tokens; measure on sequences of one length"
        )

    def visible(self, pattern: Tensor, layer: int | None = None) -> Tensor:
        """bool [query, key]: the keys that each query of `pattern` [..., query, key] can attend to.

        A model says so itself in a method `visible_keys(layer, n_query, n_key)`. Of others it follows from their parts
        and `cfg`, as in TransformerLens. With fewer queries than keys, the last query is at the last key.
        """
        shape = tuple(pattern.shape[-2:])
        own = getattr(self.model, "visible_keys", None)
        visible = lens_visible_keys(self.model, layer, *shape) if own is None else own(layer, *shape)
        if not isinstance(visible, Tensor) or (visible.dtype, tuple(visible.shape)) != (torch.bool, shape):
            given = f"{visible.dtype} {list(visible.shape)}" if isinstance(visible, Tensor) else type(visible).__name__
            raise UsageError(
                f"visible_keys({layer}, {shape[0]}, {shape[1]}) of {type(self.model).__name__} gave {given}; "
                f"expected a bool tensor [query, key] of shape {list(shape)}"
            )
        return visible.to(pattern.device)

    def run(self, batch: Batch | None = None, hooks: Sequence[tuple[str, Callable[..., Any]]] = ()) -> Tensor:
        """A further pass with `hooks` on: the loss, or the model's output where no loss is known."""
        with self.model.hooks(fwd_hooks=list(hooks)):
            return self.forward(self.batch if batch is None else batch)

    def forward(self, batch: Batch) -> Tensor:
        """The loss on `batch`, or the model's output where no loss is known."""
        if self.loss_function is None:
            return self.output_of(batch)
        with as_trained():
            return self.loss_function(self.model, batch)

    def output_of(self, inputs: Any) -> Tensor:
        """The model's output on `inputs`, computed as the training does: under `torch.autocast`, if that is on.

        A tensor in bfloat16 or float16 is returned as float32, so that what is made of it is not rounded again.
        """
        with as_trained():
            output: Tensor = self.model(inputs)
        return wide(output) if isinstance(output, Tensor) else output


def causal_keys(n_query: int, n_key: int, window: int | None = None) -> Tensor:
    """bool [query, key]: the keys up to each query's own, or only the last `window` of them.

    With fewer queries than keys, the last query is at the last key.
    """
    last = n_key - n_query  # the first query's own key
    visible = torch.ones(n_query, n_key, dtype=torch.bool).tril(last)
    return visible if window is None else visible.triu(last - window + 1)


def lens_visible_keys(model: Any, layer: int | None, n_query: int, n_key: int) -> Tensor:
    """bool [query, key]: the keys that a layer's queries attend to, by TransformerLens or the model that it bridges."""
    if getattr(getattr(model, "cfg", None), "attention_dir", "causal") != "causal":
        return torch.ones(n_query, n_key, dtype=torch.bool)
    return causal_keys(n_query, n_key, None if layer is None else _window(model, layer))


def _window(model: Any, layer: int) -> int | None:
    """The number of keys that a query of a local layer sees; None if the layer is global.

    The attention's own `attn_type` decides, which `cfg` sets at first. TransformerLens ignores `cfg.attn_types` unless
    `cfg.use_local_attn` is set. A TransformerBridge has neither: there the bridged model's own config decides.
    """
    cfg = getattr(model, "cfg", None)
    bridged = getattr(getattr(model, "original_model", None), "config", None)
    if bridged is not None:
        return hugging_face_window(bridged, layer)
    try:
        kind = model.get_submodule(f"blocks.{layer}.attn").attn_type
    except AttributeError:
        kind = cfg.attn_types[layer] if cfg is not None and getattr(cfg, "use_local_attn", False) else "global"
    return getattr(cfg, "window_size", None) if kind == "local" else None


def hugging_face_window(config: Any, layer: int) -> int | None:
    """The window of a layer by a Hugging Face config, whose `layer_types` or `attention_layers` name the local layers.

    A config that names no kinds of layers means all of them, as Mistral's does.
    """
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if kinds := getattr(config, "attention_layers", None):
        return getattr(config, "window_size", None) if kinds[layer] == "local" else None
    kinds = getattr(config, "layer_types", None)
    local = kinds[layer] == "sliding_attention" if kinds else getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if local else None


def _last_layer(hooks: Iterable[str]) -> int | None:
    return max((site.layer for site in map(Site.of, hooks) if site.layer is not None), default=None)
