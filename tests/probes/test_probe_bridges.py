"""Probes on Hugging Face models in a TransformerBridge: their windows, and the keys that enter their scores."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from kit.probe_models import measured, refusal, tokens
from stagelens.recording.context import hugging_face_window

hf = pytest.importorskip("transformers")

SIZES = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 32, "num_attention_heads": 4, "attn_implementation": "eager"}
NEO = {"vocab_size": 11, "max_position_embeddings": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 4}
NEO |= {"attention_types": [[["global", "local"], 1]], "attn_implementation": "eager"}
WINDOW = {"sliding_window": 4}
GLOBAL, LOCAL = 10, 4  # keys that the last of 10 queries sees
CASES = {
    "GPT2": ({"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 4, "attn_implementation": "eager"}, None),
    "Llama": (SIZES, (GLOBAL, GLOBAL)),
    "Mistral": (SIZES | WINDOW | {"num_key_value_heads": 2, "head_dim": 4}, (LOCAL, LOCAL)),
    "Gemma2": (SIZES | WINDOW | {"num_key_value_heads": 2, "head_dim": 4}, (LOCAL, GLOBAL)),
    "Qwen2": (SIZES | WINDOW | {"num_key_value_heads": 2}, (GLOBAL, GLOBAL)),
    "GPTNeo": (NEO | {"window_size": 4}, (GLOBAL, LOCAL)),
    "GPTNeoX": (SIZES, (GLOBAL, GLOBAL)),
}


def bridged(kind: str) -> Any:
    """A bridge of a small model with random weights."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    torch.manual_seed(0)
    model = getattr(hf, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(
        getattr(hf, f"{kind}Config")(**CASES[kind][0])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_bridge_from_module(model, type(model).__name__, hf_config=model.config).eval()


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "GPT2"])
def test_uniform_attention_has_no_sparsity_whatever_the_windows(kind):
    model, batch = bridged(kind), tokens()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("q_proj", ".q.", "query_key")):
                parameter.zero_()
    found = measured(model, "attention_sparsity", batch)
    np.testing.assert_allclose(found["sparsity"], 0, atol=1e-6)
    seen = np.array([np.minimum(np.arange(2, 11), n).mean() for n in CASES[kind][1]])  # of queries 1..9
    np.testing.assert_allclose(found["effective_keys"], np.repeat(seen[:, None], 4, 1), rtol=1e-5)


def test_kinds_of_layers_by_the_config():
    def windows(kind: str, **changes: Any) -> list[int | None]:
        config = getattr(hf, f"{kind}Config")(**SIZES | WINDOW | changes)
        return [hugging_face_window(config, layer) for layer in range(2)]

    assert windows("Mistral") == [4, 4] and windows("Mistral", sliding_window=None) == [None, None]
    assert windows("Qwen2") == [None, None]
    assert windows("Qwen2", use_sliding_window=True, max_window_layers=1) == [None, 4]
    assert windows("Gemma2", layer_types=["full_attention", "sliding_attention"]) == [None, 4]


def test_keys_are_not_read_if_their_rotation_has_no_hook():
    reason = refusal(bridged("GPTNeoX"), "qk_alignment", tokens())
    assert "'blocks.0.attn.hook_rot_k' and does not call it" in reason


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Mistral"])
def test_keys_and_queries_are_those_of_the_scores(kind):
    model, batch, seen = bridged(kind), tokens(), {}
    rotary = kind != "GPT2"
    k, q, scores = (f"blocks.1.attn.hook_{'rot_' * rotary}k", f"blocks.1.attn.hook_{'rot_' * rotary}q", "scores")
    hooks = {k: k, q: q, "blocks.1.attn.hook_attn_scores": scores}
    keep = [(at, lambda x, hook, name=name: seen.__setitem__(name, x.detach().clone())) for at, name in hooks.items()]
    with torch.no_grad():
        model.run_with_hooks(batch, fwd_hooks=keep)
    keys = seen[k].repeat_interleave(4 // seen[k].shape[2], dim=2)  # [batch, key, head, d_head]
    products = torch.einsum("bqhd,bkhd->bhqk", seen[q], keys) / 2  # the root of d_head
    near = torch.ones(10, 10, dtype=torch.bool).tril().triu(-3)  # visible also through a window of 4
    torch.testing.assert_close(seen[scores][..., near], products[..., near], atol=1e-6, rtol=1e-4)
    found = measured(model, "qk_alignment", batch)
    assert ("key_query_chance" in found) == (not rotary)
    for head in range(4):
        for side, x in enumerate((keys, seen[q])):
            variances = np.linalg.svd(x[:, :, head].flatten(0, 1).double(), compute_uv=False) ** 2
            np.testing.assert_allclose(found["explained"][1, head, side], variances / variances.sum(), atol=1e-5)
