"""A model with changed config, parts, weights or hook points computes what TransformerLens' own forward computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformer_lens import components as lens
from transformer_lens.hook_points import HookPoint

import stagelens as sl
from kit.fast_models import assert_near, explicit, inputs_for, randomize, small, taken, theirs
from stagelens.models import FastTransformer, Transformer
from stagelens.models.covered import covers


class Doubling(HookPoint):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Halved(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def parameter(*shape: int) -> torch.nn.Parameter:
    stream = torch.Generator().manual_seed(9)
    return torch.nn.Parameter(torch.randn(shape, generator=stream, dtype=torch.float64))


def put(path: str, value: object) -> object:
    """A change that sets the attribute at `path` to `value`."""

    def change(model: FastTransformer) -> None:
        where, _, name = path.rpartition(".")
        setattr(model.cfg if where == "cfg" else model.get_submodule(where), name, value)

    return change


def shape_dependent(x: Tensor) -> Tensor:
    """An activation function over positions, which depends on more than one row."""
    return x - x.mean(-2, keepdim=True)


def with_setup(model: FastTransformer) -> None:
    model.blocks[0].hook_mlp_out = Doubling()
    model.setup()


def unused(model: FastTransformer) -> None:
    model.blocks[0].hook_custom, model.value_head = HookPoint(), torch.nn.Linear(8, 1)
    model.blocks[1].out_dropout, model.blocks[0].ln1.note = torch.nn.Dropout(0.9), "mine"
    model.setup()


def hooked_by_name(model: FastTransformer) -> None:
    model.blocks[0].mlp.hook_post.add_hook(lambda x, hook: 2 * x)


def pruned(model: FastTransformer) -> None:
    from torch.nn.utils import prune

    prune.random_unstructured(model.blocks[0].attn, "W_V", 0.5)


def parametrized(model: FastTransformer) -> None:
    torch.nn.utils.parametrize.register_parametrization(model.blocks[1].mlp, "W_in", Halved())


def own_config(model: FastTransformer) -> None:
    model.cfg = copy.deepcopy(model.cfg)
    model.cfg.attn_only, model.cfg.attention_dir = True, "bidirectional"


def other_layer(model: FastTransformer) -> None:
    model.blocks[0].attn.cfg = copy.deepcopy(model.cfg)
    model.blocks[0].attn.cfg.attention_dir = "bidirectional"


def replaced_weights(model: FastTransformer) -> None:
    model.blocks[0].attn.W_Q, model.unembed.W_U = parameter(2, 8, 4), parameter(8, 5)
    model.blocks[1].mlp.b_in.data = parameter(6).data


def one_head_less(model: FastTransformer) -> None:
    """By hand, with the config that goes with it."""
    model.cfg.n_heads = 1
    for block in model.blocks:
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            setattr(block.attn, name, torch.nn.Parameter(getattr(block.attn, name)[:1].detach()))


def shorter_bias(model: FastTransformer) -> None:
    model.blocks[0].attn.b_Q = parameter(1, 4)  # for all heads


def swapped(model: FastTransformer) -> None:
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def cut(model: FastTransformer) -> None:
    del model.blocks[1]


def same_layer_twice(model: FastTransformer) -> None:
    model.blocks.append(model.blocks[0])
    model.cfg.n_layers = 3


def halves(model: FastTransformer) -> None:
    model.blocks[0].ln2.float()


def flattened_norms(model: FastTransformer) -> None:
    for block in model.blocks:
        block.ln1, block.ln2 = lens.LayerNormPre(model.cfg), lens.LayerNormPre(model.cfg)
        block.ln1.w = parameter(8)  # which it does not read


class Widening(Transformer):
    def get_residual(self, embed: Tensor, *args: object, **options: object) -> object:
        return super().get_residual(3 * embed, *args, **options)


CHANGES = {
    "fewer layers": put("cfg.n_layers", 1),
    "no layers": put("cfg.n_layers", 0),
    "more layers than there are": put("cfg.n_layers", 5),
    "no last norm": put("cfg.normalization_type", None),
    "another norm in the config": put("cfg.normalization_type", "RMS"),
    "attention only": put("cfg.attn_only", True),
    "attention in both directions": put("cfg.attention_dir", "bidirectional"),
    "heads of another number in the config": put("cfg.n_heads", 4),
    "heads of another size in the config": put("cfg.d_head", 2),
    "another width in the config": put("cfg.d_model", 4),
    "another epsilon in the config": put("cfg.eps", 0.5),
    "another scale in the config": put("cfg.attn_scale", 9.0),
    "another activation in the config": put("cfg.act_fn", "relu"),
    "a norm after the activation": put("cfg.act_fn", "solu_ln"),
    "another precision in the config": put("cfg.dtype", torch.float32),
    "half precision in the config": put("cfg.dtype", torch.bfloat16),
    "capped scores": put("cfg.attn_scores_soft_cap", 0.5),
    "capped logits": put("cfg.output_logits_soft_cap", 0.5),
    "no positions": put("cfg.positional_embedding_type", "none"),
    "parallel blocks": put("cfg.parallel_attn_mlp", True),
    "clipped keys": put("cfg.clip_qkv", 0.1),
    "results per head": put("cfg.use_attn_result", True),
    "split inputs": put("cfg.use_split_qkv_input", True),
    "an MLP with a hook before it": put("cfg.use_hook_mlp_in", True),
    "a context too short": put("cfg.n_ctx", 3),
    "another config": own_config,
    "a config of one part": other_layer,
    "an activation of torch": put("blocks.0.mlp.act_fn", torch.nn.functional.silu),
    "an activation that is a module": put("blocks.1.mlp.act_fn", torch.nn.Tanh()),
    "an activation over positions": put("blocks.0.mlp.act_fn", shape_dependent),
    "a lambda as activation": put("blocks.0.mlp.act_fn", lambda x: x.sin()),
    "a hook point of their own": with_setup,
    "a hook point at the end": put("unembed.hook_out", Doubling()),
    "a hook point in a norm": put("ln_final.hook_normalized", Doubling()),
    "a module as hook point": put("blocks.1.attn.hook_pattern", Halved()),
    "a hook": hooked_by_name,
    "unused parts": unused,
    "local attention": lambda model: (put("cfg.window_size", 2)(model), put("blocks.1.attn.attn_type", "local")(model)),
    "local attention without a window": put("blocks.1.attn.attn_type", "local"),
    "an empty window": lambda model: (put("cfg.window_size", 0)(model), put("blocks.1.attn.attn_type", "local")(model)),
    "another scale": put("blocks.0.attn.attn_scale", 0.7),
    "a learned scale": put("blocks.0.attn.attn_scale", parameter().abs() + 0.5),
    "another epsilon": put("blocks.0.ln1.eps", 0.5),
    "a learned epsilon": put("blocks.0.ln1.eps", parameter().abs()),
    "a method of attention": put("blocks.0.attn.apply_causal_mask", lambda scores, *_: scores),
    "a method of a block": put("blocks.0.apply_mlp", torch.zeros_like),
    "a method of the model": put("get_pos_offset", lambda cache, size: 0),
    "weights replaced": replaced_weights,
    "one head less": one_head_less,
    "a bias for all heads": shorter_bias,
    "a norm for all places": put("ln_final.w", parameter(1)),
    "layers swapped": swapped,
    "a layer cut": cut,
    "a layer twice": same_layer_twice,
    "norms without weights": flattened_norms,
    "an RMS norm": lambda model: put("blocks.0.ln1", lens.RMSNorm(model.cfg))(model),
    "no norm": put("blocks.0.ln2", torch.nn.Identity()),
    "torch's own norm": put("ln_final", torch.nn.LayerNorm(8, dtype=torch.float64)),
    "another unembedding": put("unembed", torch.nn.Linear(8, 3, dtype=torch.float64)),
    "another embedding": put("embed", torch.nn.Embedding(5, 8, dtype=torch.float64)),
    "a part in single precision": halves,
    "masked keys that are seen a little": put("blocks.0.attn.IGNORE", torch.tensor(-1.0, dtype=torch.float64)),
    "a mask changed in place": lambda model: model.blocks[1].attn.IGNORE.fill_(-1.0),
    "a hook of tokens that was never made": put("cfg.use_hook_tokens", True),
    "pruned weights": pruned,
    "parametrized weights": parametrized,
}
OURS = {
    "another dropout": put("blocks.0.attn.pattern_dropout", Halved()),
    "no dropout": put("embed_dropout", torch.nn.Identity()),
    "an alpha dropout": put("blocks.0.mlp.out_dropout", Halved()),
    "a subclass": lambda model: setattr(model, "__class__", Widening),
}


def outcome(forward: object, *given: object) -> object:
    """Logits and their gradients, or the kind of error that is raised."""
    try:
        logits = forward(*given)
        reached = [p for p in given[0].parameters() if p.requires_grad]
        weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
        gradients = torch.autograd.grad((logits * weights).sum(), reached, allow_unused=True)
        zero = torch.zeros(())
        return [logits.detach(), *(zero if gradient is None else gradient for gradient in gradients)]
    except Exception as error:
        return type(error)


def learned() -> Transformer:
    return small(dtype=torch.float64, activation="gelu_new")


def brought() -> FastTransformer:
    return randomize(sl.fast(theirs(act_fn="gelu_new")))


@pytest.mark.parametrize(
    ("build", "change"),
    [pytest.param(learned, change, id=f"ours, {name}") for name, change in (CHANGES | OURS).items()]
    + [pytest.param(brought, change, id=f"theirs, {name}") for name, change in CHANGES.items()],
)
def test_a_changed_model_computes_what_transformer_lens_computes(build: object, change: object) -> None:
    model, tokens = build(), inputs_for(learned())
    change(model)
    expected = outcome(explicit, model, tokens)
    found = outcome(FastTransformer.__call__, model, tokens)
    last = outcome(FastTransformer.answers, model, tokens, slice(-1, None))
    if isinstance(expected, type):
        assert found is last is expected
        return
    assert not isinstance(found, type) and not isinstance(last, type), (found, last)
    assert_near(dict(enumerate(found)), dict(enumerate(expected)))
    torch.testing.assert_close(last[0], expected[0][:, -1:], rtol=1e-9, atol=1e-9)


# Config fields that only constructors read, or that nothing reads.
WITHOUT_EFFECT = {
    *("a method of the model", "another activation in the config", "another config", "another epsilon in the config"),
    *("another norm in the config", "another scale in the config", "another width in the config", "unused parts"),
    *("more layers than there are", "results per head", "split inputs", "an MLP with a hook before it"),
}
# What may be changed without losing the speed.
STILL_FAST = {
    *("a layer cut", "a layer twice", "layers swapped", "fewer layers", "no layers", "more layers than there are"),
    *("an activation of torch", "another activation in the config", "attention only", "attention in both directions"),
    *("another epsilon", "another epsilon in the config", "another norm in the config", "no last norm", "no norm"),
    *("another scale", "another scale in the config", "local attention", "norms without weights", "no positions"),
    *("one head less", "weights replaced", "results per head", "split inputs", "an MLP with a hook before it"),
    "unused parts",
}


def test_the_changes_matter_and_the_known_ones_stay_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a change had no effect, or no model took the fused path, the test above would test nothing."""
    same, quick, tokens = set(), set(), inputs_for(learned())
    for name, change in CHANGES.items():
        model = learned()
        before = model(tokens).detach()
        change(model)
        expected = outcome(explicit, model, tokens)
        if isinstance(expected, type):
            continue
        if expected[0].shape == before.shape and torch.allclose(expected[0], before, rtol=1e-9, atol=1e-9):
            same.add(name)
        if taken(model, tokens, monkeypatch) == "fast":
            quick.add(name)
    assert (same, quick) == (WITHOUT_EFFECT, STILL_FAST)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_mask_that_was_changed_is_seen_at_a_call_and_when_compiling(compiled: bool) -> None:
    model = learned()
    tokens = inputs_for(model)
    assert covers(model, tokens)
    model.blocks[1].attn.IGNORE.fill_(-1.0)
    call = torch.compile(model, backend="eager") if compiled else model
    torch.testing.assert_close(call(tokens), explicit(model, tokens), rtol=1e-10, atol=1e-10)
    model.blocks[1].attn.IGNORE.fill_(-torch.inf)
    assert covers(model, tokens)


def test_a_model_built_with_a_hook_of_tokens_is_fast() -> None:
    model = sl.fast(theirs(use_hook_tokens=True))
    assert covers(model, inputs_for(learned()))


def test_a_compiled_model_takes_the_fused_path_in_one_graph() -> None:
    """The decision must be traceable, and must be the same while tracing."""
    model = learned()

    def which(tokens: Tensor) -> tuple[Tensor, bool]:
        return model(tokens), covers(model, tokens)

    tokens = inputs_for(model)
    found, covered = torch.compile(which, fullgraph=True, backend="eager")(tokens)
    assert covered
    torch.testing.assert_close(found, model(tokens), rtol=1e-10, atol=1e-10)
