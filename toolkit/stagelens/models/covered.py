"""Decides whether the fused forward path of `stagelens.models.fast_forward` equals a model's own forward pass.

Configs, parts, weights and hook points may be changed at any time. So this runs at every call, and must be cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformer_lens import HookedTransformerConfig, components as lens
from transformer_lens.utilities.activation_functions import SUPPORTED_ACTIVATIONS, XIELU

from stagelens.models import components as ours
from stagelens.models.hooks import watched

DTYPES = (torch.float32, torch.float64)
EMBEDDINGS = (lens.Embed, ours.LinearEmbed)
POSITIONS = (lens.PosEmbed, ours.SinusoidalPositions)
ATTENTIONS = (lens.Attention, ours.Attention)
MLPS = (lens.MLP, ours.MLP)
NORMS = (lens.LayerNorm, lens.LayerNormPre, nn.Identity)
ACTIVATIONS = frozenset(SUPPORTED_ACTIVATIONS.values())
HELPERS = frozenset(("input_to_embed", "get_residual", "get_pos_offset"))  # of a model's own forward pass
PACKAGES = ("transformer_lens", "stagelens")
METHODS = frozenset(  # of an attention's own forward pass
    name for kind in lens.Attention.__mro__[:2] for name, value in vars(kind).items() if callable(value)
)

# Fields of a config that are followed here, and those that leave a forward pass without hooks as it is.
FOLLOWED = """
    n_layers d_model n_ctx d_head n_heads d_mlp d_vocab d_vocab_out act_fn attn_only attn_scale use_attn_scale
    scale_attn_by_inverse_layer_idx eps normalization_type positional_embedding_type attention_dir dtype
    use_local_attn attn_types window_size
"""
WITHOUT_EFFECT = """
    model_name original_architecture tokenizer_name tokenizer_prepends_bos default_prepend_bos trust_remote_code
    from_checkpoint checkpoint_index checkpoint_label_type checkpoint_value n_params device seed init_mode init_weights
    initializer_range use_attn_result use_split_qkv_input use_attn_in use_hook_mlp_in use_hook_tokens
    rotary_dim rotary_base
"""
# Every other field must have its default.
DEFAULTS = {
    name: field.default
    for name, field in HookedTransformerConfig.__dataclass_fields__.items()
    if name not in {*FOLLOWED.split(), *WITHOUT_EFFECT.split()}
}
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
_IGNORED: WeakKeyDictionary[Any, tuple[Tensor, int, bool]] = WeakKeyDictionary()  # by attention
WITHOUT_CONFIG = (nn.Dropout, nn.Identity)


def covers(model: Any, inputs: Any, itself: bool = False) -> bool:
    """True if `logits` gives what the model's own forward pass gives on `inputs`, and no hook is attached.

    Hooks on the model `itself` would be missed by callers that do not call the model.
    """
    return (
        isinstance(inputs, Tensor) and not unknown_in(model) and _readable(model, inputs) and not watched(model, itself)
    )


def unknown_in(model: Any) -> str:
    """Returns what of `model` the fused path does not cover; empty if it covers all. Parts may change at any time."""
    cfg = model.cfg
    values = vars(cfg)
    if cfg.positional_embedding_type != "standard" and (
        cfg.positional_embedding_type != "none" or not own_residual(model)
    ):
        return f"{cfg.positional_embedding_type} positions"
    for name, default in DEFAULTS.items():
        if values[name] != default:
            return f"{name} = {values[name]!r}"
    if cfg.use_hook_tokens and "hook_tokens" not in model._modules:
        return "use_hook_tokens, set after the model was built"
    if "Olmo" in (cfg.original_architecture or ""):  # TransformerLens norms these after their parts
        return f"original_architecture = {cfg.original_architecture!r}"
    if cfg.dtype not in DTYPES:
        return str(cfg.dtype)
    if cfg.act_fn == "solu_ln" and not cfg.attn_only:
        return "act_fn = 'solu_ln'"
    if not HELPERS.isdisjoint(model.__dict__) or getattr(type(model), "own_helpers", False):
        return "a model with another way from inputs to the first residual stream"
    return next((unknown for part, kinds in _parts(model) if (unknown := _unknown_of(part, kinds, cfg))), "")


def own_helpers(kind: Any) -> bool:
    """Returns True if a third-party subclass overrides one of HELPERS."""
    return any(getattr(kind, name).__module__.partition(".")[0] not in PACKAGES for name in HELPERS)


def own_residual(model: Any) -> bool:
    """Returns True if `get_residual` is ours, which applies dropout and supports models without positions."""
    return getattr(type(model), "own_residual", False)


def _parts(model: Any) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """Returns each part that the fused path computes with, and the types that it may have."""
    cfg, part = model.cfg, model._modules.get
    yield part("embed"), EMBEDDINGS
    if cfg.positional_embedding_type == "standard":
        yield part("pos_embed"), POSITIONS
    if own_residual(model):
        yield part("embed_dropout"), (nn.Dropout,)
    for block in blocks_of(model):
        yield block, (lens.TransformerBlock,)
        inside = block._modules.get
        yield inside("ln1"), NORMS
        yield inside("attn"), ATTENTIONS
        if not cfg.attn_only:
            yield inside("ln2"), NORMS
            yield inside("mlp"), MLPS
    if cfg.normalization_type is not None:
        yield part("ln_final"), NORMS
    yield part("unembed"), (lens.Unembed,)


def _unknown_of(part: Any, kinds: tuple[type, ...], cfg: Any) -> str:
    """Returns what of one part the fused path does not cover; empty if it covers all."""
    kind = type(part)
    if kind not in kinds:
        return f"a part of type {kind.__name__}"
    if kind in WITHOUT_CONFIG:
        return ""
    if part.cfg is not cfg:
        return f"a {kind.__name__} with a config of its own"
    for parameter in part._parameters.values():
        if parameter is None or parameter.dtype is not cfg.dtype:
            return f"a {kind.__name__} with a parameter that is not {cfg.dtype}"
    check = CHECKS.get(kind)
    return check(part, cfg) if check is not None else ""


def _unknown_of_attention(attn: Any, cfg: Any) -> str:
    heads, width, size = cfg.n_heads, cfg.d_model, cfg.d_head
    held = attn._parameters
    if any(name not in held for name in WEIGHTS):
        return "an attention whose weights are not parameters"
    q, k, v, o, b_q, b_k, b_v = (held[name] for name in WEIGHTS)
    if not (
        q.shape == k.shape == v.shape == (heads, width, size)
        and b_q.shape == b_k.shape == b_v.shape == (heads, size)
        and o.shape == (heads, size, width)
    ):
        return "heads of other shapes than the config's"
    if not METHODS.isdisjoint(attn.__dict__):
        return "an attention with a method of its own"
    if not _masks_fully(attn):
        return "an attention with an IGNORE of its own"
    if attn._attention_dir_override is not None or isinstance(attn.attn_scale, Tensor):
        return "an attention with a direction or a scale of its own"
    if attn.attn_type == "local" and not (isinstance(cfg.window_size, int) and cfg.window_size > 0):
        return f"window_size = {cfg.window_size!r}"
    if type(attn) is ours.Attention and not (type(attn.pattern_dropout) is type(attn.out_dropout) is nn.Dropout):
        return "an attention with another dropout"
    return ""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _masks_fully(attn: Any) -> bool:
    """Returns True if masked scores become -inf. The buffer is read again only after it was written to or replaced.

    True while torch traces, when values cannot be inspected.
    """
    ignore: Tensor = attn.IGNORE
    known, version, masks = _IGNORED.get(attn, (None, 0, True))
    if known is not ignore or version != ignore._version:
        try:
            masks = float(ignore) == -torch.inf
        except RuntimeError:
            return True
        _IGNORED[attn] = ignore, ignore._version, masks
    return masks


def _unknown_of_mlp(mlp: Any, _: Any) -> str:
    if type(mlp.act_fn) is not XIELU and mlp.act_fn not in ACTIVATIONS:
        return "an activation function that is not TransformerLens'"
    if type(mlp) is ours.MLP and type(mlp.out_dropout) is not nn.Dropout:
        return "an MLP with another dropout"
    return ""


def _unknown_of_norm(norm: Any, cfg: Any) -> str:
    if norm._parameters["w"].shape != (cfg.d_model,) or norm._parameters["b"].shape != (cfg.d_model,):
        return "a layer norm of another size than d_model"
    return "a layer norm with an eps that is a tensor" if isinstance(norm.eps, Tensor) else ""


def _unknown_of_block(block: Any, _: Any) -> str:
    return "a block with a method of its own" if "apply_mlp" in block.__dict__ else ""


CHECKS = {
    **dict.fromkeys(ATTENTIONS, _unknown_of_attention),
    **dict.fromkeys(MLPS, _unknown_of_mlp),
    lens.LayerNorm: _unknown_of_norm,
    lens.TransformerBlock: _unknown_of_block,
}


def blocks_of(model: Any) -> list[Any]:
    """Returns the blocks that the forward pass uses."""
    return [block for _, block in zip(range(model.cfg.n_layers), model.blocks, strict=False)]


def _readable(model: Any, inputs: Tensor) -> bool:
    """Returns True if `inputs` have the device, dtype, shape and length that the model takes, without padding."""
    if inputs.device != model.unembed.W_U.device:
        return False
    if type(model.embed) is ours.LinearEmbed:
        right = inputs.dim() == 3 and inputs.dtype == model.embed.W_E.dtype
    else:
        right = inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
    fits = right and (model.cfg.positional_embedding_type == "none" or inputs.shape[1] <= model.cfg.n_ctx)
    return fits and getattr(model.tokenizer, "padding_side", "right") != "left"
