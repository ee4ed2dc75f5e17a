"""Measuring leaves a model as it is: its buffers, modes and hooks, after errors, in threads, with two recorders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stagelens as sl
from kit.own_models import HEADS, LAYERS, VOCAB, WIDTH, hugging_face, next_token_loss, plain_model, tokens_like_text
from recording.test_own_models import COSTLY, EVERY, assert_same, train

TOKENS = tokens_like_text()


class Counting(nn.Module):
    """Counts its calls in buffers, in place and by a new tensor, in evaluation mode too; draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = plain_model("by hand", dropout=0.1), nn.BatchNorm1d(VOCAB)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(VOCAB))
        self.calls: Tensor
        self.mean: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.norm(self.inner(tokens).mT).mT
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean((0, 1))
        return logits + self.mean * torch.rand(())


class Encoder(nn.Module):
    """PyTorch's own encoder, positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.1)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        out: Tensor = self.out(self.body(self.embed(tokens.T), mask=mask, is_causal=True)).transpose(0, 1)
        return out


@pytest.mark.parametrize("made", [Counting, Encoder])
def test_a_measured_training_of_a_model_with_state_is_the_unmeasured_one(made: Callable[[], nn.Module]) -> None:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return made()

    plain = train(seeded(), lambda step: None)
    model = seeded()
    recorder = sl.Recorder(model, [*EVERY, *COSTLY], batch=TOKENS, loss=next_token_loss)
    assert_same(plain, train(model, recorder.measure))
    assert recorder.problems == {}


def installed(model: nn.Module) -> list[str]:
    """Returns the hooks and modes that a measurement could have left behind."""
    modules = dict(model.named_modules())
    found = [path for path, one in modules.items() if one._forward_hooks or one._forward_pre_hooks]
    if F.scaled_dot_product_attention is not torch._C._nn.scaled_dot_product_attention:
        found.append("F.scaled_dot_product_attention")
    if torch.overrides._get_current_function_mode() is not None:
        found.append("a function mode")
    if not torch.backends.mha.get_fastpath_enabled():
        found.append("the fast path is off")
    return found


class Stopping(sl.Probe):
    """Stops in the middle of a pass, as ctrl-C does."""

    name, title, gives, hooks = "stopping", "stops", ("x",), ("attn.hook_pattern",)

    def reduce(self, activation: Tensor, site: Any, context: Any) -> None:
        raise KeyboardInterrupt

    def readings(self, reduced: Any, context: Any) -> Iterable[sl.Reading]:
        return []


@pytest.mark.parametrize("way", ["multihead", "by hand"])
def test_nothing_stays_after_ctrl_c_or_an_error_of_the_model(way: str) -> None:
    model = plain_model(way, dropout=0.1)
    model.train()
    with pytest.raises(KeyboardInterrupt):
        sl.Recorder(model, [Stopping], batch=TOKENS).measure(0)
    assert installed(model) == []
    assert all(module.training for module in model.modules())
    recorder = sl.Recorder(model, EVERY, batch=TOKENS)
    head, model.head = model.head, nn.Linear(1, 1)
    with pytest.raises(RuntimeError):
        recorder.measure(0)
    model.head = head
    assert installed(model) == []
    assert recorder.measure(1)


def test_two_recorders_and_a_watched_model_agree() -> None:
    model = plain_model("multihead")
    recorders = [sl.Recorder(one, EVERY, batch=TOKENS) for one in (model, model, sl.watch(model, TOKENS))]
    for recorder in recorders:
        recorder.measure(0)
    first, *others = [recorder.timeline["attention_sparsity/sparsity"].values for recorder in recorders]
    assert all((other == first).all() for other in others)


def test_another_thread_attends_while_a_model_is_measured() -> None:
    watched, other = sl.watch(plain_model("multihead"), TOKENS), plain_model("multihead", seed=1).eval()
    expected = other(TOKENS).detach()
    given: list[Tensor] = []

    def elsewhere(pattern: Tensor, hook: Any) -> None:
        thread = threading.Thread(target=lambda: given.append(other(TOKENS).detach()))
        thread.start()
        thread.join()

    seen: list[str] = []
    hooks = [("blocks.0.attn.hook_pattern", elsewhere), (lambda name: True, lambda x, hook: seen.append(hook.name))]
    watched.run_with_hooks(TOKENS, fwd_hooks=hooks)
    torch.testing.assert_close(given[0], expected)
    assert len(seen) == len(set(seen))


def test_every_call_inside_hooks_is_seen_if_forward_goes_around_the_root() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_model("scaled")

        def forward(self, tokens: Tensor) -> Tensor:
            return next_token_loss(self.net, tokens)

    watched = sl.watch(Wrapper(), TOKENS, forward=lambda model, batch: model.net(batch))
    seen: list[Tensor] = []
    with watched.hooks(fwd_hooks=[("blocks.1.attn.hook_pattern", lambda x, hook: seen.append(x.detach()))]):
        watched(TOKENS)
        watched(TOKENS)
    assert len(seen) == 2
    assert torch.equal(*seen)


def test_probes_give_plain_reasons() -> None:
    headless = sl.Recorder(hugging_face("headless"), EVERY, batch={"input_ids": TOKENS})
    headless.measure(0)
    assert headless.problems == {}
    assert headless.skipped["loss_by_position"] == "the model's output is not logits [batch, position, token]"
    batch = {"input_ids": TOKENS, "decoder_input_ids": TOKENS}
    translator = sl.Recorder(hugging_face("t5"), EVERY, batch=batch)
    translator.measure(0)
    assert translator.problems == {}
    assert translator.skipped["induction/prefix_matching"].startswith("the model has cross-attention")
    factorized = sl.Recorder(hugging_face("electra"), EVERY, batch={"input_ids": TOKENS, "labels": TOKENS})
    factorized.measure(0)
    assert factorized.problems == {} and "induction/prefix_matching" in factorized.timeline
    several = "W_E, W_U, W_V and W_O have several widths (16, 32), not one d_model"
    assert factorized.skipped["induction/copying"] == several


def test_repeated_tokens_reach_a_forward_that_takes_a_mapping() -> None:
    model = plain_model("scaled")
    recorder = sl.Recorder(
        model,
        ["induction"],
        batch={"x": TOKENS, "weight": torch.ones(3)},
        forward=lambda model, batch: model(batch["x"]),
    )
    recorder.measure(0)
    expected = sl.Recorder(model, ["induction"], batch=TOKENS)
    expected.measure(0)
    for name in ("induction/prefix_matching", "induction/copying"):
        assert (recorder.timeline[name].values == expected.timeline[name].values).all()


@pytest.mark.parametrize("batch", [torch.zeros(0, 8, dtype=torch.long), {"input_ids": torch.zeros(0, 8).long()}])
def test_a_batch_without_sequences_is_refused_in_one_line(batch: Any) -> None:
    with pytest.raises(sl.StagelensError, match=r"the batch has no sequences \(shape \[0, 8\]\); give at least one"):
        sl.Recorder(plain_model("scaled"), batch=batch)


def test_a_model_whose_parameters_have_no_values_is_refused_in_one_line() -> None:
    with pytest.raises(sl.StagelensError, match="on the device 'meta', where parameters have no values"):
        sl.Recorder(plain_model("scaled").to("meta"), batch=torch.zeros(2, 8).long())
