"""The fused forward path: what a HookedTransformer computes, at the speed of plain PyTorch.

TransformerLens computes queries, keys and values one after the other and materializes scores and patterns, so that
hooks can see them. From the same parameters, this path computes all three in one product, uses fused attention and
native layer norms, and skips what no hook reads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer_lens import components as lens
from transformer_lens.utilities.activation_functions import gelu_new

from stagelens.models import components as ours
from stagelens.models.covered import blocks_of, own_residual
from stagelens.models.reading import NO_READERS, Readers

SHORT = 128  # positions: on a CPU, up to here products are faster than the fused kernel
EVERY = slice(None)  # every position


def logits(model: Any, inputs: Tensor, queries: slice = EVERY, readers: Readers = NO_READERS) -> Tensor:
    """Returns the logits [batch, query, d_out] at the positions `queries`.

    `inputs` are tokens [batch, pos] or vectors [batch, pos, d_in]. At the other positions the last layer computes keys
    and values only, because nothing else of them is read there. `readers` are given queries, keys and patterns.
    """
    batch, length = inputs.shape[:2]
    x = _embedded(model, inputs).flatten(0, 1)  # the residual stream, [batch * pos, d_model]
    blocks = blocks_of(model)
    for index, block in enumerate(blocks, start=1):
        asked = queries if index == len(blocks) else EVERY
        seen = _normalized(block.ln1, x)
        x = _at(asked, x, batch)
        asking = seen if asked == EVERY else _normalized(block.ln1, x)
        x = x + _attention(block.attn, asking, seen, batch, asked, readers.of_layer(index - 1))
        if not model.cfg.attn_only:
            x = x + _mlp(block.mlp, _normalized(block.ln2, x))
    if not blocks:
        x = _at(queries, x, batch)
    if model.cfg.normalization_type is not None:
        x = _normalized(model.ln_final, x)
    found = torch.addmm(model.unembed.b_U, x, model.unembed.W_U)
    return found.view(batch, len(range(length)[queries]), found.shape[1])


def _at(queries: slice, x: Tensor, batch: int) -> Tensor:
    """Selects the queries: [batch * pos, d_model] to [batch * query, d_model]."""
    return x if queries == EVERY else _sequences(x, batch)[:, queries].flatten(0, 1)


def _sequences(x: Tensor, batch: int) -> Tensor:
    """Reshapes [batch * pos, n] to [batch, pos, n]; an empty batch has no positions."""
    return x.view(batch, len(x) // max(batch, 1), x.shape[1])


def _embedded(model: Any, inputs: Tensor) -> Tensor:
    """Returns the first residual stream, [batch, pos, d_model]."""
    weight = model.embed.W_E
    x = inputs @ weight if inputs.is_floating_point() else F.embedding(inputs, weight)
    if model.cfg.positional_embedding_type == "standard":
        x = x + model.pos_embed.W_pos[: inputs.shape[1]]
    return _dropped(model.embed_dropout, x) if own_residual(model) else x


def _normalized(norm: Any, x: Tensor) -> Tensor:
    if type(norm) is nn.Identity:
        return x
    weight, bias = (norm.w, norm.b) if type(norm) is lens.LayerNorm else (None, None)
    return F.layer_norm(x, x.shape[-1:], weight, bias, norm.eps)


def _attention(attn: Any, asking: Tensor, seen: Tensor, batch: int, queries: slice, readers: Readers) -> Tensor:
    """Returns the output of the heads at the queries, [batch * query, d_model].

    `asking` is the normalized residual stream at the queries, [batch * query, d_model]; `seen` at all positions,
    [batch * pos, d_model].
    """
    if asking is seen:
        q, k, v = _projected(attn, "QKV", seen, batch)
    else:
        (q,), (k, v) = _projected(attn, "Q", asking, batch), _projected(attn, "KV", seen, batch)
    readers.show("q", q.transpose(1, 2))
    readers.show("k", k.transpose(1, 2))
    z = _attended(attn, q, k, v, queries, readers).transpose(1, 2)  # [batch, query, head, d_head]
    out = torch.addmm(attn.b_O, z.flatten(2).flatten(0, 1), attn.W_O.flatten(0, 1))
    return _dropped(attn.out_dropout, out) if type(attn) is ours.Attention else out


def _projected(attn: Any, names: str, x: Tensor, batch: int) -> Tensor:
    """Returns the projections that `names` lists, such as QKV, by one product: [name, batch, head, pos, d_head]."""
    heads, _, d_head = attn.W_Q.shape
    weight = _joined([getattr(attn, f"W_{name}") for name in names])  # [name * head, d_model, d_head]
    bias = _joined([getattr(attn, f"b_{name}") for name in names])
    packed = _sequences(torch.addmm(bias.flatten(), x, weight.transpose(0, 1).flatten(1)), batch)
    return packed.view(*packed.shape[:2], len(names), heads, d_head).permute(2, 0, 3, 1, 4)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _attended(attn: Any, q: Tensor, k: Tensor, v: Tensor, queries: slice, readers: Readers) -> Tensor:
    """Returns the attention-weighted values, [batch, head, query, d_head]; q, k, v are [batch, head, pos, d_head].

    PyTorch's fused kernel is used for long sequences, for a selection of queries, and on other devices than the CPU; on
    a CPU plain products are faster if the pattern is small. The kernel is not used with dropout, ALiBi slopes or masked
    own keys. It has no second derivative, so it is not used in evaluation mode with gradients, nor under the transforms
    of `torch.func`.
    """
    own = type(attn) is ours.Attention
    slopes, rate = (attn.alibi_slope, _rate(attn.pattern_dropout)) if own else (None, 0.0)
    hidden = own and not attn.own_token
    scale, causal = 1 / float(attn.attn_scale), attn.cfg.attention_dir == "causal"
    window = attn.cfg.window_size if causal and attn.attn_type == "local" else None
    once = attn.training or not torch.is_grad_enabled()
    fused = k.shape[2] > SHORT or queries != EVERY or k.device.type != "cpu"
    plain = slopes is None and not rate and not hidden
    if fused and plain and once and not torch._C._are_functorch_transforms_active():
        places = range(k.shape[2])
        seeing = window is None and (not causal or places[queries] == places[-1:])  # every key: the last one does
        masked = window is None and causal and queries == EVERY  # by the kernel itself
        bias = None if seeing or masked else _bias(k, None, causal, window)[queries]
        if readers.wants("pattern"):
            _show_pattern(q * scale, k, queries, causal, window, readers)
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=masked and not seeing, scale=scale)
    bias = _bias(k, slopes, causal, window, hidden)[..., queries, :]
    if slopes is not None:
        bias = bias.expand(len(k), *bias.shape).flatten(0, 1)
    scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)  # [batch * head, query, key]
    pattern = scores.softmax(-1)
    readers.show("pattern", pattern.view(*q.shape[:3], k.shape[2]))
    z: Tensor = F.dropout(pattern, rate) @ v.flatten(0, 1)
    return z.view(q.shape)


def _show_pattern(q: Tensor, k: Tensor, queries: slice, causal: bool, window: int | None, readers: Readers) -> None:
    """Shows the pattern [batch, head, row, key], in the blocks that are read only, to save time and memory."""
    blocks = readers.rows_of("pattern", (*q.shape[:3], k.shape[2]), q.device)
    if blocks is None:
        readers.show("pattern", (q @ k.mT).add_(_bias(k, None, causal, window)[queries]).softmax(-1))
        return
    place = torch.arange(k.shape[2], device=k.device)
    for number, (rows, n_key) in enumerate(blocks, start=1):  # int [sequence, row]
        own = place[queries][rows][..., None]  # [sequence, row, 1]
        hidden = place[:n_key] > own if causal else torch.zeros_like(own, dtype=torch.bool)  # [sequence, row, key or 1]
        if window is not None:
            hidden = hidden | (place[:n_key] <= own - window)
        bias = k.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        index = rows[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        scores = q[: len(rows)].gather(2, index) @ k[: len(rows), :, :n_key].mT
        readers.show("pattern", scores.add_(bias[:, None]).softmax(-1), last=number == len(blocks))


def _bias(k: Tensor, slopes: Tensor | None, causal: bool, window: int | None, hidden: bool = False) -> Tensor:
    """Returns -slope |query - key|, and -inf at masked keys: [query, key], or [head, query, key] with slopes.

    With `hidden`, every query but the first has its own key masked.
    """
    length = k.shape[2]
    never = k.new_full((length, length), -torch.inf)
    bias = never.triu(1) if causal else torch.zeros_like(never)
    if hidden:
        bias[1:, 1:].fill_diagonal_(-torch.inf)
    if window is not None:
        bias = bias + never.tril(-window)
    if slopes is None:
        return bias
    place = torch.arange(length, device=k.device)
    return bias - slopes[:, None, None] * (place[:, None] - place).abs()


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    hidden = torch.addmm(mlp.b_in, x, mlp.W_in)
    hidden = F.gelu(hidden, approximate="tanh") if mlp.act_fn is gelu_new else mlp.act_fn(hidden)
    out = torch.addmm(mlp.b_out, hidden, mlp.W_out)
    return _dropped(mlp.out_dropout, out) if type(mlp) is ours.MLP else out


def _dropped(dropout: nn.Dropout, x: Tensor) -> Tensor:
    rate = _rate(dropout)
    return F.dropout(x, rate) if rate else x


def _rate(dropout: nn.Dropout) -> float:
    return float(dropout.p) if dropout.training else 0.0
