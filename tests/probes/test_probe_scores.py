"""The components of attention scores: of Gaussian keys and queries with a known covariance, and of whole models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.probe_models import Written, lens_model, measured, omissions, tokens, transformer
from stagelens_probes.qk_alignment import DIMS, SAME_QUERIES
from stagelens_probes.scores import isotropic_scores

K, Q = "blocks.0.attn.hook_k", "blocks.0.attn.hook_q"
SCORES = [name for name in DIMS if name.startswith("score_")]
INVARIANT = [name for name in SCORES if not name.startswith("score_reference")]


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def heads(keys, queries, **options):
    """The readings of heads with these keys and queries, [sequence, position, head, d_head]."""
    return measured(Written({K: keys, Q: queries}), "qk_alignment", **options)


def gaussian(covariance, n=400, positions=50, seed=0):
    """Vectors [n, positions, 1, d] of this covariance [d, d]."""
    return (draw(n, positions, len(covariance), seed=seed) @ torch.linalg.cholesky(covariance).T)[:, :, None]


def spectrum(q, k):
    """Shares of the squared singular values of the scores of all pairs, by numpy; q and k are [sample, d]."""
    singular = np.linalg.svd(np.asarray(q) @ np.asarray(k - k.mean(0)).T, compute_uv=False)[: q.shape[1]] ** 2
    return singular / singular.sum()


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_keys_and_queries_have_the_spectrum_of_their_covariances(seed):
    d = 5
    of_queries, of_keys = (x @ x.T + 0.1 * torch.eye(d) for x in (draw(d, d, seed=seed), draw(d, d, seed=seed + 9)))
    found = heads(gaussian(of_keys, seed=seed), gaussian(of_queries, seed=seed + 20))
    exact = np.sort(np.linalg.eigvals((of_queries @ of_keys).numpy()).real)[::-1]
    exact /= exact.sum()
    np.testing.assert_allclose(found["score_spectrum"][0, 0], exact, atol=0.02)
    rank = np.exp(-(exact * np.log(exact)).sum())
    for name, value in (("score_top", exact[0]), ("score_rank", rank)):
        error = found[f"{name}_error"].item()
        assert 0 < error < 0.05 and abs(found[name].item() - value) < 4 * error, name


def test_the_standard_errors_are_the_spread_between_samples():
    """200 heads that differ by chance alone. The positions of a sequence are equal: only sequences are independent."""
    scale = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    k, q = ((scale * draw(100, 1, 200, 3, seed=seed)).expand(100, 5, 200, 3) for seed in (0, 1))
    found = heads(k, q, directions={"x": torch.eye(3)[0]})
    for name in ("score_top", "score_rank"):
        spread, error = found[name].std(), np.sqrt((found[f"{name}_error"] ** 2).mean())
        assert error == pytest.approx(spread, rel=0.15), name
    spread = found["score_reference"][0, :, :, 0].std(0)  # [side]
    errors = np.sqrt((found["score_reference_error"][0, :, :, 0] ** 2).mean(0))
    np.testing.assert_allclose(errors, spread, rtol=0.15)


@pytest.mark.parametrize("n", [5, 8, 9, 21])
def test_the_first_order_error_agrees_with_leaving_groups_of_sequences_out(n):
    scale = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    k, q = scale * draw(n, 12, 2, 3), draw(n, 12, 2, 3, seed=1)
    found = heads(k, q)
    size = -(-n // min(8, n))
    groups = [range(start, min(start + size, n)) for start in range(0, n, size)]
    for head in range(2):
        rest = [[i for i in range(n) if i not in group] for group in groups]
        left = [spectrum(*(x[rows, :, head].flatten(0, 1) for x in (q, k)))[0] for rows in rest]
        jackknife = (len(groups) - 1) / len(groups) ** 0.5 * np.std(left, ddof=1)
        assert found["score_top_error"][0, head] == pytest.approx(jackknife, rel=0.2)


@pytest.mark.parametrize("positions", ["learned", "alibi", "sinusoidal"])
def test_the_scores_do_not_change_under_a_change_of_basis_of_keys_and_queries(positions):
    """W_Q -> W_Q M and W_K -> W_K M^-T, with another M for each head, leaves all scores as they are."""
    model = transformer(d_head=4, positions=positions).double()
    batch = tokens(9)
    before = measured(model, "qk_alignment", batch)
    with torch.no_grad():
        for index, block in enumerate(model.blocks):
            M = draw(3, 4, 4, seed=index)
            inverse = torch.linalg.inv(M).mT
            for w, b, change in ((block.attn.W_Q, block.attn.b_Q, M), (block.attn.W_K, block.attn.b_K, inverse)):
                b += draw(*b.shape, seed=5)
                w.copy_(w @ change)
                b.copy_(torch.einsum("hd,hde->he", b, change))
            block.attn.b_Q -= torch.einsum("hd,hde->he", draw(3, 4, seed=5), M)  # a softmax sees the bias of queries
    after = measured(model, "qk_alignment", batch)
    for name in INVARIANT:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.abs(after["key_query"] - before["key_query"]).max() > 0.05
    assert np.abs(after["effective_rank"] - before["effective_rank"]).max() > 0.05


@pytest.mark.parametrize("changes", [{}, {"n_key_value_heads": 1}], ids=str)
def test_with_rotary_positions_it_is_the_spectrum_of_the_scores_of_all_pairs(changes):
    rotary = {"positional_embedding_type": "rotary", "rotary_dim": 4}
    model, batch = lens_model(**rotary, **changes).double(), tokens()
    found = measured(model, "qk_alignment", batch)
    _, cache = model.run_with_cache(batch)
    for layer in range(2):
        q, k = (cache[f"blocks.{layer}.attn.hook_rot_{name}"].detach().flatten(0, 1) for name in "qk")
        for head in range(3):
            expected = spectrum(q[:, head], k[:, head if k.shape[1] > 1 else 0])
            np.testing.assert_allclose(found["score_spectrum"][layer, head], expected, atol=1e-12)


def test_permuted_heads_have_permuted_readings():
    k, q = draw(6, 7, 4, 3), draw(6, 7, 4, 3, seed=1)
    order = [2, 0, 3, 1]
    before, after = heads(k, q), heads(k[:, :, order], q[:, :, order])
    for name in INVARIANT:
        if not name.endswith("_chance"):
            np.testing.assert_allclose(after[name], before[name][:, order], rtol=1e-12, err_msg=name)


def test_what_all_keys_have_in_common_does_not_count_and_what_all_queries_have_in_common_does():
    k, q = draw(6, 7, 2, 3), draw(6, 7, 2, 3, seed=1)
    shift = 30 * torch.ones(3, dtype=torch.float64)
    before = heads(k, q)
    np.testing.assert_allclose(heads(k + shift, q)["score_spectrum"], before["score_spectrum"], atol=1e-9)
    assert (heads(k, q + shift)["score_top"] > 0.99).all()  # one component: how well a key fits the common query


def test_constant_keys_have_no_components():
    constant = torch.full((4, 6, 1, 3), 1 / 3, dtype=torch.float32)
    found = heads(constant, draw(4, 6, 1, 3).float())
    assert [found[name].item() for name in ("score_top", "score_rank", "score_top_error")] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_queries_that_are_all_the_same_vector_have_no_score_components(dtype):
    """One component is all that one vector can have. Its direction and its alignment with the keys remain."""
    keys, one = draw(6, 7, 2, 3).to(dtype), draw(1, 1, 2, 3, seed=1).to(dtype)
    model = Written({K: keys, Q: one.expand(6, 7, 2, 3).clone()})
    given, omitted = omissions(model, "qk_alignment")
    assert not [name for name in given if name.startswith(("score_top", "score_rank", "score_spectrum"))]
    assert {omitted[name] for name in ("score_top", "score_rank", "score_spectrum")} == {SAME_QUERIES}
    found = measured(model, "qk_alignment")
    np.testing.assert_allclose(found["effective_rank"][0, :, 1], 1, atol=1e-4)
    direction = (one / one.norm(dim=-1, keepdim=True))[0, 0].double().numpy()  # [head, d]
    np.testing.assert_allclose(np.abs((found["leading"][0, :, 1] * direction).sum(-1)), 1, atol=1e-5)
    np.testing.assert_allclose(
        found["key_query"][0], (found["leading"][0, :, 0] * found["leading"][0, :, 1]).sum(-1) ** 2, atol=1e-5
    )


def test_a_layer_of_equal_queries_has_chance_one_and_another_one_its_own():
    of_second = {name.replace("0", "1"): draw(6, 7, 2, 3, seed=index) for index, name in enumerate((K, Q))}
    same = draw(1, 1, 2, 3, seed=4).expand(6, 7, 2, 3).clone()
    found = measured(Written({K: draw(6, 7, 2, 3, seed=3), Q: same} | of_second), "qk_alignment")
    for name in ("score_top", "score_rank"):
        np.testing.assert_allclose(found[name][0], 1)
        assert found[f"{name}_chance"].tolist() == pytest.approx([1, isotropic_scores(3, 42, 42)[name == "score_rank"]])


def test_one_different_query_is_enough_and_queries_that_are_all_zero_have_readings_zero():
    q = draw(1, 1, 2, 3, seed=1).expand(6, 7, 2, 3).clone()
    q[3, 2, 1] *= 1 + 1e-4
    assert "score_top" in heads(draw(6, 7, 2, 3), q)
    assert not heads(draw(6, 7, 2, 3), torch.zeros(6, 7, 2, 3))["score_top"].any()


@pytest.mark.parametrize(("d", "n_queries", "n_keys"), [(2, 30, 30), (8, 50, 200), (16, 12, 9), (8, 10**6, 10**6)])
def test_the_chance_level_is_that_of_independent_normal_vectors(d, n_queries, n_keys):
    """Against plain samples; in the limit of many vectors all d components are alike."""
    top, rank = isotropic_scores(d, n_queries, n_keys)
    if n_queries == 10**6:
        assert top == pytest.approx(1 / d, rel=0.01) and rank == pytest.approx(d, rel=0.01)
        return
    stream = np.random.default_rng(1)
    drawn = [spectrum(stream.normal(size=(n_queries, d)), stream.normal(size=(n_keys, d))) for _ in range(200)]
    ranks = [np.exp(-(p[p > 1e-12] * np.log(p[p > 1e-12])).sum()) for p in drawn]
    for found, values in ((top, [p[0] for p in drawn]), (rank, ranks)):
        assert found == pytest.approx(np.mean(values), abs=4 * np.std(values) * (1 / 64 + 1 / 200) ** 0.5)


def test_isotropic_keys_and_queries_are_at_chance():
    found = heads(draw(10, 9, 50, 6), draw(10, 9, 50, 6, seed=1))
    for name in ("score_top", "score_rank"):
        values = found[name][0]
        level = found[f"{name}_chance"][0]
        assert values.mean() == pytest.approx(level, abs=4 * values.std() * (1 / 50 + 1 / 64) ** 0.5), name


def test_directions_of_the_components_add_up_to_one_and_weigh_them_by_their_scores():
    """Keys along e0 and e1, queries along e1 and e2: the scores have one component, along e1 on both sides."""
    axes = torch.eye(4, dtype=torch.float64)
    k = (draw(9, 20, 2) @ axes[:2])[:, :, None]
    q = (draw(9, 20, 2, seed=1) @ axes[1:3])[:, :, None]
    found = heads(k, q, directions={f"e{i}": axis for i, axis in enumerate(axes)})
    np.testing.assert_allclose(found["score_top"], 1, atol=1e-9)
    shares = found["score_reference"][0, 0]  # [side, direction]
    np.testing.assert_allclose(shares.sum(-1), 1)
    assert (shares[:, 1] > 0.9).all() and (found["score_reference_chance"] == 0.25).all()
    isotropic = heads(draw(200, 50, 1, 4), draw(200, 50, 1, 4, seed=1), directions={"e1": axes[1]})
    assert isotropic["score_reference"][0, 0, :, 0] == pytest.approx([0.25, 0.25], abs=0.03)


def test_a_direction_that_is_independent_of_a_head_is_at_chance():
    units = torch.nn.functional.normalize(draw(400, 4), dim=-1)
    directions = {str(i): unit for i, unit in enumerate(units)}
    found = heads(draw(5, 6, 1, 4) * torch.tensor([3.0, 1, 1, 0.2]), draw(5, 6, 1, 4, seed=1), directions=directions)
    for shares in found["score_reference"][0, 0]:  # a side
        assert shares.mean() == pytest.approx(0.25, abs=4 * shares.std() / 20)


def test_it_does_not_jump_when_the_rank_of_ninety_percent_changes():
    """The third variance of the keys grows until three components are needed for 90%, and key_query drops by 1/3."""
    q = (draw(20, 20, 4, seed=1) * torch.tensor([1.0, 1.0, 0.1, 0.6]))[:, :, None]
    found = []
    for third in np.linspace(0.3, 0.6, 31):
        k = (draw(20, 20, 4) * torch.tensor([1.0, 1.0, third, 0.05]))[:, :, None]
        found.append({name: values.item() for name, values in heads(k, q).items() if values.size == 1})
    steps = {name: np.abs(np.diff([one[name] for one in found])).max() for name in ("key_query", "rank", "score_top")}
    assert steps["rank"] == 1 and steps["key_query"] > 0.2 and steps["score_top"] < 0.005


def test_without_directions_or_with_one_sequence_a_reason_is_given():
    _, omitted = omissions(transformer(), "qk_alignment", tokens(1))
    assert omitted.keys() == {"reference", "score_reference", "score_top_error", "score_rank_error"}
    assert "names no directions" in omitted["reference"] and "one sequence" in omitted["score_top_error"]
    _, omitted = omissions(transformer(), "qk_alignment", tokens(2))
    assert omitted.keys() == {"reference", "score_reference"}


def test_only_the_scored_queries_of_the_last_layer_enter_its_scores():
    k, q = draw(5, 8, 1, 3), draw(5, 8, 1, 3, seed=1)
    recorder = sl.Recorder(Written({K: k, Q: q}), probes=["qk_alignment"], batch=torch.zeros(5, 8))
    recorder.context.queries = slice(-3, None)
    recorder.measure(0)
    expected = spectrum(q[:, -3:, 0].flatten(0, 1), k[:, :, 0].flatten(0, 1))
    np.testing.assert_allclose(recorder.timeline["qk_alignment/score_spectrum"].values[0, 0, 0], expected, atol=1e-12)
