"""A watched model: any PyTorch model with hook points where it attends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from stagelens.base import UsageError, untouched_rng
from stagelens.models.watching.calling import Forward, call_model, logits_of, tokens_of, unwrapped
from stagelens.models.watching.discovery import Call, blocks_of, find_attention
from stagelens.models.watching.points import AttentionPoints, HookedSeam
from stagelens.models.watching.seam import Tracker
from stagelens.models.watching.structure import Structure, find_structure

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "block_size", "n_ctx")  # of a model's own config
LOOKED_FOR = "F.scaled_dot_product_attention, nn.MultiheadAttention, or a softmax over [batch, head, query, key]"


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
        self._seeing = False
        calls = self._find_attention(example)
        self.layers = self._add_attention(calls)  # the self-attentions
        self._blocks = blocks_of([site.call.path for site in self.layers]) or []
        for block in self.blocks[: len(self._blocks)]:
            block.hook_resid_pre, block.hook_resid_post = HookPoint(), HookPoint()
        self.setup()
        self.structure = self._find_structure(example)
        self._add_structure()
        self.setup()
        self.cfg = self._config()
        delattr(self, "model")
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the logits of the user's model on a batch, or on its own keyword arguments."""
        hooked = any(point.fwd_hooks or point.bwd_hooks for point in self.hook_points())
        with self._seam() if hooked else uncompiled():
            if len(args) == 1 and not kwargs:
                return self._forward(self.model, args[0])
            return logits_of(self.model(*args, **kwargs))

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
        if loss is None:
            return None
        chosen = loss

        def on_own_model(watched: Watched, batch: Any) -> Tensor:
            with uncompiled(), _twice_differentiable():
                return chosen(watched.model, batch)

        return on_own_model

    def visible_keys(self, layer: int, n_query: int, n_key: int) -> Tensor:
        """bool [query, key]: the keys that the queries of a layer can attend to."""
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
                calls = find_attention(self.model, lambda: self._logits(example))
            except UsageError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise UsageError(
                    f"{name} cannot be called on the batch ({reason}); give a batch that it takes, or "
                    "forward=function(model, batch) that returns logits"
                ) from error
        if all(call.cross for call in calls):
            raise UsageError(
                f"no attention was seen in {name} on the batch: looked for {LOOKED_FOR}; flash-attn and flex kernels "
                "cannot be seen, so load the model with sdpa or eager attention"
            )
        return calls

    def _logits(self, batch: Any) -> Any:
        logits = self._forward(self.model, batch)
        if self._forward is not call_model and not isinstance(logits, Tensor):
            raise UsageError(f"forward returned a {type(logits).__name__}; it must return logits, a tensor")
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
        caught: dict[str, Tensor] = {}

        def catch(value: Tensor, hook: Any) -> None:
            caught.setdefault(hook.name.rpartition(".")[2], value.detach().clone())

        names = [name for name in self.hook_dict if name.startswith("blocks.0.attn.hook_") and name[-2:] in HEADS]

        def run() -> tuple[Any, Mapping[str, Tensor]]:
            with self.hooks(fwd_hooks=[(name, catch) for name in names]):
                return self._forward(self.model, example), caught

        with at_rest(self.model):
            return find_structure(self.model, self._blocks, self.layers[0].call.path, tokens_of(example), run)

    def _add_structure(self) -> None:
        """Adds the hook points of the parts that were found, and lets every layer read its matrices."""
        parts = self.structure
        if parts.final_norm is not None:
            self.ln_final = nn.Module()
            self.ln_final.hook_normalized = HookPoint()
        for block, path, site in zip(self.blocks, self._blocks, self.layers, strict=False):
            if parts.branches is not None:
                block.hook_attn_out, block.hook_mlp_out = HookPoint(), HookPoint()
            site.connect(
                self.model,
                {name: (one.moved(self._blocks[0], path), rows) for name, (one, rows) in parts.heads.items()},
            )

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
        if self._seeing:
            yield
            return
        attending = {site.call.path for site in self._sites}
        tracker = Tracker(self.model, {path: one for path, one in self.model.named_modules() if path in attending})
        self._seeing = True
        try:
            with ExitStack() as stack:
                stack.enter_context(uncompiled())
                stack.enter_context(tracker.following())
                for handle in self._stream_hooks():
                    stack.callback(handle.remove)
                stack.enter_context(HookedSeam(tracker, self._sites))
                yield
        finally:
            self._seeing = False

    def _stream_hooks(self) -> Iterator[Any]:
        """Registers forward hooks that pass the residual stream through its hook points; yields their handles."""
        for block, path in zip(self.blocks, self._blocks, strict=False):
            module = self.model.get_submodule(path)
            yield module.register_forward_pre_hook(into(block.hook_resid_pre), with_kwargs=True)
            yield module.register_forward_hook(out_of(block.hook_resid_post))
            if hasattr(block, "hook_attn_out") and self.structure.branches is not None:
                attn, mlp = (self.model.get_submodule(f"{path}.{name}") for name in self.structure.branches)
                yield attn.register_forward_hook(out_of(block.hook_attn_out))
                yield mlp.register_forward_hook(out_of(block.hook_mlp_out))
        if hasattr(self, "ln_final") and self.structure.final_norm is not None:
            norm = self.model.get_submodule(self.structure.final_norm)
            yield norm.register_forward_hook(out_of(self.ln_final.hook_normalized))


def _twice_differentiable() -> AbstractContextManager[Any]:
    """With gradients, attention uses torch's plain kernel: the fused ones have no second derivatives."""
    return sdpa_kernel(SDPBackend.MATH) if torch.is_grad_enabled() else nullcontext()


def _own_loss(model: Any, batch: Mapping[str, Any]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


MATRICES = ("W_Q", "W_K", "W_V", "W_O")
HEADS = ("_q", "_k", "_v", "_z")  # ends of the names of the hook points that have a dimension for heads


def into(point: HookPoint) -> Callable[..., Any]:
    """Returns a forward pre-hook that passes a module's first argument through `point`."""

    def started(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
        if args:
            return (point(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: point(kwargs[name])}

    return started


def out_of(point: HookPoint) -> Callable[..., Any]:
    """Returns a forward hook that passes a module's output, or the first entry of a tuple, through `point`."""

    def ended(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001
        if isinstance(output, tuple):
            return (point(output[0]), *output[1:])
        return point(output)

    return ended


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients. Modes and random states are left as found."""
    modes = [(module, module.training) for module in model.modules()]
    with untouched_rng(), torch.no_grad():
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs compiled functions as they were written, and PyTorch's encoder layers without their fused kernel."""
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        yield
