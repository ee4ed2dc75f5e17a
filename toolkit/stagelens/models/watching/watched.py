"""A watched model: any PyTorch model with hook points where it attends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stagelens.base import UsageError
from stagelens.models.lens import HookedRootModule, HookPoint
from stagelens.models.watching.calling import (
    Forward,
    call_model,
    described,
    is_sharded,
    logits_of,
    loss_of,
    name_of_tokens,
    tokens_of,
    unwrapped,
)
from stagelens.models.watching.discovery import Call, find_attention
from stagelens.models.watching.modes import at_rest, twice_differentiable, uncompiled
from stagelens.models.watching.points import AttentionPoints, HookedSeam, into, out_of
from stagelens.models.watching.seam import Tracker
from stagelens.models.watching.structure import Structure, find_structure, first_tensor

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "block_size", "n_ctx")  # of a model's own config
LOGITS = "[batch, position, token]"
LOOKED_FOR = (
    "F.scaled_dot_product_attention, nn.MultiheadAttention, or torch's softmax over the keys between two products of "
    "matrices; flash-attn and flex kernels, attention inside torch.vmap, a softmax written with exp, and one over "
    "chunks of keys cannot be seen"
)


def watch(model: nn.Module, example: Any, forward: Forward | None = None) -> Watched:
    """Returns `model` with TransformerLens' hook points where it attends. The model itself is not changed.

        watched = sl.watch(model, tokens)
        logits, cache = watched.run_with_cache(tokens)
        cache["blocks.0.attn.hook_pattern"]        # [batch, head, query, key]

    Args:
        model: A Hugging Face model, or any `nn.Module` that attends through `F.scaled_dot_product_attention`,
            `nn.MultiheadAttention`, or a matrix product, a softmax and another product. A model that is compiled or
            wrapped for distributed training is unwrapped.
        example: A batch. Two passes over it find where the model attends.
        forward: Calls the model on a batch and returns logits [batch, position, token]. Default: a mapping is passed as
            keyword arguments, a tuple as positional ones, and logits are the output, its `logits` or its first entry.

    Between two uses nothing is installed in the model, so its training computes what it did before.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("the model was compiled by torch.jit, which hides its attention; watch the model before that")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("the model's parameters have no values (device 'meta'); load its weights before you watch it")
    if is_sharded(model):
        raise UsageError(
            "the model's parameters are split over processes (FSDP, tensor parallel or DeepSpeed), so that no process "
            "can measure it alone; measure saved checkpoints with `stagelens probe DIRECTORY`"
        )
    return Watched(unwrapped(model), example, forward)


@dataclass(frozen=True)
class WatchedConfig:
    """What probes read of a watched model, under TransformerLens' names."""

    n_layers: int
    n_heads: int
    n_ctx: int
    d_head: int | None
    d_vocab: int | None  # None: no embedding of the batch's tokens was found
    attention_dir: Literal["causal", "bidirectional"]


class Watched(HookedRootModule):  # type: ignore[misc]
    """A model with hook points. `model` is the user's own; calling this gives its logits.

    `run_with_cache`, `run_with_hooks` and `hooks` work as in TransformerLens. Inside `with watched.hooks(...)` calls of
    the user's own model pass through the hooks too.
    """

    model: nn.Module

    def __init__(self, model: nn.Module, example: Any, forward: Forward | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "model", model)  # not a submodule yet: `setup` writes a name into every submodule
        self._forward = forward or call_model
        self._tracker: Tracker | None = None  # of the seam that is installed
        self._tokens_name = name_of_tokens(example)
        self._in_tuple = isinstance(example, tuple | list)
        self.structure = Structure()
        self.layers = self._add_attention(self._find_attention(example))  # the self-attentions
        self.setup()
        self.structure = self._find_structure(example)
        self.is_padded = any(site.is_padded for site in self._sites)  # on the example
        self._add_structure()
        self.setup()
        self.cfg = self._config()
        delattr(self, "model")
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the logits of the user's model on a batch, or on its own arguments.

        If batches are mappings or tuples, tokens alone are given to the model in one: under their name there, or first.
        """
        hooked = any(point.fwd_hooks or point.bwd_hooks for point in self.hook_points())
        with self._seam() if hooked else uncompiled():
            if self._tracker is not None:
                self._tracker.restart()
            if len(args) != 1 or kwargs:
                return logits_of(self.model(*args, **kwargs))
            return self._forward(self.model, self._as_batch(args[0]) if isinstance(args[0], Tensor) else args[0])

    def _as_batch(self, tokens: Tensor) -> Any:
        """Returns tokens alone as a batch of the kind of the example."""
        if self._in_tuple:
            return (tokens,)
        return tokens if self._tokens_name is None else {self._tokens_name: tokens}

    @contextmanager
    def hooks(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Adds hooks for as long as a block lasts, for calls of this object and of the user's own model."""
        with super().hooks(*args, **kwargs), self._seam():
            yield self

    def register_forward_pre_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        """Registers the hook on the user's model, which a loss may call instead of this object."""
        return self.model.register_forward_pre_hook(hook, **options)

    def register_forward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:
        """Registers the hook on the user's model. The hook is given the logits."""
        return self.model.register_forward_hook(
            lambda module, args, output: hook(module, args, logits_of(output, strict=False)), **options
        )

    def loss_of(self, loss: Callable[[Any, Any], Tensor] | None, batch: Any) -> Callable[[Any, Any], Tensor] | None:
        """Returns `loss` for this object: it is called with the user's own model.

        If there is none and the batch has `labels`, it is the model's own `loss`, as in Hugging Face models.
        """
        if loss is None and isinstance(batch, Mapping) and "labels" in batch:
            loss = _own_loss
            with at_rest(self.model):
                loss(self.model, batch)  # so that a model without a loss is an error here
        if loss is None:
            return None
        chosen = loss

        def on_own_model(watched: Watched, batch: Any) -> Tensor:
            with uncompiled(), twice_differentiable():
                return chosen(watched.model, batch)

        return on_own_model

    def visible_keys(self, layer: int, n_query: int, n_key: int) -> Tensor:
        """Returns bool [query, key]: the keys that the queries of a layer can attend to."""
        return self.layers[layer].visible(n_query, n_key)

    @property
    def W_E(self) -> Tensor | None:
        """The embedding [token, d_model]; None if it was not found."""
        found = self.structure.embedding
        return None if found is None else found.matrix(self.model)

    @property
    def W_U(self) -> Tensor | None:
        """The unembedding [d_model, token]; None if it was not found."""
        found = self.structure.unembedding
        return None if found is None else found.matrix(self.model).mT

    def head_matrices(self) -> dict[str, Tensor]:
        """Returns the matrices of heads that were found: W_Q, W_K, W_V and W_O of each layer, by name."""
        return {
            f"blocks.{layer}.attn.{name}": matrix
            for layer, site in enumerate(self.layers)
            for name in MATRICES
            if (matrix := site.matrix(name)) is not None and len(matrix) == self.cfg.n_heads
        }

    def _find_attention(self, example: Any) -> list[Call]:
        name = type(self.model).__name__
        with at_rest(self.model):
            try:
                given = first_tensor(tokens_of(example) if tokens_of(example) is not None else example)
                sizes = () if given is None else tuple(given.shape)
                calls = find_attention(self.model, lambda: self._logits(example), sizes)
            except UsageError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise UsageError(
                    f"{name} cannot be called on the batch ({reason}); give a batch that it takes, or "
                    "forward=function(model, batch) that returns logits"
                ) from error
        if calls and all(call.cross for call in calls):
            raise UsageError(
                f"no self-attention was seen in {name} on the batch: in every attention the keys are of another source "
                "or number than the queries; give whole sequences, without cached keys"
            )
        if not calls:
            raise UsageError(
                f"no attention was seen in {name} on the batch: looked for {LOOKED_FOR}; load a Hugging Face model "
                "with sdpa or eager attention (attention with sinks, as in gpt-oss, is not supported)"
            )
        return calls

    def _logits(self, batch: Any) -> Any:
        logits = self._forward(self.model, batch)
        wrong = not isinstance(logits, Tensor) or logits.ndim < 2 or not logits.is_floating_point()
        if self._forward is not call_model and wrong:
            kind = f" of {logits.dtype}" if isinstance(logits, Tensor) and logits.ndim > 1 else ""
            raise UsageError(
                f"forward returned {described(logits)}{kind}; it must return logits [batch, position, token], a tensor"
            )
        return logits

    def _add_attention(self, calls: list[Call]) -> list[AttentionPoints]:
        """Adds `blocks.{l}.attn` and `blocks.{l}.cross_attn`; returns the self-attentions, by layer."""
        own = [AttentionPoints(call) for call in calls if not call.cross]
        cross = [AttentionPoints(call) for call in calls if call.cross]
        self.blocks = nn.ModuleList(nn.Module() for _ in range(max(len(own), len(cross))))
        for name, sites in (("attn", own), ("cross_attn", cross)):
            for block, site in zip(self.blocks, sites, strict=False):
                block.add_module(name, site)
        self._sites = own + cross
        return own

    def _find_structure(self, example: Any) -> Structure:
        caught: list[dict[str, Tensor]] = [{} for _ in self.layers]

        def catch(layer: int, name: str) -> Callable[..., None]:
            def ended(value: Tensor, hook: Any) -> None:  # noqa: ARG001  TransformerLens passes it by name
                caught[layer].setdefault(name, value[:, [0, -1]].detach().clone())

            return ended

        hooks = [
            (f"blocks.{layer}.attn.{name}", catch(layer, name))
            for layer, site in enumerate(self.layers)
            for name in HEADS
            if hasattr(site, name)
        ]

        def run() -> tuple[Any, list[dict[str, Tensor]]]:
            with self.hooks(fwd_hooks=hooks):
                return self._forward(self.model, example), caught

        with at_rest(self.model):
            return find_structure(self.model, [site.call for site in self.layers], tokens_of(example), run)

    def _add_structure(self) -> None:
        """Adds the hook points of the parts that were found, and lets every layer read its matrices."""
        parts = self.structure
        if parts.final_norm is not None:
            self.ln_final = nn.Module()
            self.ln_final.hook_normalized = HookPoint()
        for block, branches in zip(self.blocks, parts.branches, strict=False):
            block.hook_resid_pre, block.hook_resid_post = HookPoint(), HookPoint()
            if branches is not None:
                block.hook_attn_out, block.hook_mlp_out = HookPoint(), HookPoint()
        for site, heads in zip(self.layers, parts.heads, strict=True):
            site.connect(self.model, heads)

    def _config(self) -> WatchedConfig:
        calls = [site.call for site in self.layers]
        later = (site.visible(site.call.n_query, site.call.n_key).triu(1) for site in self.layers)
        own = getattr(self.model, "config", None)
        stated = [value for key in CONTEXT_KEYS if isinstance(value := getattr(own, key, None), int)]
        embedding = self.W_E
        return WatchedConfig(
            n_layers=len(calls),
            n_heads=max(call.n_heads for call in calls),
            n_ctx=max([calls[0].n_query, *stated[:1]]),
            d_head=calls[0].d_head,
            d_vocab=None if embedding is None else len(embedding),
            attention_dir="bidirectional" if any(bool(keys.any()) for keys in later) else "causal",
        )

    @contextmanager
    def _seam(self) -> Iterator[None]:
        """Makes attention and residual stream pass through the hook points while the block lasts."""
        if self._tracker is not None:
            yield
            return
        attending = {path for site in self._sites for path, _ in (site.call.place, *(site.call.products or ()))}
        modules = dict(self.model.named_modules())
        children = {path for path in modules if path and path.rpartition(".")[0] in attending}
        tracker = Tracker(self.model, {path: modules[path] for path in attending | children})
        self._tracker = tracker
        try:
            with ExitStack() as stack:
                stack.enter_context(uncompiled())
                stack.enter_context(tracker.following())
                for handle in self._stream_hooks():
                    stack.callback(handle.remove)
                stack.enter_context(HookedSeam(tracker, self._sites))
                yield
        finally:
            self._tracker = None

    def _stream_hooks(self) -> Iterator[Any]:
        """Registers forward hooks that pass the residual stream through its hook points; yields their handles."""
        parts, module_at = self.structure, self.model.get_submodule
        for block, path, branches in zip(self.blocks, parts.blocks, parts.branches, strict=False):
            yield module_at(path).register_forward_pre_hook(into(block.hook_resid_pre), with_kwargs=True)
            yield module_at(path).register_forward_hook(out_of(block.hook_resid_post))
            if branches is not None:
                yield module_at(branches[0]).register_forward_hook(out_of(block.hook_attn_out))
                yield module_at(branches[1]).register_forward_hook(out_of(block.hook_mlp_out))
        if parts.final_norm is not None:
            yield module_at(parts.final_norm).register_forward_hook(out_of(self.ln_final.hook_normalized))


def _own_loss(model: Any, batch: Mapping[str, Any]) -> Tensor:
    loss = loss_of(model(**batch))
    if loss is None:
        raise UsageError(
            f"the batch has labels, but {type(model).__name__} returned no loss; give loss=function(model, batch), or "
            "leave the labels out"
        )
    return loss


MATRICES = ("W_Q", "W_K", "W_V", "W_O")
HEADS = ("hook_q", "hook_k", "hook_v", "hook_z")  # hook points that have a dimension for heads
