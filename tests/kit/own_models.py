"""Models outside of TransformerLens: models in plain PyTorch, and Hugging Face models with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 20, 32, 4, 2, 24
BY_HAND = ("by hand", "einsum", "positions first", "softmax module", "folded", "added", "grouped")
WAYS = ("scaled", "multihead", "weights", *BY_HAND)  # in which plain models attend


class Attention(nn.Module):
    """Causal attention by one of the implementations in `WAYS`. With equal weights all give the same result."""

    def __init__(self, way: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.way, self.dropout, self.softmax = way, nn.Dropout(dropout), nn.Softmax(dim=-1)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, size, _ = x.shape
        q, k, v = (y.view(n, size, HEADS, -1).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, 2))
        if self.way == "scaled":
            rate = self.dropout.p if self.training else 0.0
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        else:
            z = self.by_hand(q / math.sqrt(q.shape[-1]), k, v, torch.ones(size, size, dtype=torch.bool).triu(1))
        return self.c_proj(z.transpose(1, 2).reshape(n, size, WIDTH))

    def by_hand(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Returns z [sequence, head, position, d_head]."""
        if self.way == "by hand":
            return self.dropout(F.softmax((q @ k.transpose(-2, -1)).masked_fill(hidden, -math.inf), dim=-1)) @ v
        if self.way == "softmax module":
            return torch.matmul(self.dropout(self.softmax((q @ k.mT).masked_fill(hidden, -math.inf))), v)
        if self.way == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k).masked_fill(hidden, -1e9)
            return torch.einsum("bhqk,bhkd->bhqd", self.dropout(scores.softmax(-1)), v)
        if self.way == "positions first":
            q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
            scores = torch.einsum("jbnd, ibnd -> bnij", k, q).masked_fill(hidden, -1e9)
            return torch.einsum("bnij,jbnd->ibnd", self.dropout(torch.softmax(scores, dim=3)), v).permute(1, 2, 0, 3)
        if self.way == "grouped":
            q, k, v = (x.unflatten(1, (2, -1)) for x in (q, k, v))
            return (self.dropout((q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1)) @ v).flatten(1, 2)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        if self.way == "folded":
            scores = torch.bmm(q, k.mT).masked_fill(hidden, -math.inf)
        else:
            scores = (
                (torch.ones_like(hidden.float()) * -1e9).triu(1).expand(len(q), -1, -1).baddbmm(batch1=q, batch2=k.mT)
            )
        z = torch.bmm(self.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).type_as(q)), v)
        return z.unflatten(0, (-1, HEADS))


class Multihead(nn.Module):
    """The same through `nn.MultiheadAttention`; with `weights` it asks for the attention weights too."""

    def __init__(self, weights: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.weights = weights
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        out, weights = self.attention(x, x, x, attn_mask=hidden, need_weights=self.weights)
        assert (weights is not None) == self.weights
        if weights is not None and not self.training:  # dropout scales weights
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        return out


class Layer(nn.Module):
    def __init__(self, way: str, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        multihead = way in ("multihead", "weights")
        self.attn = Multihead(way == "weights", dropout) if multihead else Attention(way, dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class PlainTransformer(nn.Module):
    """A causal language model in the style of nanoGPT."""

    def __init__(self, way: str = "scaled", dropout: float = 0.0) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.h = nn.ModuleList(Layer(way, dropout) for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.h:
            x = layer(x)
        logits: Tensor = self.head(self.ln_f(x))
        return logits


def plain_model(way: str, seed: int = 0, dropout: float = 0.0) -> PlainTransformer:
    """Returns a model whose weights depend on the seed alone, for every implementation of attention."""
    torch.manual_seed(seed)
    model = PlainTransformer("scaled", dropout)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if way == "scaled":
        return model
    other = PlainTransformer(way, dropout)
    weights = model.state_dict()
    if way in ("multihead", "weights"):
        names = {"c_attn.": "attention.in_proj_", "c_proj.": "attention.out_proj."}
        for old, new in names.items():
            weights = {name.replace(old, new): value for name, value in weights.items()}
    other.load_state_dict(weights)
    return other


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def tokens_like_text(n: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (n, CONTEXT), generator=torch.Generator().manual_seed(seed))


EAGER = ("t5", "gpt_oss", "gemma2", "xglm", "bloom")  # have no other attention, or compute other scores


def hugging_face(kind: str, attention: str = "sdpa", seed: int = 0) -> Any:
    """A small Hugging Face language model with random weights."""
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": WIDTH}
    sizes |= {"intermediate_size": 64, "vocab_size": VOCAB, "max_position_embeddings": 64}
    makers: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=LAYERS,
                n_head=HEADS,
                n_embd=WIDTH,
                vocab_size=VOCAB,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)),
        "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes)),
        "phi3": lambda: transformers.Phi3ForCausalLM(
            transformers.Phi3Config(**sizes, num_key_value_heads=2, pad_token_id=0)
        ),
        "falcon": lambda: transformers.FalconForCausalLM(transformers.FalconConfig(**sizes)),
        "falcon, grouped": lambda: transformers.FalconForCausalLM(
            transformers.FalconConfig(**sizes, new_decoder_architecture=True, num_kv_heads=2)
        ),
        "t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                d_model=WIDTH, d_kv=8, d_ff=64, num_layers=LAYERS, num_heads=HEADS, vocab_size=VOCAB, pad_token_id=0
            )
        ),
        "mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**sizes, num_key_value_heads=2, sliding_window=5)
        ),
        "gemma": lambda: transformers.GemmaForCausalLM(
            transformers.GemmaConfig(**sizes, num_key_value_heads=1, head_dim=8)
        ),
        "gemma2": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8)
        ),
        "opt": lambda: transformers.OPTForCausalLM(
            transformers.OPTConfig(
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                hidden_size=WIDTH,
                word_embed_proj_dim=WIDTH,
                ffn_dim=64,
                vocab_size=VOCAB,
                max_position_embeddings=64,
            )
        ),
        "xglm": lambda: transformers.XGLMForCausalLM(
            transformers.XGLMConfig(
                d_model=WIDTH,
                num_layers=LAYERS,
                attention_heads=HEADS,
                ffn_dim=64,
                vocab_size=VOCAB,
                max_position_embeddings=64,
            )
        ),
        "bloom": lambda: transformers.BloomForCausalLM(
            transformers.BloomConfig(hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCAB)
        ),
        "cohere": lambda: transformers.CohereForCausalLM(
            transformers.CohereConfig(**sizes, pad_token_id=0, bos_token_id=0, eos_token_id=0)
        ),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8)
        ),
        "headless": lambda: transformers.LlamaModel(transformers.LlamaConfig(**sizes)),
        "gpt_oss": lambda: transformers.GptOssForCausalLM(
            transformers.GptOssConfig(**sizes, num_key_value_heads=2, head_dim=8, num_local_experts=4)
        ),
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**sizes)),
        "electra": lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(**sizes, embedding_size=16)),
    }
    model = makers[kind]()
    model.set_attn_implementation("eager" if kind in EAGER else attention)
    return model.eval()
