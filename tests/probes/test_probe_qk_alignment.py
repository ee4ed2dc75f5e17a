"""qk_alignment, against numpy's SVD and on planted subspaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

import stagelens as sl
from kit.probe_models import Written, lens_model, measured, omissions, refusal, tokens, transformer, written_pattern
from stagelens_probes.qk_alignment import leading_component, leading_rank

K, Q = "blocks.0.attn.hook_k", "blocks.0.attn.hook_q"


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def written(keys, queries, **cfg):
    """A model with one head of these keys and queries, [sample, d_head]."""
    return Written({K: keys[None, :, None], Q: queries[None, :, None]}, **cfg)


def in_plane(plane, n=400, noise=0.0, seed=0):
    """Samples [n, d] spread in the span of `plane` [r, d], with noise around it."""
    return draw(n, len(plane), seed=seed) @ plane + noise * draw(n, plane.shape[1], seed=seed + 1)


def test_it_agrees_with_numpys_svd_on_a_transformer():
    model, batch = transformer(d_head=6).double(), tokens()
    found = measured(model, "qk_alignment", batch)
    _, cache = model.run_with_cache(batch)
    for layer in range(2):
        for head in range(3):
            spaces, ranks = [], []
            for side, name in enumerate(("k", "q")):
                x = cache[name, layer][:, :, head].flatten(0, 1).numpy(force=True)  # [sample, d_head]
                _, singular, rows = np.linalg.svd(x, full_matrices=False)
                ratios = singular**2 / (singular**2).sum()
                np.testing.assert_allclose(found["explained"][layer, head, side], ratios, atol=1e-12)
                entropy = -(ratios * np.log(ratios)).sum()
                assert found["effective_rank"][layer, head, side] == pytest.approx(np.exp(entropy))
                assert abs(found["leading"][layer, head, side] @ rows[0]) == pytest.approx(1)
                spaces.append(rows)
                ranks.append(np.searchsorted(ratios.cumsum(), 0.9) + 1)
            rank = min(ranks)
            assert found["rank"][layer, head] == rank
            cosines = np.cos(subspace_angles(spaces[0][:rank].T, spaces[1][:rank].T))
            assert found["key_query"][layer, head] == pytest.approx((cosines**2).mean())


def test_planted_subspaces():
    axes = torch.eye(6, dtype=torch.float64)
    keys = in_plane(axes[:2], noise=1e-3)
    same = measured(written(keys, in_plane(axes[:2], noise=1e-3, seed=5)), "qk_alignment")
    assert same["rank"].item() == 2 and same["key_query"].item() == pytest.approx(1, abs=1e-3)
    apart = measured(written(keys, in_plane(axes[2:4], noise=1e-3, seed=5)), "qk_alignment")
    assert apart["key_query"].item() == pytest.approx(0, abs=1e-3)
    half = measured(written(keys, in_plane(axes[1:3], noise=1e-3, seed=5)), "qk_alignment")
    assert half["key_query"].item() == pytest.approx(0.5, abs=1e-3)
    np.testing.assert_allclose(same["effective_rank"], 2, atol=0.05)


def test_directions_that_the_task_names():
    axes = torch.eye(4, dtype=torch.float64)
    slanted = (axes[0] + axes[1])[None] / 2**0.5
    model = written(in_plane(slanted), in_plane(axes[2:3]))
    directions = {"e0": axes[0].float(), "e1": -3 * axes[1], "e2": axes[2]}
    found = measured(model, "qk_alignment", directions=directions)["reference"]  # [layer, head, side, direction]
    np.testing.assert_allclose(found[0, 0], [[0.5**0.5, 0.5**0.5, 0], [0, 0, 1]], atol=1e-12)


def test_vectors_are_not_centered():
    constant = torch.ones(50, 3, dtype=torch.float64)  # scores see it, so it counts
    found = measured(written(constant, constant), "qk_alignment")
    np.testing.assert_allclose(found["explained"][0, 0, 0], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found["leading"][0, 0], 1 / 3**0.5)
    assert found["key_query"].item() == pytest.approx(1)


def test_keys_that_are_all_zero_have_no_direction_and_no_nan():
    found = measured(written(torch.zeros(5, 3), torch.ones(5, 3)), "qk_alignment", directions={"x": torch.ones(3)})
    assert found["effective_rank"][0, 0].tolist() == pytest.approx([0, 1])
    assert found["key_query"].item() == 0 and found["rank"].item() == 0
    assert found["reference"][0, 0, :, 0].tolist() == pytest.approx([0, 1])


def test_the_rank_is_the_smallest_number_that_explains_ninety_percent():
    ratios = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.3, 0.2], [0.5, 0.4, 0.1]], dtype=torch.float64)
    assert leading_rank(ratios).tolist() == [1, 3, 2]


def test_signs_and_the_choice_between_near_equals_last():
    """Two variances cross while the directions turn slowly; eigenvectors come with arbitrary signs and order."""
    rng = np.random.default_rng(0)
    leaders, before = [], None
    for t in np.linspace(0, 1, 41):
        angle = 0.2 * t
        first, second = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        wobble = 0.03 * (-1) ** len(leaders)  # the larger of the two changes at every step
        variances, components = np.array([1 + wobble, 1 - wobble]), np.stack([first, second])
        order = np.argsort(-variances)
        components = components[order] * rng.choice([-1, 1], 2)[:, None]
        before = leading_component(torch.tensor(variances[order]), torch.tensor(components), before)
        leaders.append(before.numpy())
    steps = np.linalg.norm(np.diff(leaders, axis=0), axis=1)
    assert steps.max() < 0.01


def test_a_component_that_has_clearly_grown_larger_takes_the_lead():
    before = torch.tensor([1.0, 0.0])
    components = torch.eye(2).flip(0)  # the second axis leads
    assert leading_component(torch.tensor([1.0, 0.95]), components, before).tolist() == [1, 0]
    assert leading_component(torch.tensor([1.0, 0.85]), components, before).tolist() == [0, 1]


def test_what_must_last_is_in_the_state():
    recorder = sl.Recorder(transformer(), probes=["qk_alignment"], batch=tokens())
    first = {r.name: r.values for r in recorder.measure(0)}
    state = recorder.probes["qk_alignment"].state
    resumed = sl.Recorder(transformer(), probes=["qk_alignment"], batch=tokens())
    resumed.probes["qk_alignment"].state = {name: -value for name, value in state.items()}  # as if signs were turned
    again = {r.name: r.values for r in resumed.measure(1)}
    np.testing.assert_allclose(again["qk_alignment/leading"], -first["qk_alignment/leading"])


def ratios(x):
    """Variance ratios of x [sample, d_head] by numpy's SVD, largest first."""
    singular = np.linalg.svd(np.asarray(x), compute_uv=False)
    return singular**2 / (singular**2).sum()


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_only_the_scored_queries_count_in_the_last_layer_but_all_keys(n_layers):
    keys, queries = draw(6, 3), draw(6, 3, seed=1)
    written_to = {"hook_k": keys, "hook_q": queries}
    layers = {
        f"blocks.{layer}.attn.{hook}": x[None, :, None] for layer in range(n_layers) for hook, x in written_to.items()
    }
    recorder = sl.Recorder(Written(layers), probes=["qk_alignment"], batch=0)
    recorder.context.queries = slice(-2, None)
    explained = recorder.measure(0)[0].values[:, 0]  # [layer, side, component]
    for layer in range(n_layers):
        for side, x in enumerate((keys, queries[-2:] if layer == n_layers - 1 else queries)):
            expected = ratios(x)
            np.testing.assert_allclose(explained[layer, side, : len(expected)], expected, atol=1e-12)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("changes", [{"n_heads": 1}, {"n_heads": 3}, {"n_heads": 4, "n_key_value_heads": 2}], ids=str)
@pytest.mark.parametrize("rotary_dim", [2, 4])
def test_with_rotary_positions_it_reads_the_keys_and_queries_that_enter_the_scores(n_layers, changes, rotary_dim):
    rotary = {"positional_embedding_type": "rotary", "rotary_dim": rotary_dim}
    model, batch = lens_model(n_layers=n_layers, **rotary, **changes).double(), tokens()
    found = measured(model, "qk_alignment", batch)["explained"]  # [layer, head, side, component]
    _, cache = model.run_with_cache(batch)
    for layer in range(n_layers):
        k, q = (cache[f"blocks.{layer}.attn.hook_rot_{name}"] for name in "kq")  # [batch, position, head, d_head]
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2  # the root of d_head
        visible = torch.ones(10, 10, dtype=torch.bool).tril()
        torch.testing.assert_close(scores[..., visible], cache["attn_scores", layer][..., visible])
        for head in range(q.shape[2]):
            for side, x in enumerate((k, q)):
                expected = ratios(x[:, :, head].flatten(0, 1).detach())
                np.testing.assert_allclose(found[layer, head, side], expected, atol=1e-12)


def test_a_rotated_part_of_a_key_is_not_the_key():
    keys, queries = draw(1, 7, 2, 4), draw(1, 7, 2, 4, seed=1)
    part = {"blocks.0.attn.hook_rot_k": draw(1, 7, 1, 2), "blocks.0.attn.hook_rot_q": draw(1, 7, 2, 2)}
    whole, with_part = ({K: keys, Q: queries}, {K: keys, Q: queries} | part)
    before, after = (measured(Written(layer), "qk_alignment") for layer in (whole, with_part))
    assert set(before) - set(after) == {"key_query_chance"}
    for name, values in after.items():
        np.testing.assert_array_equal(values, before[name])


@pytest.mark.parametrize(("d_head", "rank"), [(8, 2), (8, 6), (16, 15)])
def test_random_subspaces_align_as_chance_says(d_head, rank):
    """Heads whose keys and queries are spread evenly in random subspaces of one dimension."""
    n, stream = 60, np.random.default_rng(0)
    planes = [np.linalg.qr(stream.normal(size=(n, d_head, rank)))[0] for _ in range(2)]  # [head, d_head, sample]
    keys, queries = (torch.tensor(plane).permute(2, 0, 1)[None] for plane in planes)  # [1, sample, head, d_head]
    found = measured(Written({K: keys, Q: queries}), "qk_alignment")
    level = np.ceil(0.9 * rank) / d_head  # the probe compares the components that explain 90%
    np.testing.assert_allclose(found["key_query_chance"], level)
    aligned = found["key_query"]
    assert aligned.mean() == pytest.approx(level, abs=4 * aligned.std() / n**0.5)
    assert aligned.std() > 1e-3


def test_heads_that_share_their_keys():
    keys, queries = draw(1, 9, 2, 4), draw(1, 9, 6, 4, seed=1)  # 2 heads of keys for 6 of queries
    found = measured(Written({K: keys, Q: queries}), "qk_alignment")["explained"]
    assert found.shape == (1, 6, 2, 4)
    np.testing.assert_array_equal(found[0, 0, 0], found[0, 2, 0])


def test_the_reason_is_given_if_it_does_not_apply():
    assert "attn.hook_k" in refusal(written_pattern([[1.0, 0], [0.5, 0.5]]), "qk_alignment")


def test_a_direction_of_the_wrong_size_is_named():
    recorder = sl.Recorder(transformer(), probes=["qk_alignment"], batch=tokens(), directions={"up": torch.ones(99)})
    recorder.measure(0)
    assert "'up'" in recorder.problems["qk_alignment"] and "(99,)" in recorder.problems["qk_alignment"]


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-12, 1e19, 1e30])
@pytest.mark.parametrize("d_head", [2, 5])
def test_tiny_and_huge_keys_and_queries_have_the_ratios_of_others(scale, d_head):
    """In float32 the square of 1e-23 is 0, and that of 1e20 infinite. One head of each layer has another size."""
    keys, queries = (draw(3, 20, 2, d_head, seed=seed).float() for seed in (0, 1))
    sizes = torch.tensor([1.0, scale])[:, None]
    plain = measured(Written({K: keys, Q: queries}), "qk_alignment")
    found = measured(Written({K: keys * sizes, Q: queries * sizes}), "qk_alignment")
    for name, values in plain.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_keys_that_are_not_finite_have_readings_that_are_nan(wrong):
    keys, queries = draw(1, 20, 2, 4), draw(1, 20, 2, 4, seed=1)
    keys[0, 3, 1, 0] = wrong
    recorder = sl.Recorder(Written({K: keys, Q: queries}), probes=["qk_alignment"], batch=0)
    found = {r.name.partition("/")[2]: r.array()[0] for r in recorder.measure(0)}  # [head, ...]
    for name, values in found.items():
        if name not in ("score_top_chance", "score_rank_chance"):  # those of the layer
            assert np.isfinite(values[0]).all() and np.isnan(values[1]).any(), name


@pytest.mark.parametrize("d_head", [4, 16])
def test_one_rotation_aligns_keys_and_queries_beyond_chance_so_none_is_given(d_head):
    stream = torch.Generator().manual_seed(0)
    model = lens_model(n_heads=12, d_head=d_head, positional_embedding_type="rotary", rotary_dim=d_head, n_layers=1)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream)
    batch = tokens(5).clamp(max=1)  # two directions of keys in a head, before rotation
    given, omitted = omissions(model, "qk_alignment", batch)
    assert "rotary positions" in omitted["key_query_chance"] and "key_query" in given
    found = measured(model, "qk_alignment", batch)
    beyond = found["key_query"] - found["rank"] / d_head
    assert beyond.mean() > 3 * beyond.std() / 12**0.5


@pytest.mark.parametrize("scored", [slice(3, None), slice(None, 6), slice(-2, None), slice(2, 7, 2)], ids=str)
@pytest.mark.parametrize("n_query", [1, 4, 6, 8])
def test_fewer_queries_than_inputs_are_those_of_the_last_inputs(scored, n_query):
    keys, queries = draw(8, 3), draw(n_query, 3, seed=1)
    recorder = sl.Recorder(written(keys, queries), probes=["qk_alignment"], batch=torch.zeros(1, 8))
    recorder.context.queries = scored
    readings = recorder.measure(0)
    rows = [t - (8 - n_query) for t in range(8)[scored] if t >= 8 - n_query]
    if len(rows) == 1:
        assert "one query vector" in recorder.skipped["qk_alignment"]
    elif rows:
        expected = ratios(queries[rows])
        np.testing.assert_allclose(readings[0].values[0, 0, 1, : len(expected)], expected, atol=1e-12)
    else:
        assert f"the last {n_query} of 8 positions, and the task scores none" in recorder.skipped["qk_alignment"]


def test_one_query_or_one_dimension_has_one_component_by_definition():
    one_query = sl.Recorder(written(draw(8, 3), draw(1, 3, seed=1)), ["qk_alignment"], torch.zeros(1, 8))
    one_query.measure(0)
    assert "one query vector" in one_query.skipped["qk_alignment"] and not one_query.problems
    numbers = sl.Recorder(written(draw(8, 1), draw(8, 1, seed=1)), ["qk_alignment"], torch.zeros(1, 8))
    numbers.measure(0)
    assert "single numbers" in numbers.skipped["qk_alignment"] and not numbers.problems
