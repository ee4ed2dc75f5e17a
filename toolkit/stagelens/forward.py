"""The forward pass where nobody looks: what a HookedTransformer computes, at the speed of plain PyTorch.

TransformerLens makes queries, keys and values apart and writes scores and patterns out, so that hooks can see them.
With the same parameters, this takes one product for all three, fused attention and native layer norms, and leaves out
what nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformer_lens import HookedTransformerConfig
from transformer_lens import components as lens

from stagelens import _components as ours

DTYPES = (torch.float32, torch.float64)
SHORT = 128  # positions: on a CPU, up to here products are faster than the fused kernel
EVERY = slice(None)  # every position
EMBEDDINGS = (lens.Embed, ours.LinearEmbed)
POSITIONS = (lens.PosEmbed, ours.SinusoidalPositions)
ATTENTIONS = (lens.Attention, ours.Attention)
MLPS = (lens.MLP, ours.MLP)
NORMS = (lens.LayerNorm, lens.LayerNormPre, nn.Identity, type(None))

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


def covers(model: Any, inputs: Any, itself: bool = False) -> bool:
    """Whether `logits` gives what the model's own forward pass gives on `inputs`, and nobody would miss a hook.

    Hooks on the model `itself` are missed where it is not called.
    """
    return (
        isinstance(inputs, Tensor)
        and inputs.device == model.unembed.W_U.device
        and _readable(model, inputs)
        and not unknown_in(model)
        and not watched(model, itself)
    )


def unknown_in(model: Any) -> str:
    """What of `model` is not known here; empty where all is. Configs and parts may be changed at any time."""
    cfg = model.cfg
    values = vars(cfg)
    if cfg.positional_embedding_type not in ("standard", "none"):
        return f"{cfg.positional_embedding_type} positions"
    for name, default in DEFAULTS.items():
        if values[name] != default:
            return f"{name} = {values[name]!r}"
    if "Olmo" in (cfg.original_architecture or ""):  # TransformerLens norms these after their parts
        return f"original_architecture = {cfg.original_architecture!r}"
    if model.unembed.W_U.dtype not in DTYPES:
        return str(model.unembed.W_U.dtype)
    if cfg.act_fn == "solu_ln" and not cfg.attn_only:
        return "act_fn = 'solu_ln'"
    return next(
        (f"a part of type {type(part).__name__}" for part, kinds in _parts(model) if type(part) not in kinds), ""
    )


def _parts(model: Any) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """Each part that is computed with, and the types it may have."""
    yield model.embed, EMBEDDINGS
    if model.cfg.positional_embedding_type == "standard":
        yield model.pos_embed, POSITIONS
    for block in model.blocks:
        yield block, (lens.TransformerBlock,)
        yield block.ln1, NORMS
        yield block.attn, ATTENTIONS
        yield block.attn._attention_dir_override, (type(None),)
        if not model.cfg.attn_only:
            yield block.ln2, NORMS
            yield block.mlp, MLPS
    yield getattr(model, "ln_final", None), NORMS
    yield model.unembed, (lens.Unembed,)


def logits(model: Any, inputs: Tensor, queries: slice = EVERY) -> Tensor:
    """Tokens [batch, pos], or vectors [batch, pos, d_in], to logits [batch, query, d_out] at the positions `queries`.

    Of the other positions the last layer makes keys and values only: nothing else of them is read there.
    """
    batch, length = inputs.shape[:2]
    x = _embedded(model, inputs).flatten(0, 1)  # the residual stream, [batch * pos, d_model]
    for block in model.blocks:
        asked = queries if block is model.blocks[-1] else EVERY
        seen = _normalized(block.ln1, x)
        x = _at(asked, x, batch)
        asking = seen if asked == EVERY else _normalized(block.ln1, x)
        x = x + _attention(block.attn, asking, seen, batch, asked)
        if not model.cfg.attn_only:
            x = x + _mlp(block.mlp, _normalized(block.ln2, x))
    if not len(model.blocks):
        x = _at(queries, x, batch)
    x = _normalized(getattr(model, "ln_final", None), x)
    found = torch.addmm(model.unembed.b_U, x, model.unembed.W_U)
    return found.view(batch, len(range(length)[queries]), found.shape[1])


def _at(queries: slice, x: Tensor, batch: int) -> Tensor:
    """[batch * pos, d_model] to [batch * query, d_model]."""
    return x if queries == EVERY else _sequences(x, batch)[:, queries].flatten(0, 1)


def _sequences(x: Tensor, batch: int) -> Tensor:
    """[batch * pos, n] to [batch, pos, n]; in an empty batch there is no position either."""
    return x.view(batch, len(x) // max(batch, 1), x.shape[1])


def _embedded(model: Any, inputs: Tensor) -> Tensor:
    """The first residual stream, [batch, pos, d_model]."""
    weight = model.embed.W_E
    x = inputs @ weight if inputs.is_floating_point() else F.embedding(inputs, weight)
    if model.cfg.positional_embedding_type == "standard":
        x = x + model.pos_embed.W_pos[: inputs.shape[1]]
    return _dropped(model, "embed_dropout", x)


def _normalized(norm: Any, x: Tensor) -> Tensor:
    if norm is None or isinstance(norm, nn.Identity):
        return x
    return F.layer_norm(x, x.shape[-1:], getattr(norm, "w", None), getattr(norm, "b", None), norm.eps)


def _attention(attn: Any, asking: Tensor, seen: Tensor, batch: int, queries: slice) -> Tensor:
    """What the heads write where they ask, [batch * query, d_model], of what they see, [batch * pos, d_model]."""
    if asking is seen:
        q, k, v = _projected(attn, "QKV", seen, batch)
    else:
        (q,), (k, v) = _projected(attn, "Q", asking, batch), _projected(attn, "KV", seen, batch)
    z = _attended(attn, q, k, v, queries).transpose(1, 2)  # [batch, query, head, d_head]
    out = torch.addmm(attn.b_O, z.flatten(2).flatten(0, 1), attn.W_O.flatten(0, 1))
    return _dropped(attn, "out_dropout", out)


def _projected(attn: Any, names: str, x: Tensor, batch: int) -> Tensor:
    """Queries, keys and values, those of them that `names` has, by one product: [name, batch, head, pos, d_head]."""
    heads, _, d_head = attn.W_Q.shape
    weight = _joined([getattr(attn, f"W_{name}") for name in names])  # [name * head, d_model, d_head]
    bias = _joined([getattr(attn, f"b_{name}") for name in names])
    packed = _sequences(torch.addmm(bias.flatten(), x, weight.transpose(0, 1).flatten(1)), batch)
    return packed.view(*packed.shape[:2], len(names), heads, d_head).permute(2, 0, 3, 1, 4)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _attended(attn: Any, q: Tensor, k: Tensor, v: Tensor, queries: slice) -> Tensor:
    """What the queries [batch, head, query, d_head] read of the values [batch, head, pos, d_head].

    The fused kernel is for long sequences, for some of the queries and for other devices: on a CPU the products are
    faster while the pattern is small, unless they are of single rows. There it has neither dropout nor a trained bias,
    and it can be differentiated once: a second derivative (of a model in evaluation mode) and the transforms of
    `torch.func` take the products.
    """
    slopes, rate = getattr(attn, "alibi_slope", None), _rate(attn, "pattern_dropout")
    scale, causal = 1 / float(attn.attn_scale), attn.cfg.attention_dir == "causal"
    window = attn.cfg.window_size if causal and attn.attn_type == "local" else None
    once = attn.training or not torch.is_grad_enabled()
    fused = k.shape[2] > SHORT or queries != EVERY or k.device.type != "cpu"
    if fused and slopes is None and not rate and once and not torch._C._are_functorch_transforms_active():
        places = range(k.shape[2])
        seeing = window is None and (not causal or places[queries] == places[-1:])  # every key: the last one does
        masked = window is None and causal and queries == EVERY  # by the kernel itself
        bias = None if seeing or masked else _bias(k, None, causal, window)[queries]
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=masked and not seeing, scale=scale)
    bias = _bias(k, slopes, causal, window)[..., queries, :]
    if slopes is not None:
        bias = bias.expand(len(k), *bias.shape).flatten(0, 1)
    scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)  # [batch * head, query, key]
    read: Tensor = F.dropout(scores.softmax(-1), rate) @ v.flatten(0, 1)
    return read.view(q.shape)


def _bias(k: Tensor, slopes: Tensor | None, causal: bool, window: int | None) -> Tensor:
    """-slope |query - key|, and -inf at the keys that a query does not see; [query, key], or [head, query, key]."""
    length = k.shape[2]
    never = k.new_full((length, length), -torch.inf)
    bias = never.triu(1) if causal else torch.zeros_like(never)
    if window is not None:
        bias = bias + never.tril(-window)
    if slopes is None:
        return bias
    place = torch.arange(length, device=k.device)
    return bias - slopes[:, None, None] * (place[:, None] - place).abs()


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    hidden = torch.addmm(mlp.b_in, x, mlp.W_in)
    hidden = F.gelu(hidden, approximate="tanh") if mlp.cfg.act_fn == "gelu_new" else mlp.act_fn(hidden)
    return _dropped(mlp, "out_dropout", torch.addmm(mlp.b_out, hidden, mlp.W_out))


def _dropped(part: Any, name: str, x: Tensor) -> Tensor:
    rate = _rate(part, name)
    return F.dropout(x, rate) if rate else x


def _rate(part: Any, name: str) -> float:
    """Of a dropout that only our own parts have."""
    dropout = getattr(part, name, None)
    return float(dropout.p) if dropout is not None and dropout.training else 0.0


def _readable(model: Any, inputs: Tensor) -> bool:
    """Whether `inputs` have the kind, the shape and a length that the embedding takes, with no padding to be found."""
    if type(model.embed) is ours.LinearEmbed:
        right = inputs.dim() == 3 and inputs.dtype == model.embed.W_E.dtype
    else:
        right = inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
    fits = right and (model.cfg.positional_embedding_type == "none" or inputs.shape[1] <= model.cfg.n_ctx)
    return fits and getattr(model.tokenizer, "padding_side", "right") != "left"


def watched(model: Any, itself: bool = False) -> bool:
    """Whether some part, or also the model `itself`, has a hook, forward or backward, or a forward pass of its own."""
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return True
    parts = [model] if itself else [*model._modules.values()]
    while parts:
        part = parts.pop()
        if part is None:
            continue
        if (
            part._forward_hooks
            or part._forward_pre_hooks
            or part._backward_hooks
            or part._backward_pre_hooks
            or "forward" in part.__dict__
        ):
            return True
        parts.extend(part._modules.values())
    return False
