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
from stagelens.models import Hook, Rows, reading
from stagelens.recording.errors import DoesNotApply
from stagelens.recording.precision import as_trained, wide
from stagelens.recording.queries import Queries, read_queries, rows_of

if TYPE_CHECKING:
    from stagelens.models import HookedRootModule

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

    model: HookedRootModule  # the model, or the watched one
    batch: Batch  # the batch that is measured
    step: float = 0  # the step of the measurement
    groups: Mapping[str, Group] = field(default_factory=dict)  # named sets of keys or directions
    induction_target: Group | None = None  # of the task's own sequences
    directions: Mapping[str, Tensor] = field(default_factory=dict)  # named directions, [d_head] each
    references: Mapping[str, Callable[[Batch], Tensor]] = field(default_factory=dict)  # named predictors
    conserved: Callable[[Any], Mapping[str, Tensor]] | None = None  # of the model: quantities that training conserves
    queries: slice = field(default_factory=lambda: slice(None))  # the queries that the loss reads
    loss_function: Loss | None = None  # (model, batch) -> loss
    max_queries: int | None = 128  # queries at which a pattern is read; None: all
    max_sequences: int | None = None  # sequences of the batch whose patterns are read; None: all
    random_batch: bool = False  # the batch is random tokens, on which no loss means anything
    output: Any = None  # of the model in the shared pass; None before it
    loss: Tensor | None = None  # in the shared pass
    n_inputs: int | None = None  # positions of what the model is called on, from the start of the shared pass on
    constants: dict[Any, Any] = field(default_factory=dict, repr=False)
    sampled: dict[str, Queries] = field(default_factory=dict, init=False, repr=False)  # by hook: the block shown
    shared: dict[str, tuple[Tensor, Any]] = field(default_factory=dict, init=False, repr=False)

    def once(self, activation: Tensor, key: str, make: Callable[[], T]) -> T:
        """Returns `make()`, which depends on `activation`: called once per hook for all probes with this `key`."""
        if key not in self.shared or self.shared[key][0] is not activation:
            self.shared[key] = (activation, make())
        return self.shared[key][1]  # type: ignore[no-any-return]

    def constant(self, key: Any, make: Callable[[], T]) -> T:
        """Returns `make()`, called once for all measurements. It may depend on batch and shapes, but not on weights."""
        if key not in self.constants:
            self.constants[key] = make()
        return self.constants[key]  # type: ignore[no-any-return]

    def sites(self, hook: str) -> list[Site]:
        """Returns the hook points that `hook` names: a full name, or a name within a block, which means every block."""

        def find() -> list[Site]:
            return [site for site in map(Site.of, self.model.hook_dict) if hook in (site.name, site.hook)]

        return list(self.constant(("sites", hook), find))

    def queries_at(self, site: Site) -> slice:
        """Returns the queries to read at `site`: in the last layer those that the loss reads, in earlier layers all.

        The later layers read every position of the earlier ones, whatever the loss reads of the output.
        """
        last = self.constant("last layer", lambda: _last_layer(self.model.hook_dict))
        return self.queries if site.layer in (None, last) else slice(None)

    def read_queries(self, site: Site, shape: Sequence[int], device: torch.device) -> Queries:
        """Returns the queries to read of a pattern at `site` of `shape` [batch, head, query, key].

        They are those of `queries_at` that see two keys or more, or a sample of `max_queries` of them.
        """
        n_batch, _, n_query, n_key = shape

        def make() -> Queries:
            visible = self.visible_keys(site.layer, n_query, n_key)
            counts = visible.sum(-1).tolist()
            scored = rows_of(self.queries_at(site), n_query, n_key, repr(site.name))
            rows = [row for row in scored if counts[row] >= 2]
            if not rows:
                raise DoesNotApply(f"no scored query of {site.name!r} sees two keys; its shape is {tuple(shape)}")
            same = (
                "queries",
                tuple(rows),
                visible.cpu().numpy().tobytes(),
                n_batch,
                n_key,
                device,
            )  # in other layers too
            return self.constant(same, lambda: read_queries(rows, visible.to(device), n_batch, self.max_queries))

        return self.constant(("queries", site.name, tuple(shape), device), make)

    def padding(self) -> str | None:
        """Returns why probes that average over positions do not apply: the batch is padded. None if it is not.

        A batch is padded if it is a mapping whose `attention_mask` or `decoder_attention_mask`, [batch, position], has
        zeros. So it is if a watched model hides some keys of some of its sequences from every query.
        """
        hidden = "the model hides some keys in some of its sequences" if getattr(self.model, "is_padded", False) else ""
        for name in ("attention_mask", "decoder_attention_mask"):
            mask = self.batch.get(name) if isinstance(self.batch, Mapping) else None
            if isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask == 0).any()):
                hidden = f"its {name} has {int((mask == 0).sum())} zeros"
        if not hidden:
            return None
        return (
            f"the batch is padded: {hidden}, and padding would count as keys, queries and tokens; measure on sequences "
            "of one length"
        )

    def visible(self, pattern: Tensor, layer: int | None = None) -> Tensor:
        """Returns bool [query, key]: the keys that each query of `pattern` [..., query, key] can attend to.

        They come from the model's method `visible_keys(layer, n_query, n_key)` if it has one. Otherwise they follow
        from its attention modules and `cfg`, as in TransformerLens. With fewer queries than keys, the last query is at
        the last key.
        """
        return self.visible_keys(layer, *pattern.shape[-2:]).to(pattern.device)

    def visible_keys(self, layer: int | None, n_query: int, n_key: int) -> Tensor:
        """Returns bool [query, key]: what `visible` returns for a pattern of that size."""
        shape = (n_query, n_key)
        own = getattr(self.model, "visible_keys", None)
        visible = lens_visible_keys(self.model, layer, *shape) if own is None else own(layer, *shape)
        if not isinstance(visible, Tensor) or (visible.dtype, tuple(visible.shape)) != (torch.bool, shape):
            given = f"{visible.dtype} {list(visible.shape)}" if isinstance(visible, Tensor) else type(visible).__name__
            raise UsageError(
                f"visible_keys({layer}, {shape[0]}, {shape[1]}) of {type(self.model).__name__} gave {given}; "
                f"expected a bool tensor [query, key] of shape {list(shape)}"
            )
        return visible

    def run(self, batch: Batch | None = None, hooks: Sequence[tuple[str, Callable[..., Any]]] = ()) -> Tensor:
        """Makes a pass with `hooks` on; returns the loss, or the model's output if there is no loss function."""
        with self.model.hooks(fwd_hooks=list(hooks)):
            return self.forward(self.batch if batch is None else batch)

    def read(self, hooks: Sequence[Hook], batch: Batch | None = None, rows: Rows | None = None) -> Tensor:
        """Makes a pass whose activations `hooks` read and must not change; returns what `run` returns.

        It is faster than `run` on models that have a fused forward path.
        """
        with reading(self.model, hooks, rows):
            return self.forward(self.batch if batch is None else batch)

    def read_inputs(self, inputs: Any, hooks: Sequence[Hook], rows: Rows | None = None) -> None:
        """Calls the model on `inputs`, whose activations `hooks` read and must not change.

        The fused forward path ends when every hook has read, and computes patterns at `rows` alone.
        """
        with reading(self.model, hooks, rows, stop=True), as_trained():
            self.model(inputs)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss on `batch`, or the model's output if there is no loss function."""
        if self.loss_function is None:
            return self.output_of(batch)
        with as_trained():
            return self.loss_function(self.model, batch)

    def output_of(self, inputs: Any) -> Tensor:
        """Returns the model's output on `inputs`, computed as the training does: under `torch.autocast` if that is on.

        A tensor in bfloat16 or float16 is returned as float32, so that what is made of it is not rounded again.
        """
        with as_trained():
            output: Tensor = self.model(inputs)
        return wide(output) if isinstance(output, Tensor) else output


def causal_keys(n_query: int, n_key: int, window: int | None = None) -> Tensor:
    """Returns bool [query, key]: the keys up to each query's own, or only the last `window` of them.

    With fewer queries than keys, the last query is at the last key.
    """
    last = n_key - n_query  # the first query's own key
    visible = torch.ones(n_query, n_key, dtype=torch.bool).tril(last)
    return visible if window is None else visible.triu(last - window + 1)


def lens_visible_keys(model: Any, layer: int | None, n_query: int, n_key: int) -> Tensor:
    """Returns bool [query, key]: the keys that a layer's queries see, by TransformerLens or the bridged model."""
    if getattr(getattr(model, "cfg", None), "attention_dir", "causal") != "causal":
        return torch.ones(n_query, n_key, dtype=torch.bool)
    visible = causal_keys(n_query, n_key, None if layer is None else _window(model, layer))
    return visible & ~_hidden_own_keys(n_query, n_key) if _hides_own_token(model, layer or 0) else visible


def _hides_own_token(model: Any, layer: int) -> bool:
    """True if the queries of a layer do not see their own keys (`build_transformer(own_token=False)`)."""
    try:
        return not getattr(model.get_submodule(f"blocks.{layer}.attn"), "own_token", True)
    except AttributeError:
        return False


def _hidden_own_keys(n_query: int, n_key: int) -> Tensor:
    """Returns bool [query, key]: each query's own key, except the first key, because its query has no other."""
    query, key = torch.arange(n_key - n_query, n_key)[:, None], torch.arange(n_key)
    return (query == key) & (key > 0)


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
