"""Models to train from scratch: TransformerLens' HookedTransformer, with what it lacks for training.

`build_transformer` adds dropout, frozen sinusoidal positions, learnable ALiBi slopes and continuous inputs.
Parameters, hook names and tools (`run_with_cache`, ...) are TransformerLens' own. This is the only file
that names `HookedTransformer`, which TransformerLens 4 removes; everything else speaks of hook names.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from stagelens.base import UsageError, generator, unknown
from stagelens.models.lens import REMOVED

try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.HookedTransformer import Output
except ImportError as missing:
    raise UsageError(REMOVED) from missing

from stagelens.models import covered, fast_forward as fast_forward
from stagelens.models.components import MLP, Attention, LinearEmbed, SinusoidalPositions, initial_slopes
from stagelens.models.reading import NO_READERS, Readers

Positions = Literal["learned", "sinusoidal", "alibi", "none"]
Activation = Literal["relu", "gelu", "gelu_new", "silu", "relu2"]
Normalization = Literal["layer", "none"]


class FastTransformer(HookedTransformer):  # type: ignore[misc]
    """A HookedTransformer that trains at the speed of plain PyTorch; made by `build_transformer` and by `fast`.

    A call that asks for logits or a loss, with no hook attached, takes the fused forward path of `fast_forward`. Every
    other call takes TransformerLens' own forward, with all its hook points. So does a model whose config or parts were
    changed to something that `fast_forward` does not cover. The two agree up to rounding; their dropout masks differ.
    """

    readers: Readers = NO_READERS  # who reads the activations of a pass; set by `stagelens.models.reading`
    shows_readers = True  # `forward` is ours, which shows them
    own_helpers = False  # of a subclass, which TransformerLens' way then calls

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.own_helpers = covered.own_helpers(cls)
        cls.shows_readers = cls.forward is FastTransformer.forward

    def forward(self, input: Any, return_type: str | None = "logits", *args: Any, **options: Any) -> Any:
        """Does what TransformerLens' `forward` does, on the fused forward path if it covers the call."""
        readers = self.readers
        if args or options or return_type not in ("logits", "loss", "both") or not covered.covers(self, input):
            with self.hooks(fwd_hooks=list(readers.see.items())) if readers.see else nullcontext():
                return super().forward(input, return_type, *args, **options)
        logits = fast_forward.logits(self, input, readers=readers)
        if return_type == "logits":
            return logits
        loss = self.loss_fn(logits, input)
        return loss if return_type == "loss" else Output(logits, loss)

    def answers(self, inputs: Any, queries: slice) -> Any:
        """Returns `self(inputs)[:, queries]`. Without hooks, the last layer is computed at these queries only.

        A hook anywhere, on the model itself too, sees every position.
        """
        unread = type(self).forward is FastTransformer.forward and not self.readers.see
        if unread and covered.covers(self, inputs, itself=True):
            return fast_forward.logits(self, inputs, queries)
        return self(inputs)[:, queries]


class Transformer(FastTransformer):
    """A FastTransformer whose parts are ours; made by `build_transformer`.

    `positions`, `dropout` and `d_in` say what was added; `blocks.{l}.attn.alibi_slope` [head] are the slopes.
    """

    own_residual = True  # `get_residual` is ours: there may be no positions, and there is a dropout

    def __init__(
        self,
        cfg: Any,
        *,
        positions: Positions,
        slopes: Tensor | None,
        dropout: float,
        d_in: int | None,
        own_token: bool = True,
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
            super().__init__(cfg, move_to_device=False)
        self.positions = positions
        self.dropout = dropout
        self.d_in = d_in
        self.embed_dropout = nn.Dropout(dropout)
        if d_in is not None:
            self.embed = LinearEmbed(cfg)
            cfg.d_vocab = None  # there are no tokens; ToyConfig says it the same way
        if positions == "sinusoidal":
            self.pos_embed = SinusoidalPositions(cfg)
        elif positions != "learned":
            del self.pos_embed, self.hook_pos_embed  # the parent makes them for every model; unused here
        for layer, block in enumerate(self.blocks):
            block.attn = Attention(cfg, layer, dropout=dropout, slopes=slopes, own_token=own_token)
            if not cfg.attn_only:
                block.mlp = MLP(cfg, dropout=dropout)
        self.setup()  # names the hook points of the new parts

    def get_residual(
        self,
        embed: Tensor,
        pos_offset: int,
        prepend_bos: bool | None = None,  # noqa: ARG002
        attention_mask: Tensor | None = None,
        tokens: Tensor | None = None,  # noqa: ARG002
        return_shortformer_pos_embed: bool = True,
        device: Any = None,  # noqa: ARG002
    ) -> Any:
        """The first residual stream: embed [batch, pos, d_model] plus positions, then dropout.

        TransformerLens calls this between `hook_embed` and the first block, with these arguments.
        """
        residual = embed
        if self.cfg.positional_embedding_type == "standard":
            length = pos_offset + embed.shape[1]
            if length > self.cfg.n_ctx:
                raise UsageError(
                    f"a sequence of {length} positions is longer than the model's n_ctx = {self.cfg.n_ctx}; "
                    "build the model with a larger n_ctx"
                )
            shape_like = embed[..., 0]  # [batch, pos]; only its shape is read
            residual = embed + self.hook_pos_embed(self.pos_embed(shape_like, pos_offset, attention_mask))
        residual = self.embed_dropout(residual)  # [batch, pos, d_model]
        return (residual, None) if return_shortformer_pos_embed else residual

    def to(self, *args: Any, **kwargs: Any) -> Transformer:
        """Does what `nn.Module.to` does. TransformerLens' own takes one argument, drops device indices, and prints."""
        kwargs.pop("print_details", None)
        nn.Module.to(self, *args, **kwargs)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> Transformer:
        """Moves and casts come through here, `double()` too; the forward pass follows what `cfg` says."""
        super()._apply(*args, **kwargs)
        self.cfg.device, self.cfg.dtype = str(self.unembed.W_U.device), self.unembed.W_U.dtype
        return self


def build_transformer(
    *,
    n_layers: int,
    n_heads: int,
    d_model: int,
    n_ctx: int,
    seed: int,
    d_vocab: int | None = None,
    d_in: int | None = None,
    d_out: int | None = None,
    d_head: int | None = None,
    d_mlp: int | None = None,
    activation: Activation = "relu",
    normalization: Normalization = "layer",
    positions: Positions = "learned",
    alibi_slope: float | None = None,
    dropout: float = 0.0,
    causal: bool = True,
    own_token: bool = True,
    init_scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """A pre-norm transformer in training mode: tokens or vectors in, logits [batch, pos, d_out] out.

        model = build_transformer(n_layers=2, n_heads=4, d_model=64, n_ctx=33, d_vocab=16, d_mlp=256, seed=0)
        logits = model(tokens)  # [batch, pos] -> [batch, pos, 16]

    Args:
        n_layers, n_heads, d_model, n_ctx: sizes; n_ctx bounds the length where positions come from a table.
        seed: of the weights alone. The same seed gives the same weights on every device and, up to rounding,
            in every dtype; the caller's random states are neither read nor changed.
        d_vocab: tokens, int [batch, pos]; or else
        d_in: continuous inputs, float [batch, pos, d_in], embedded as inputs @ W_E.
        d_out: size of the output. Default: d_vocab.
        d_head: size of a head. Default: d_model / n_heads.
        d_mlp: width of the MLPs. None: attention only.
        normalization: "layer" (before attention, before the MLP, and before the unembedding) or "none".
        positions: "learned" (a trained table added to the embedding), "sinusoidal" (a frozen one), "alibi"
            (scores -= slope |query - key|, with a trained slope per layer and head) or "none".
        alibi_slope: the initial slope of every head. None: ALiBi's own, 2^(-8 h / n_heads) for h = 1, 2, ...
        dropout: rate of GPT-2's four dropouts, in training mode only. They act on the embedding with positions, on the
            attention pattern, on the attention's output and on the MLP's output. The masks come from torch's
            global generator. In training mode `hook_pattern` shows the pattern before its dropout, while
            `hook_attn_out`, `hook_mlp_out` and the residual stream's hooks show their values after it.
        causal: whether a query sees only the keys up to itself.
        own_token: whether a query sees its own key. Without it, only the first query does: it has no other key.
        init_scale: weight matrices W_* are drawn from N(0, (0.8 init_scale)^2 / d_model), which is
            TransformerLens' default at 1; biases start at 0 and layer norms at the identity.
        dtype, device: of the parameters. On "meta" nothing is drawn.
    """
    _check_names(activation=activation, normalization=normalization, positions=positions)
    _check_sizes(n_layers=n_layers, n_heads=n_heads, d_model=d_model, n_ctx=n_ctx)
    _check_sizes(d_vocab=d_vocab, d_in=d_in, d_out=d_out, d_head=d_head, d_mlp=d_mlp)
    _check_input(d_vocab, d_in, d_out)
    _check_positions(positions, alibi_slope, d_model)
    if d_head is None and d_model % n_heads:
        raise UsageError(f"n_heads = {n_heads} does not divide d_model = {d_model}; change one of them or give d_head")
    if not own_token and not causal:
        raise UsageError("own_token=False is for causal attention; give causal=True, or leave own_token out")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout = {dropout} is not a rate; give a number with 0 <= dropout < 1")
    if not init_scale >= 0:
        raise UsageError(f"init_scale = {init_scale} is not a scale; give a number from 0 up")
    cfg = HookedTransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head or d_model // n_heads,
        n_ctx=n_ctx,
        d_vocab=d_vocab or d_in,
        d_vocab_out=d_out or d_vocab,
        d_mlp=d_mlp,
        attn_only=d_mlp is None,
        act_fn=activation,
        normalization_type="LN" if normalization == "layer" else None,
        # TransformerLens' "alibi" means fixed slopes; ours are added by our Attention.
        positional_embedding_type="standard" if positions in ("learned", "sinusoidal") else "none",
        attention_dir="causal" if causal else "bidirectional",
        initializer_range=init_scale * 0.8 / d_model**0.5,
        init_weights=False,  # it draws from the global generators, and a `seed` here would set them
        dtype=dtype,
        device=str(device),
    )
    on_meta = torch.device(device).type == "meta"
    with torch.device("meta" if on_meta else "cpu"):
        slopes = initial_slopes(n_heads, alibi_slope) if positions == "alibi" else None
        model = Transformer(cfg, positions=positions, slopes=slopes, dropout=dropout, d_in=d_in, own_token=own_token)
    if not on_meta:
        _draw_weights(model, seed)
    return model.to(device)


class SlowForward(UserWarning):
    """Warns that a model trains at TransformerLens' speed, because the fused forward path does not cover its config."""


def accelerated(model: Any) -> Any:
    """Implements `stagelens.models.fast`."""
    if type(model) is not HookedTransformer:
        return model
    if unknown_part := covered.unknown_in(model):
        warnings.warn(
            f"the model trains at TransformerLens' speed: the fused forward path does not cover {unknown_part}",
            SlowForward,
            stacklevel=3,
        )
    else:
        model.__class__ = FastTransformer
    return model


def from_config(values: dict[str, Any], device: str = "cpu") -> Any:
    """A model for saved weights, from the arguments of `build_transformer` or from TransformerLens' own config."""
    arguments = set(inspect.signature(build_transformer).parameters) - {"dtype", "device"}
    if set(values) <= arguments:
        return build_transformer(**{"seed": 0} | values | {"device": device})
    fields = HookedTransformerConfig.__dataclass_fields__
    kept = {key: value for key, value in values.items() if key in fields and key not in ("dtype", "device", "seed")}
    cfg = HookedTransformerConfig.from_dict(kept | {"device": "cpu", "init_weights": False, "tokenizer_name": None})
    with warnings.catch_warnings(), torch.device(device):
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(cfg, move_to_device=False)


@torch.no_grad()
def _draw_weights(model: Transformer, seed: int) -> None:
    """Draws every weight matrix. Draws on the CPU and in float64, so that devices and dtypes agree."""
    stream = generator(seed, "weights")
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2].startswith("W_"):
            normal = torch.randn(parameter.shape, generator=stream, dtype=torch.float64, device="cpu")
            parameter.copy_(model.cfg.initializer_range * normal)


def _check_names(*, activation: str, normalization: str, positions: str) -> None:
    for what, given, kind in (
        ("activation", activation, Activation),
        ("normalization", normalization, Normalization),
        ("positions", positions, Positions),
    ):
        if given not in get_args(kind):
            raise unknown(what, given, get_args(kind))


def _check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise UsageError(f"{name} = {size} is not a size; give an integer of at least 1")


def _check_input(d_vocab: int | None, d_in: int | None, d_out: int | None) -> None:
    if (d_vocab is None) == (d_in is None):
        raise UsageError(
            f"d_vocab = {d_vocab} and d_in = {d_in} were given; give exactly one of them: "
            "d_vocab for tokens, d_in for continuous inputs"
        )
    if d_in is not None and d_out is None:
        raise UsageError(f"d_in = {d_in} was given without d_out; give d_out, the size of the output")


def _check_positions(positions: str, alibi_slope: float | None, d_model: int) -> None:
    if positions == "sinusoidal" and d_model % 2:
        raise UsageError(f"d_model = {d_model} is odd, but sinusoidal positions are pairs; give an even d_model")
    if alibi_slope is not None and positions != "alibi":
        raise UsageError(
            f"alibi_slope = {alibi_slope} was given, but positions = {positions!r}; "
            "leave it out or give positions='alibi'"
        )
