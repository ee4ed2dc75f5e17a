"""kl_to_references and loss_by_position, against torch and TransformerLens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from probe_models import Written, measured, next_token_loss, refusal, squared_loss, tokens, transformer
from torch.nn.functional import kl_div

import stagelens as sl

LOGITS = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REFERENCE = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).log_softmax(-1)


def kl(reference, output=LOGITS, queries=slice(None)):
    recorder = sl.Recorder(
        Written({}, output), probes=["kl_to_references"], batch=0, references={"f": lambda batch: reference}
    )
    recorder.scene.queries = queries
    readings = recorder.measure(0)
    assert not recorder.problems, recorder.problems
    return readings[0].values.item()


def test_kl_is_that_of_torch():
    expected = kl_div(LOGITS.log_softmax(-1), REFERENCE, log_target=True, reduction="none").sum(-1).mean()
    assert kl(REFERENCE) == pytest.approx(expected.item())
    assert kl(LOGITS.log_softmax(-1)) == pytest.approx(0, abs=1e-12)


def test_kl_takes_outcomes_that_the_reference_rules_out():
    probabilities = REFERENCE.exp()
    probabilities[..., 0] = 0
    probabilities /= probabilities.sum(-1, keepdim=True)
    expected = kl_div(LOGITS.log_softmax(-1), probabilities, reduction="none").sum(-1).mean()
    assert kl(probabilities.log()) == pytest.approx(expected.item())


def test_kl_is_over_the_scored_positions():
    expected = kl_div(LOGITS.log_softmax(-1), REFERENCE, log_target=True, reduction="none").sum(-1)[:, 2:].mean()
    assert kl(REFERENCE, queries=slice(2, None)) == pytest.approx(expected.item())
    assert kl(REFERENCE[:, 2:], queries=slice(2, None)) == pytest.approx(expected.item())


def test_kl_of_a_model_with_one_prediction_per_sequence():
    expected = kl_div(LOGITS[:, 0].log_softmax(-1), REFERENCE[:, 0], log_target=True, reduction="batchmean")
    assert kl(REFERENCE[:, 0], output=LOGITS[:, 0], queries=slice(-1, None)) == pytest.approx(expected.item())


def test_a_reference_of_another_shape_is_named():
    recorder = sl.Recorder(
        Written({}, LOGITS), probes=["kl_to_references"], batch=0, references={"bigram": lambda batch: REFERENCE[:2]}
    )
    recorder.measure(0)
    assert "'bigram'" in recorder.problems["kl_to_references"] and "(2, 6, 5)" in recorder.problems["kl_to_references"]


def test_without_references_there_is_no_kl():
    assert "no reference" in refusal(transformer(), "kl_to_references", tokens())


def test_loss_by_position_is_that_of_transformer_lens():
    model, batch = transformer().double(), tokens()
    expected = model(batch, return_type="loss", loss_per_token=True).mean(0)  # [position]
    found = measured(model, "loss_by_position", batch)["loss"]
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-10)


def test_loss_by_position_where_the_loss_feeds_all_but_the_last_token():
    model, batch = transformer().double(), tokens()

    def loss(model, batch):
        return model(batch[:, :-1]).log_softmax(-1).gather(-1, batch[:, 1:, None]).neg().mean()

    recorder = sl.Recorder(model, probes=["loss_by_position"], batch=batch, loss=loss)
    overall, by_position = recorder.measure(0)
    assert by_position.values.shape == (9,)
    assert by_position.values.mean() == pytest.approx(overall.values.item())


def test_loss_by_position_is_of_the_scored_positions():
    recorder = sl.Recorder(transformer(), probes=["loss_by_position"], batch=tokens())
    recorder.scene.queries = slice(4, None)
    recorder.measure(0)
    assert recorder.timeline["loss_by_position/loss"].position.values.tolist() == [4, 5, 6, 7, 8]


def test_loss_by_position_takes_a_mapping_with_input_ids():
    def loss(model, batch):
        return next_token_loss(model, batch["input_ids"])

    found = measured(transformer(), "loss_by_position", {"input_ids": tokens()}, loss=loss)["loss"]
    np.testing.assert_allclose(found, measured(transformer(), "loss_by_position", tokens())["loss"])


def test_loss_by_position_says_why_not():
    vectors = torch.randn(3, 10, 4)
    refused = lambda *given, **options: refusal(given[0], "loss_by_position", given[1], **options)  # noqa: E731
    assert "not tokens" in refused(transformer(d_in=4, d_out=4), vectors, loss=squared_loss)
    assert "not tokens" in refused(transformer(), (tokens(), tokens()), loss=lambda m, b: next_token_loss(m, b[0]))
    assert "bidirectional" in refused(transformer(causal=False), tokens())
    assert "no next token" in refused(transformer(), tokens(length=1))
    assert "3 outcomes" in refused(transformer(d_out=3), tokens())
    only_loss = lambda model, batch: model(batch, return_type="loss")  # noqa: E731
    assert "not logits" in refused(transformer(), tokens(), loss=only_loss)
