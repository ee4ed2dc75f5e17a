"""weight_norms and conserved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.own_models import hugging_face, tokens_like_text
from kit.probe_models import (
    PositionalToy,
    Written,
    lens_model,
    measured,
    omissions,
    refusal,
    squared_loss,
    tokens,
    transformer,
)
from stagelens.experiments.batches import eval_batch
from stagelens.host.host import make_host
from stagelens_probes.norms import product_norms


def series(model, batch, name):
    recorder = sl.Recorder(model, probes=["weight_norms"], batch=batch)
    recorder.measure(0)
    return recorder.timeline[f"weight_norms/{name}"][0]


def test_norms_are_numpys_and_named_by_parameter():
    model = transformer(positions="alibi")
    norms = series(model, tokens(), "norm")
    for name, parameter in model.named_parameters():
        assert norms.sel(parameter=name).item() == pytest.approx(np.linalg.norm(parameter.detach().numpy().ravel()))


def test_head_norms_are_of_the_parameters_that_have_heads():
    model = transformer()
    norms = series(model, tokens(), "head_norm")
    kinds = {name.rpartition(".")[2] for name in norms.head_parameter.values}
    assert kinds == {"W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"}
    expected = np.linalg.norm(model.blocks[1].attn.W_O.detach().numpy().reshape(3, -1), axis=1)
    np.testing.assert_allclose(norms.sel(head_parameter="blocks.1.attn.W_O"), expected, rtol=1e-6)
    whole = series(model, tokens(), "norm").sel(parameter="blocks.1.attn.W_O").item()
    assert np.sqrt((expected**2).sum()) == pytest.approx(whole)


def test_head_norms_of_a_toy_are_of_the_module_with_its_pattern():
    norms = series(PositionalToy(), torch.randn(2, 6, 4), "head_norm")
    assert norms.head_parameter.values.tolist() == ["blocks.0.attn.scores", "blocks.0.attn.W_O"]


class Matrices(PositionalToy):
    """Two heads, and matrices with two rows."""

    def __init__(self, declared=None):
        super().__init__(n_heads=2)
        attn = self.blocks[0].attn
        for name in ("W_Q", "W_K", "W_V", "mixing"):
            attn.register_parameter(name, torch.nn.Parameter(torch.ones(2, 2)))
        attn.b_K = torch.nn.Parameter(torch.ones(2, 4))
        if declared is not None:
            attn.head_parameters = declared


def test_a_matrix_with_as_many_rows_as_heads_has_heads_only_if_the_model_names_them():
    names = {
        declared: series(Matrices(declared), torch.randn(2, 6, 4), "head_norm").head_parameter.values.tolist()
        for declared in (None, ("W_V", "scores"))
    }
    assert names[None] == [f"blocks.0.attn.{name}" for name in ("scores", "W_O", "b_K")]
    assert names["W_V", "scores"] == [f"blocks.0.attn.{name}" for name in ("scores", "W_V")]


def test_head_norms_of_the_toy_tasks_are_of_their_heads():
    """The square matrices of rich/high-dim have as many rows as there are heads if D = 2."""
    expected = {
        "linear-icl/sequences": ["W_V", "W_K", "W_Q"],
        "linear-icl/separate": ["k", "q"],
        "markov/minimal": ["A", "V"],
        "recall/simplified": ["w"],
        "recall/original": ["w"],
    }
    for task_id, names in expected.items():
        assert head_parameters(task_id) == [f"blocks.0.attn.{name}" for name in names], task_id
    assert head_parameters("rich/high-dim", D=2) == []


def head_parameters(task_id, **settings):
    kind = make_host().tasks[task_id].load()
    task = kind(kind.Config(**settings), 0)
    recorder = sl.Recorder(task.build_model(), ["weight_norms"], eval_batch(task), task=task)
    recorder.measure(0)
    if "weight_norms/head_norm" in recorder.skipped:
        return []
    return recorder.timeline["weight_norms/head_norm"].head_parameter.values.tolist()


@pytest.mark.parametrize("scale", [1e-24, 1e-30, 1e30])
def test_norms_of_tiny_and_huge_weights_are_right(scale):
    """In float32 the square of 1e-24 is 0, and that of 1e30 infinite."""
    model, small = transformer(), transformer()
    for parameter in small.parameters():
        parameter.data *= scale
    for name in ("norm", "head_norm"):
        plain, scaled = (series(m, tokens(), name) for m in (model, small))
        np.testing.assert_allclose(scaled, plain * scale, rtol=1e-5)


def test_a_model_whose_parameters_have_no_heads_omits_the_head_norms():
    model = PositionalToy()
    model.cfg.n_heads = 99
    given, omitted = omissions(model, "weight_norms", torch.randn(2, 6, 4))
    assert given == {"norm", "from_start"} and set(omitted) == {"head_norm", "qk_norm", "ov_norm"}
    assert "row for each head" in omitted["head_norm"]


def test_a_model_without_parameters_has_no_norms():
    assert "no parameters" in refusal(Written({}), "weight_norms")


class Balance(sl.Task):
    """A task that names two conserved quantities of the toy: one number, and one per head."""

    id = "test/balance"

    def build_model(self):
        return PositionalToy()

    def sample(self, n, generator):
        return torch.randn(n, 6, 4, generator=generator)

    def loss(self, model, batch):
        return squared_loss(model, batch)

    def conserved(self, model):
        attn = model.blocks[0].attn
        return {"scores": attn.scores.sum(), "output": attn.W_O[:, 0, 0], "nothing": 0 * attn.scores.sum()}


def test_conserved_quantities_and_their_drift():
    task = Balance(sl.TaskConfig())
    model = task.build_model()
    recorder = sl.Recorder(model, probes=["conserved"], batch=torch.randn(2, 6, 4), task=task)
    recorder.measure(0)
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] *= 1.5
    recorder.measure(1)
    assert not recorder.problems
    value, drift = (recorder.timeline[f"conserved/{name}"] for name in ("value", "drift"))
    names = ["scores", "output[0]", "output[1]", "output[2]", "nothing"]
    assert value.quantity.values.tolist() == names
    np.testing.assert_allclose(drift, [[0] * 5, [0, 0, 0.5, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(value[1, 1:4], model.blocks[0].attn.W_O[:, 0, 0].detach(), rtol=1e-6)


def test_drift_is_from_the_first_measurement_also_after_a_resume():
    task = Balance(sl.TaskConfig())
    first = sl.Recorder(task.build_model(), probes=["conserved"], batch=torch.randn(2, 6, 4), task=task)
    first.measure(0)
    state = first.probes["conserved"].state
    model = task.build_model()
    with torch.no_grad():
        model.blocks[0].attn.scores *= 3
    resumed = sl.Recorder(model, probes=["conserved"], batch=torch.randn(2, 6, 4), task=task)
    resumed.probes["conserved"].state = dict(state)
    drift = next(r for r in resumed.measure(9) if r.name == "conserved/drift")
    assert drift.values[0] == pytest.approx(2)


def test_without_named_quantities_nothing_is_conserved():
    assert "no conserved" in refusal(transformer(), "conserved", tokens())


def test_norms_of_half_precision_are_summed_in_single():
    model = transformer(d_model=300, n_heads=3, dtype=torch.bfloat16)
    norms = measured(model, "weight_norms", tokens())["norm"]
    expected = [np.linalg.norm(p.detach().double().numpy().ravel()) for p in model.parameters()]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)


def random_change(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_norms_of_the_products_are_those_of_the_whole_matrices_and_do_not_depend_on_the_basis():
    model, batch = transformer().double(), tokens()
    before = measured(model, "weight_norms", batch)
    for layer, block in enumerate(model.blocks):
        w = block.attn
        for head in range(3):
            qk, ov = w.W_Q[head] @ w.W_K[head].T, w.W_V[head] @ w.W_O[head]  # [d_model, d_model]
            assert before["qk_norm"][layer, head] == pytest.approx(torch.linalg.matrix_norm(qk).item())
            assert before["ov_norm"][layer, head] == pytest.approx(torch.linalg.matrix_norm(ov).item())
    with torch.no_grad():
        for block in model.blocks:
            M, N = random_change(3, 4, 4, seed=0), random_change(3, 4, 4, seed=1)
            for name, change in (("W_Q", M), ("W_K", torch.linalg.inv(M).mT), ("W_V", N)):
                getattr(block.attn, name).copy_(getattr(block.attn, name) @ change)
            block.attn.W_O.copy_(torch.linalg.inv(N) @ block.attn.W_O)
    after = measured(model, "weight_norms", batch)
    for name in ("qk_norm", "ov_norm"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-9)
    assert np.abs(after["head_norm"] - before["head_norm"]).max() > 0.1


def test_heads_that_share_keys_each_have_a_product():
    model = lens_model(n_heads=4, n_key_value_heads=2).double()
    found = measured(model, "weight_norms", tokens())["qk_norm"]
    w = model.blocks[1].attn
    expected = [torch.linalg.matrix_norm(w.W_Q[head] @ w.W_K[head].T).item() for head in range(4)]
    np.testing.assert_allclose(found[1], expected)


@pytest.mark.parametrize("scale", [1e-15, 1e12])
def test_products_of_tiny_and_huge_weights_have_their_norm(scale):
    a, b = (random_change(2, 5, 3, seed=seed).float() * scale for seed in (0, 1))
    expected = torch.linalg.matrix_norm(a.double() @ b.double().mT)
    np.testing.assert_allclose(product_norms([(a, b)])[0].double(), expected, rtol=1e-5)


def test_a_watched_model_has_the_norms_of_its_products():
    attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    layer.self_attn = attention
    found = measured(layer, "weight_norms", torch.randn(3, 5, 6))
    q, k, _ = attention.in_proj_weight.detach().reshape(3, 2, 3, 6)  # [head, d_head, d_model] each
    np.testing.assert_allclose(found["qk_norm"][0], torch.linalg.matrix_norm(q.mT @ k), rtol=1e-5)


def test_matrices_in_another_layout_have_no_products():
    _, omitted = omissions(Matrices(), "weight_norms", torch.randn(2, 6, 4))
    assert (
        omitted["qk_norm"] == "the layers do not have W_Q as [head, d_model, d_head] and W_K as [head, d_model, d_head]"
    )
    assert (
        omitted["ov_norm"] == "the layers do not have W_V as [head, d_model, d_head] and W_O as [head, d_head, d_model]"
    )


def test_models_that_normalize_queries_and_keys_have_the_other_product():
    model = hugging_face("qwen3")
    found = measured(model, "weight_norms", tokens_like_text())
    own = model.model.layers[1].self_attn
    v, o = own.v_proj.weight.detach().view(2, 8, 32), own.o_proj.weight.detach().view(32, 4, 8)
    expected = [torch.linalg.matrix_norm(v[head // 2].T @ o[:, head].T).item() for head in range(4)]
    np.testing.assert_allclose(found["ov_norm"][1], expected, rtol=1e-5)
    assert "qk_norm" not in found


def test_the_distance_is_from_the_first_measurement_also_after_a_resume():
    model = transformer().double()
    recorder = sl.Recorder(model, probes=["weight_norms"], batch=tokens())
    recorder.measure(0)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    resumed = sl.Recorder(model, probes=["weight_norms"], batch=tokens())
    resumed.load_state(recorder.state(), recorder.measurements)
    for step in (1, 2):
        with torch.no_grad():
            for index, p in enumerate(model.parameters()):
                p += (index > 0) * random_change(*p.shape, seed=step)
        for one in (recorder, resumed):
            one.measure(step)
    distances = recorder.timeline["weight_norms/from_start"]
    for name, p in model.named_parameters():
        expected = [0, torch.linalg.vector_norm(p.detach() - start[name]).item()]
        np.testing.assert_allclose(distances.sel(parameter=name)[[0, 2]], expected, rtol=1e-9)
    np.testing.assert_array_equal(distances, resumed.timeline["weight_norms/from_start"])
    assert not distances[:, 0].any() and (distances[1:, 1:] > 0).all()  # the first parameter did not move


def test_the_start_of_a_large_model_is_not_stored(monkeypatch):
    monkeypatch.setattr("stagelens_probes.weight_norms.MOST_STORED", 1000)
    given, omitted = omissions(transformer(), "weight_norms", tokens())
    assert "norm" in given and "parameters" in omitted["from_start"]
