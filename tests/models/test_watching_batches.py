"""Batches and outputs of every kind are measured, or refused with a one-line error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BatchEncoding

import stagelens as sl
from kit.own_models import VOCAB, hugging_face, next_token_loss, plain_model, tokens_like_text

TOKENS = tokens_like_text()
LABELLED = {"input_ids": TOKENS, "labels": TOKENS}


class Loss(nn.Module):
    """A model that computes its own loss, and returns `answer(loss, logits)`."""

    def __init__(self, answer: Callable[[Tensor | None, Tensor], Any]) -> None:
        super().__init__()
        self.net, self.answer = plain_model("scaled"), answer

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(input_ids)
        if labels is None:
            return self.answer(None, logits)
        return self.answer(F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits)


def measured(model: nn.Module, batch: Any, **options: Any) -> sl.Recorder:
    recorder = sl.Recorder(model, batch=batch, **options)
    recorder.measure(0)
    assert recorder.problems == {}
    return recorder


def test_every_kind_of_batch_gives_the_same_numbers() -> None:
    model = plain_model("scaled")
    named: Any = Loss(lambda loss, logits: logits)
    expected = measured(model, TOKENS)
    for recorder in (
        measured(model, (TOKENS,)),
        measured(model, [TOKENS]),
        measured(model, (TOKENS, TOKENS), forward=lambda model, batch: model(batch[0])),
        measured(model, {"tokens": TOKENS}),
        measured(named, {"input_ids": TOKENS}),
        measured(named, BatchEncoding({"input_ids": TOKENS})),
    ):
        for name in ("attention_sparsity/sparsity", "induction/prefix_matching", "induction/copying"):
            assert (recorder.timeline[name].values == expected.timeline[name].values).all(), name


@pytest.mark.parametrize(
    "answer",
    [
        lambda loss, logits: {"loss": loss, "logits": logits},
        lambda loss, logits: logits if loss is None else (loss, logits),
        lambda loss, logits: (logits, loss),
    ],
    ids=["mapping", "loss first", "logits first"],
)
def test_the_loss_and_the_logits_in_an_output_are_distinguished(answer: Any) -> None:
    model = Loss(answer)
    recorder = measured(model, LABELLED)
    expected = float(next_token_loss(model.net, TOKENS).detach())
    assert recorder.timeline["loss"].item() == pytest.approx(expected, rel=1e-6)
    assert {"loss_by_position/loss", "induction/prefix_matching"} <= set(recorder.timeline)
    watched = sl.watch(model, LABELLED)
    assert torch.equal(watched(LABELLED), model.net(TOKENS))


def test_hugging_face_outputs_as_tuples_have_a_loss() -> None:
    expected = measured(hugging_face("gpt2"), LABELLED, probes=["induction"])
    as_tuple = measured(hugging_face("gpt2"), {**LABELLED, "return_dict": False}, probes=["induction"])
    assert as_tuple.timeline["loss"].item() == expected.timeline["loss"].item()


def test_speech_to_text_with_a_table_of_positions_smaller_than_the_vocabulary() -> None:
    """Whisper looks its positions up with the tokens as an argument, and encoder and decoder have different lengths."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    marks = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            d_model=32,
            num_mel_bins=4,
            max_source_positions=16,
            max_target_positions=10,
            vocab_size=VOCAB,
            **sizes,
            **marks,
        )
    )
    batch = {"input_features": torch.randn(8, 4, 32), "decoder_input_ids": TOKENS[:, :10], "labels": TOKENS[:, :10]}
    recorder = measured(model, batch)
    sparsity, mass = (
        recorder.timeline[f"{name}"] for name in ("attention_sparsity/sparsity", "head_specialization/mass")
    )
    assert sparsity.shape == (1, 4, 4)
    assert list(mass.coords["lag"]) == list(range(-15, 16))
    outside = mass.sel(lag=[-15, -10, 10, 15]).values[0]
    assert (outside[:2] > 0).all()  # 16 positions
    assert (outside[2:] == 0).all()  # 10 positions


@pytest.mark.parametrize("size", [(1, 24), (8, 1), (8, 2), (1, 1)])
def test_small_batches_are_measured(size: tuple[int, int]) -> None:
    batch = TOKENS[: size[0], : size[1]]
    recorder = measured(plain_model("folded"), batch, loss=next_token_loss if size[1] > 1 else None)
    assert ("attention_sparsity/sparsity" in recorder.timeline) == (size[1] > 1)
    assert (size[1] > 1) or recorder.skipped["attention_sparsity"].startswith("no scored query")


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (
            "returned no loss",
            lambda: sl.Recorder(hugging_face("headless"), batch=LABELLED),
        ),
        (
            r"returned a tensor of shape \[\] without logits",
            lambda: sl.Recorder(
                Loss(lambda loss, logits: logits if loss is None else loss),
                batch=LABELLED,
            ),
        ),
        (
            r"forward returned a tensor of shape \[8, 24\] of torch.int64; it must return logits",
            lambda: sl.watch(plain_model("scaled"), TOKENS, forward=lambda model, batch: model(batch).argmax(-1)),
        ),
        ("cannot be called on the batch", lambda: sl.watch(plain_model("scaled"), TOKENS.float())),
        ("cannot be called on the batch", lambda: sl.watch(plain_model("scaled"), TOKENS[0])),
        (f"which has {VOCAB} rows", lambda: sl.watch(plain_model("scaled"), TOKENS + 1)),
    ],
)
def test_batches_and_outputs_that_cannot_be_used_are_one_line(words: str, made: Callable[[], Any]) -> None:
    with pytest.raises(sl.StagelensError, match=words) as error:
        made()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("way", ["scaled", "by hand"])
@pytest.mark.parametrize("left", [True, False])
def test_padding_that_only_the_model_knows_is_no_attention(way: str, left: bool) -> None:
    """The batch is a tuple of tokens and of what is padding, in whatever form the model takes it."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
            self.qkv = nn.Linear(32, 96)

        def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
            x = self.embed(tokens)
            q, k, v = (y.unflatten(2, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, 2))
            seen = ~padding[:, None, None]
            if way == "scaled":
                z = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            else:
                z = (q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v
            return self.out(z.transpose(1, 2).flatten(2))

    padding = torch.zeros_like(TOKENS, dtype=torch.bool)
    model = Padded()
    assert {"attention_sparsity", "head_specialization", "qk_alignment"} <= set(
        measured(model, (TOKENS, padding)).probes
    )
    padding[3, slice(2) if left else slice(-2, None)] = True
    recorder = measured(model, (TOKENS, padding))
    for probe in ("attention_sparsity", "head_specialization", "qk_alignment"):
        assert recorder.skipped[probe].startswith(
            "the batch is padded: the model hides some keys in some of its sequences"
        )


def test_the_tokens_of_a_decoder_are_not_those_of_its_encoder() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "vocab_size": VOCAB}
    model = BartForConditionalGeneration(BartConfig(d_model=32, **sizes, **marks)).eval()
    batch = {"input_ids": TOKENS, "decoder_input_ids": TOKENS.flip(1)}
    recorder = measured(model, batch)
    assert recorder.timeline["head_specialization/mass"].dims == ("step", "layer", "head", "lag")
    reason = "the model has cross-attention: its encoder and its decoder read different tokens"
    assert recorder.skipped["induction/prefix_matching"] == reason
    mask = torch.ones_like(TOKENS)
    mask[0, -3:] = 0
    recorder = measured(model, {**batch, "decoder_attention_mask": mask})
    assert recorder.skipped["attention_sparsity"].startswith(
        "the batch is padded: its decoder_attention_mask has 3 zeros"
    )
