"""kl_to_references and loss_by_position, against torch and TransformerLens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

import stagelens as sl
from kit.probe_models import Written, measured, next_token_loss, omissions, refusal, squared_loss, tokens, transformer
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import as_settings, make_config
from stagelens.host.host import make_host

LOGITS = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REFERENCE = torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).log_softmax(-1)


def kl(reference, output=LOGITS, queries=slice(None)):
    recorder = sl.Recorder(
        Written({}, output), probes=["kl_to_references"], batch=0, references={"f": lambda batch: reference}
    )
    recorder.context.queries = queries
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


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (REFERENCE.exp(), "these are probabilities: return their logarithm"),
        (LOGITS, "return log-probabilities"),
        (REFERENCE + 0.1, "sums to 1.105 over the 5 outcomes"),
        (torch.full_like(REFERENCE, torch.nan), "sums to nan"),
        (REFERENCE.exp().float(), "these are probabilities"),
        (REFERENCE.numpy(), "gave a ndarray"),
        (REFERENCE[..., :4].log_softmax(-1), "gave shape (4, 6, 4)"),
    ],
    ids=["probabilities", "logits", "shifted", "nan", "single", "numpy", "outcomes"],
)
def test_a_reference_that_gives_no_log_probabilities_is_named(wrong, says):
    references = {"right": lambda batch: REFERENCE, "bigram": lambda batch: wrong}
    recorder = sl.Recorder(Written({}, LOGITS), probes=["kl_to_references"], batch=0, references=references)
    recorder.measure(0)
    problem = recorder.problems["kl_to_references"]
    assert "reference 'bigram'" in problem and says in problem and "\n" not in problem
    assert "kl_to_references/kl" not in recorder.timeline


def test_a_reference_in_half_precision_is_near_enough():
    recorder = sl.Recorder(
        Written({}, LOGITS), probes=["kl_to_references"], batch=0, references={"f": lambda batch: REFERENCE.bfloat16()}
    )
    recorder.measure(0)
    assert not recorder.problems


@pytest.mark.parametrize("task_id", [name for name, ref in make_host().tasks if not name.endswith("/flow")])
def test_references_and_losses_of_every_task_are_right_or_skipped_with_a_reason(task_id):
    """On weights far from the initialization, where all losses are alike."""
    kind = dict(make_host().tasks)[task_id].load()
    task = kind(make_config(kind.Config, kind.presets, "quick", as_settings({"eval_size": 24})), 1)
    model, stream = task.build_model(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=stream)
    recorder = sl.Recorder(model, ["kl_to_references", "loss_by_position"], eval_batch(task), task=task)
    for step in range(2):
        recorder.measure(step)
    assert not recorder.problems
    assert ("kl_to_references/kl" in recorder.timeline) == bool(task.references())
    if "loss_by_position/loss" in recorder.timeline:
        by_position = recorder.timeline["loss_by_position/loss"]
        np.testing.assert_allclose(by_position.mean("position"), recorder.timeline["loss"], rtol=1e-5)
        length = eval_batch(task).shape[1]  # positions are those of the tokens, whatever the model leaves out
        assert by_position.position.values.tolist() == list(range(length - 1)[task.queries()])
    else:
        assert len(recorder.skipped["loss_by_position"].split()) > 4
    assert ("loss_by_position/loss" in recorder.timeline) == (
        task_id in {"markov/minimal", "markov/full", "recall/transformer", "rich/text"}
    )


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
    overall, by_position, _ = recorder.measure(0)
    assert by_position.values.shape == (9,)
    assert by_position.values.mean() == pytest.approx(overall.values.item())


def test_loss_by_position_is_of_the_scored_positions():
    recorder = sl.Recorder(transformer(), probes=["loss_by_position"], batch=tokens())
    recorder.context.queries = slice(4, None)
    recorder.measure(0)
    assert recorder.timeline["loss_by_position/loss"].position.values.tolist() == [4, 5, 6, 7, 8]


def test_loss_by_position_takes_a_mapping_with_input_ids():
    def loss(model, batch):
        return next_token_loss(model, batch["input_ids"])

    found = measured(transformer(), "loss_by_position", {"input_ids": tokens()}, loss=loss)["loss"]
    np.testing.assert_allclose(found, measured(transformer(), "loss_by_position", tokens())["loss"])


def part_of_the_positions(model, batch):
    return next_token_loss(model, batch[:, :4])


def last_positions(model, batch):
    return next_token_loss(model, batch[:, 3:])


def smoothed(model, batch):
    logits = model(batch)[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), label_smoothing=0.1)


@pytest.mark.parametrize(
    ("loss", "batch"),
    [
        (part_of_the_positions, tokens()),
        (smoothed, tokens()),
        (lambda model, batch: next_token_loss(model, batch) + 0.01 * model.W_E.square().sum(), tokens()),
    ],
    ids=["a part of the positions", "smoothed", "with weight decay"],
)
@pytest.mark.parametrize("seed", range(2))
def test_loss_by_position_and_icl_score_are_skipped_if_the_loss_is_made_otherwise(loss, batch, seed):
    recorder = sl.Recorder(
        transformer(seed=seed, init_scale=3.0), ["loss_by_position", "induction"], batch=batch, loss=loss
    )
    recorder.measure(0)
    assert not recorder.problems
    for name in ("loss_by_position", "induction/icl_score"):
        assert f"but the recorded loss is {recorder.timeline['loss'].item():.5g}" in recorder.skipped[name]
    assert "loss_by_position/loss" not in recorder.timeline and "induction/icl_score" not in recorder.timeline


def test_a_loss_of_the_last_positions_is_paired_with_the_last_tokens():
    recorder = sl.Recorder(transformer(), ["loss_by_position"], batch=tokens(), loss=last_positions)
    overall, *found = recorder.measure(0)
    assert not found and "recorded loss" in recorder.skipped["loss_by_position"]  # 7 logits, of which 6 are used
    only = lambda model, batch: next_token_loss_of(model(batch[:, 3:-1]), batch[:, 4:])  # noqa: E731
    recorder = sl.Recorder(transformer(), ["loss_by_position"], batch=tokens(), loss=only)
    overall, by_position, _ = recorder.measure(0)
    assert by_position.values.mean() == pytest.approx(overall.values.item(), rel=1e-5)
    assert by_position.coords["position"] == [3, 4, 5, 6, 7, 8]


def next_token_loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(("positions", "says"), [(1, "1 positions for 10 tokens"), (11, "11 positions for 10 tokens")])
def test_an_output_of_other_positions_is_not_paired_without_a_loss(positions, says):
    logits = torch.randn(5, positions, 11)
    assert says in refusal(Written({}, logits), "loss_by_position", tokens())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_does_not_count_as_another_loss(dtype):
    for seed in range(3):
        model = transformer(dtype=dtype, seed=seed, init_scale=2.0)
        measured(model, "loss_by_position", tokens(n=64), loss=next_token_loss)


def test_a_wrong_pairing_is_seen_when_the_model_is_no_longer_uniform():
    model = transformer()
    model.unembed.W_U.data.zero_()
    recorder = sl.Recorder(model, ["loss_by_position"], batch=tokens(), loss=part_of_the_positions)
    recorder.measure(0)
    assert not recorder.skipped  # every loss is log 11
    model.unembed.W_U.data.normal_(generator=torch.Generator().manual_seed(0))
    recorder.measure(1)
    assert "recorded loss" in recorder.skipped["loss_by_position"] and not recorder.problems


def test_loss_by_position_gives_the_reason_if_it_does_not_apply():
    vectors = torch.randn(3, 10, 4)
    refused = lambda *given, **options: refusal(given[0], "loss_by_position", given[1], **options)  # noqa: E731
    assert "not tokens" in refused(transformer(d_in=4, d_out=4), vectors, loss=squared_loss)
    assert "not tokens" in refused(transformer(), (tokens(), tokens()), loss=lambda m, b: next_token_loss(m, b[0]))
    assert "bidirectional" in refused(transformer(causal=False), tokens())
    assert "no next token" in refused(transformer(), tokens(length=1))
    assert "3 outcomes" in refused(transformer(d_out=3), tokens())
    only_loss = lambda model, batch: model(batch, return_type="loss")  # noqa: E731
    assert "not logits" in refused(transformer(), tokens(), loss=only_loss)


@pytest.mark.parametrize("scored", [slice(3, None), slice(None, 6), slice(-2, None), slice(2, 7, 2)], ids=str)
@pytest.mark.parametrize("n_output", [1, 4, 6])
def test_an_output_with_fewer_positions_is_that_of_the_last_inputs(scored, n_output):
    """Also if the model reads all tokens but the last, and whatever the task scores."""
    output, reference = LOGITS[:, :n_output], REFERENCE[:, :n_output]
    model, batch = Written({}, output), torch.zeros(4, 9)
    loss = lambda model, batch: model(batch[:, :-1]).sum()  # noqa: E731
    recorder = sl.Recorder(model, ["kl_to_references"], batch, loss=loss, references={"f": lambda batch: reference})
    recorder.context.queries = scored
    recorder.measure(0)
    rows = [t - (8 - n_output) for t in range(8)[scored] if t >= 8 - n_output]
    assert not recorder.problems
    if rows:
        logits = output[:, rows].log_softmax(-1)
        expected = kl_div(logits, reference[:, rows], log_target=True, reduction="none").sum(-1).mean()
        assert recorder.timeline["kl_to_references/kl"].item() == pytest.approx(expected.item())
    else:
        assert "the task scores none of them" in recorder.skipped["kl_to_references"]


def padded(left):
    """A batch whose sequences have 10, 9, 8, 7 and 6 tokens."""
    there = torch.arange(10).expand(5, 10) >= torch.arange(5)[:, None]
    return {"input_ids": tokens(), "attention_mask": (there if left else there.flip(-1)).long()}


def loss_of_all(model, batch):
    return next_token_loss(model, batch["input_ids"])


@pytest.mark.parametrize("left", [True, False])
def test_probes_that_average_over_positions_refuse_a_padded_batch(left):
    batch, references = padded(left), {"f": lambda batch: torch.zeros(5, 10, 11).log_softmax(-1)}
    recorder = sl.Recorder(transformer(), None, batch, loss=loss_of_all, references=references)
    recorder.measure(0)
    refused = {"attention_sparsity", "head_specialization", "qk_alignment", "kl_to_references", "loss_by_position"}
    assert not recorder.problems and {"induction", "weight_norms"} == set(recorder.probes)
    for name in (*refused, "induction/icl_score"):
        assert "the batch is padded: its attention_mask has 10 zeros" in recorder.skipped[name], name
    ablation = sl.Recorder(transformer(), ["head_ablation"], batch, loss=loss_of_all)
    ablation.measure(0)
    assert "padded" in ablation.skipped["head_ablation/mean"] and "head_ablation/zero" in ablation.timeline


def test_a_mask_without_padding_changes_nothing():
    batch = {"input_ids": tokens(), "attention_mask": torch.ones(5, 10)}
    for probe in ("attention_sparsity", "head_specialization", "qk_alignment", "loss_by_position"):
        found, expected = (
            measured(transformer(), probe, batch, loss=loss_of_all),
            measured(transformer(), probe, tokens()),
        )
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values)


def test_the_fraction_is_that_of_the_uniform_predictor_and_errors_are_over_sequences():
    sequences = {}
    for name, log_q in (("model", LOGITS.log_softmax(-1)), ("uniform", torch.zeros_like(LOGITS).log_softmax(-1))):
        sequences[name] = kl_div(log_q, REFERENCE, log_target=True, reduction="none").sum(-1).mean(1).numpy()
    found = measured(Written({}, LOGITS), "kl_to_references", references={"f": lambda batch: REFERENCE})
    n, (kl, uniform) = len(LOGITS), sequences.values()
    assert found["kl_error"].item() == pytest.approx(kl.std(ddof=1) / n**0.5)
    assert found["fraction"].item() == pytest.approx(kl.mean() / uniform.mean())
    left = [np.delete(kl, i).mean() / np.delete(uniform, i).mean() for i in range(n)]
    jackknife = (n - 1) / n**0.5 * np.std(left, ddof=1)
    assert found["fraction_error"].item() == pytest.approx(jackknife, rel=0.1)


def test_the_uniform_model_has_fraction_one_and_a_uniform_reference_none():
    flat = torch.full_like(LOGITS, -np.log(LOGITS.shape[-1]))
    references = {"f": lambda batch: REFERENCE, "uniform": lambda batch: flat}
    recorder = sl.Recorder(Written({}, flat), probes=["kl_to_references"], batch=0, references=references)
    recorder.measure(0)
    fraction = recorder.timeline["kl_to_references/fraction"]
    assert fraction.reference.values.tolist() == ["f"] and fraction.item() == pytest.approx(1)
    assert recorder.timeline["kl_to_references/kl"].reference.values.tolist() == ["f", "uniform"]
    _, omitted = omissions(Written({}, LOGITS), "kl_to_references", references={"uniform": lambda batch: flat})
    assert "uniform" in omitted["fraction"]


def test_loss_by_position_has_the_standard_error_over_sequences():
    model, batch = transformer().double(), tokens()
    losses = model(batch, return_type="loss", loss_per_token=True).detach()
    found = measured(model, "loss_by_position", batch)
    np.testing.assert_allclose(found["loss_error"], losses.std(0) / len(batch) ** 0.5)
    _, omitted = omissions(model, "loss_by_position", tokens(1))
    assert set(omitted) == {"loss_error"} and "one sequence" in omitted["loss_error"]
