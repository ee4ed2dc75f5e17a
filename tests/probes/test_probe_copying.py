"""The copying scores of induction: against dense circuits, folded weights of TransformerLens, and all permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from transformer_lens import FactoredMatrix

from kit.probe_models import lens_model, measured, omissions, tokens, transformer
from stagelens_probes.copying import Tokens, copying_scores


@pytest.mark.parametrize("d_vocab", [7, 40])  # fewer and more tokens than the 12 dimensions
def test_copying_is_that_of_the_whole_circuit(d_vocab):
    model = transformer(d_vocab=d_vocab).double()
    probe = measured(model, "induction", tokens(d_vocab=7))["copying"]
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            circuit = model.W_E @ block.attn.W_V[head] @ block.attn.W_O[head] @ model.W_U  # [d_vocab, d_vocab]
            eigenvalues = np.linalg.eigvals(circuit.detach().numpy())
            expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
            assert probe[layer, head] == pytest.approx(expected)
            lens = FactoredMatrix(model.W_E @ block.attn.W_V[head], block.attn.W_O[head] @ model.W_U).eigenvalues
            assert probe[layer, head] == pytest.approx((lens.sum().real / lens.abs().sum()).item())


def test_copying_stays_between_minus_one_and_one():
    w = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    given = Tokens.of(torch.eye(5), torch.eye(5))
    np.testing.assert_allclose(copying_scores(*given.circuits(w, w.mT))[0], 1, rtol=1e-6)
    np.testing.assert_allclose(copying_scores(*given.circuits(w, -w.mT))[0], -1, rtol=1e-6)
    assert all(part.tolist() == [0] * 4 for part in copying_scores(*given.circuits(0 * w, w.mT)))


def test_a_large_vocabulary_never_makes_a_large_matrix():
    model = transformer(d_vocab=20_000, d_mlp=None)  # d_vocab^2 would be 1.6 GB
    assert measured(model, "induction", tokens())["copying"].shape == (2, 3)


@pytest.mark.parametrize("scale", [1e-23, 1e-30, 1e4])
def test_copying_does_not_depend_on_the_size_of_the_weights(scale):
    plain, scaled = transformer(), transformer()
    with torch.no_grad():
        for block in scaled.blocks:
            block.attn.W_V *= scale
            block.attn.W_O *= scale
        scaled.embed.W_E *= scale
        scaled.unembed.W_U *= scale
    expected, found = (measured(model, "induction", tokens())["copying"] for model in (plain, scaled))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (np.abs(found) > 1e-2).any()


@pytest.mark.parametrize("kind", ["LN", "RMS"])
def test_folded_copying_is_that_of_the_circuit_with_the_weights_of_its_norms(kind):
    model = lens_model(normalization_type=kind).double()  # the weights of its norms are random too
    found = measured(model, "induction", tokens())
    center = torch.eye(12, dtype=torch.float64) - (1 / 12 if kind == "LN" else 0)
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            reads = model.W_E @ center @ torch.diag(block.ln1.w) @ block.attn.W_V[head]
            circuit = reads @ block.attn.W_O[head] @ center @ torch.diag(model.ln_final.w) @ model.W_U
            eigenvalues = np.linalg.eigvals(circuit.detach().numpy())
            expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
            assert found["copying_folded"][layer, head] == pytest.approx(expected)
            own = circuit.sum().item() / 11 / np.abs(eigenvalues).sum()  # any token's logit, in place of its own
            assert found["copying_folded_chance"][layer, head] == pytest.approx(own)
    assert np.abs(found["copying_folded"] - found["copying"]).max() > 0.05


def test_folded_copying_is_the_copying_of_the_model_that_transformer_lens_folds():
    model = lens_model(normalization_type="LN")
    before = measured(model, "induction", tokens())
    model.process_weights_(fold_ln=True, center_writing_weights=False, center_unembed=False)
    assert model.cfg.normalization_type == "LNPre"
    after = measured(model, "induction", tokens())
    for part in ("", "_chance"):
        np.testing.assert_allclose(after[f"copying{part}"], before[f"copying_folded{part}"], atol=1e-4)
        np.testing.assert_allclose(after[f"copying_folded{part}"], before[f"copying_folded{part}"], atol=1e-4)


def test_without_norms_there_is_nothing_to_fold():
    given, omitted = omissions(transformer(normalization="none"), "induction", tokens())
    assert "copying" in given and "no layer norms" in omitted["copying_folded"]


@pytest.mark.parametrize("seed", range(2))
def test_the_chance_level_is_the_mean_trace_over_all_permutations_of_the_outcomes(seed):
    torch.manual_seed(seed)
    model = lens_model(d_vocab=4).double()
    model.embed.W_E.data += 1.0  # all tokens have something in common
    found = measured(model, "induction", tokens(d_vocab=4))
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            circuit = (model.W_E @ block.attn.W_V[head] @ block.attn.W_O[head] @ model.W_U).detach().numpy()
            traces = [circuit[:, list(order)].trace() for order in permutations(range(4))]
            size = np.abs(np.linalg.eigvals(circuit)).sum()
            assert found["copying"][layer, head] == pytest.approx(circuit.trace() / size)
            assert found["copying_chance"][layer, head] == pytest.approx(np.mean(traces) / size)


def test_a_head_that_favors_the_same_tokens_whatever_it_reads_is_at_chance():
    """It scores 1 or -1, as a copying head does, and so does its chance level."""
    model = lens_model(d_vocab=11).double()
    model.embed.W_E.data = 3 + 1e-4 * model.embed.W_E.data  # almost the same embedding for all tokens
    found = measured(model, "induction", tokens())
    np.testing.assert_allclose(np.abs(found["copying"]), 1, atol=0.02)
    np.testing.assert_allclose(found["copying_chance"], found["copying"], atol=0.02)


def test_random_heads_neither_copy_nor_avoid_copying():
    scores = measured(lens_model(n_heads=40, d_head=8, d_model=16, n_layers=3), "induction", tokens())
    beyond = scores["copying"] - scores["copying_chance"]
    assert abs(beyond.mean()) < 4 * beyond.std() / beyond.size**0.5 and beyond.std() < 0.5
