"""The probes that need more than the shared pass: head_ablation, gradient, curvature."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import nn
from torch.nn.functional import cosine_similarity
from torch.nn.utils import parameters_to_vector
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

import stagelens as sl
from kit.probe_models import (
    PositionalToy,
    measured,
    next_token_loss,
    omissions,
    refusal,
    squared_loss,
    tokens,
    transformer,
)
from stagelens.experiments.batches import eval_batch
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens.recording.context import Site
from stagelens.recording.probes import Omitted
from stagelens_emergence.tasks.regression import Regression
from stagelens_probes.curvature import extreme_eigenvalues, hessian_operator
from stagelens_probes.head_ablation import HeadAblation


def test_zero_ablation_is_a_head_without_output_weights():
    model, batch = transformer().double(), tokens()
    found = measured(model, "head_ablation", batch, loss=next_token_loss)["zero"]
    base = next_token_loss(model, batch).item()
    for layer in range(2):
        for head in range(3):
            without = deepcopy(model)
            without.blocks[layer].attn.W_O.data[head] = 0
            assert found[layer, head] == pytest.approx(next_token_loss(without, batch).item() - base, abs=1e-12)


def test_mean_ablation_is_a_head_whose_output_is_its_mean_over_the_batch():
    model, batch = transformer(normalization="none").double(), tokens()
    found = measured(model, "head_ablation", batch, loss=next_token_loss)["mean"]
    _, cache = model.run_with_cache(batch)
    base = next_token_loss(model, batch).item()
    head, attn = 1, model.blocks[1].attn
    z = cache["z", 1][:, :, head]
    shift = (z.mean(0) - z) @ attn.W_O[head]  # what mean ablation adds to the residual stream
    after = [("blocks.1.hook_attn_out", lambda out, hook: out + shift)]
    with model.hooks(fwd_hooks=after):
        assert found[1, head] == pytest.approx(next_token_loss(model, batch).item() - base, abs=1e-12)


def test_a_head_that_gives_the_same_for_every_sequence_loses_nothing_by_its_mean():
    same = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(5, 6, 4)
    found = measured(PositionalToy().double(), "head_ablation", same, loss=squared_loss)
    np.testing.assert_allclose(found["mean"], 0, atol=1e-12)
    assert (np.abs(found["zero"]) > 1e-3).all()


class SameForAll(HookedRootModule):
    """A head that is computed once for all sequences, and a head per sequence: [batch, pos, d] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": nn.ModuleDict({"hook_z": HookPoint()})}) for _ in range(2))
        self.setup()

    def forward(self, x):
        once = self.blocks[0]["attn"]["hook_z"](torch.ones_like(x[:1])[:, :, None])  # [1, pos, 1, d]
        each = self.blocks[1]["attn"]["hook_z"](x[:, :, None])
        return (once + each)[:, :, 0]


def ablated(model, batch):
    """Returns the readings of the probe by name."""
    probe, context, reduced = HeadAblation(), sl.Recorder(model, [], batch, loss=squared_loss).context, {}

    def keep(z, hook):
        site = Site.of(hook.name)
        reduced[site] = probe.reduce(z, site, context)

    with torch.no_grad():
        context.loss = context.run(hooks=[(site.name, keep) for site in context.sites("attn.hook_z")])
        return {reading.name: reading for reading in probe.readings(reduced, context)}


def test_mean_ablation_is_omitted_where_there_is_one_sequence_to_take_the_mean_of():
    found = ablated(SameForAll(), torch.randn(1, 3, 2))
    assert isinstance(found["zero"], sl.Reading)
    assert isinstance(found["mean"], Omitted) and "one sequence" in found["mean"].reason


def test_mean_ablation_of_a_layer_that_is_computed_once_for_all_sequences_is_nan():
    batch = torch.randn(4, 3, 2)
    given = {name: reading for name, reading in ablated(SameForAll(), batch).items() if isinstance(reading, sl.Reading)}
    found = {name: reading.array() for name, reading in given.items()}
    assert np.isnan(found["mean"][0]) and not np.isnan(found["zero"]).any()
    base, mean = batch + 1, batch.mean(0) + 1
    expected = (mean - batch).square().mean() - (base - batch).square().mean()
    assert found["mean"][1].item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_gradient_is_that_of_backward():
    model, batch = transformer().double(), tokens()
    recorder = sl.Recorder(model, probes=["gradient"], batch=batch, loss=next_token_loss)
    recorder.measure(0)
    assert "gradient/cosine" not in list(recorder.timeline)  # there is nothing before the first
    before = deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    recorder.measure(1)
    assert not recorder.problems

    after = deepcopy(model)
    for each in (before, after):
        next_token_loss(each, batch).backward()
    norm, cosine = (recorder.timeline[f"gradient/{name}"].sel(step=1) for name in ("norm", "cosine"))
    for group in norm.group.values:
        chosen = [n for n, _ in model.named_parameters() if group == "all" or n.rpartition(".")[0] == group]
        one, two = (torch.cat([dict(m.named_parameters())[n].grad.flatten() for n in chosen]) for m in (before, after))
        assert norm.sel(group=group).item() == pytest.approx(two.norm().item())
        assert cosine.sel(group=group).item() == pytest.approx(cosine_similarity(one, two, dim=0).item(), abs=1e-9)
    assert {"all", "embed", "pos_embed", "blocks.0.attn", "blocks.1.mlp", "unembed"} <= set(norm.group.values)


def test_the_gradient_of_frozen_parameters_is_zero_and_may_thaw():
    model = transformer()
    model.embed.W_E.requires_grad_(False)
    recorder = sl.Recorder(model, probes=["gradient"], batch=tokens(), loss=next_token_loss)
    recorder.measure(0)
    model.embed.W_E.requires_grad_(True)
    recorder.measure(1)
    assert not recorder.problems
    norm = recorder.timeline["gradient/norm"].sel(group="embed").values
    assert norm[0] == 0 and norm[1] > 0
    assert recorder.timeline["gradient/cosine"].sel(group="embed").values[1] == 0


def test_curvature_is_the_ends_of_the_hessians_spectrum():
    model, batch = PositionalToy(n_heads=2, n_ctx=4, d=3).double(), torch.randn(7, 4, 3, dtype=torch.float64)
    found = measured(model, "curvature", batch, loss=squared_loss)
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def of(vector):
        parts = vector.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return (torch.func.functional_call(model, named, (batch,)) - batch).square().mean()

    hessian = torch.autograd.functional.hessian(of, parameters_to_vector(model.parameters()).detach())
    eigenvalues = torch.linalg.eigvalsh(hessian)
    scale = eigenvalues.abs().max().item()
    assert found["largest"] == pytest.approx(eigenvalues[-1].item(), abs=2e-3 * scale)
    assert found["smallest"] == pytest.approx(eigenvalues[0].item(), abs=2e-3 * scale)


SHRUNK = ["T=6", "d=2", "layers=2", "heads=2", "d_model=6", "d_head=2", "mlp_factor=1", "eval_size=8"]


@pytest.mark.parametrize("lr", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("seed", range(2))
def test_curvature_of_briefly_trained_models_is_that_of_the_dense_hessian(lr, seed):
    """Four training lengths each: 24 models. Their spectra have a large positive end and a small negative one."""
    task = Regression(make_config(Regression.Config, Regression.presets, "quick", [*SHRUNK, f"lr={lr}"]), seed)
    training, batch = Training(task), eval_batch(task)
    done = 0
    for steps in (0, 20, 60, 120):
        for step in range(done, steps):
            training.advance(step)
        done = steps
        model = training.model.eval()
        found = measured(model, "curvature", batch, task=task)
        parameters = [p for p in model.parameters() if p.requires_grad]
        times = torch.vmap(hessian_operator(task.loss(model, batch), parameters))
        hessian = times(torch.eye(sum(p.numel() for p in parameters))).double()
        model.train()
        expected = torch.linalg.eigvalsh((hessian + hessian.T) / 2)
        floor = 1e-4 * expected.abs().max().item()
        assert found["largest"] == pytest.approx(expected[-1].item(), rel=1e-2, abs=floor)
        assert found["smallest"] == pytest.approx(expected[0].item(), rel=1e-2, abs=floor)


def test_curvature_of_a_larger_model_is_that_of_arpack():
    task = Regression(make_config(Regression.Config, Regression.presets, "quick", ["T=8", "eval_size=16"]), 0)
    training, batch = Training(task), eval_batch(task)
    for step in range(60):
        training.advance(step)
    model = training.model.eval()
    found = measured(model, "curvature", batch, task=task)
    parameters = [p for p in model.parameters() if p.requires_grad]
    times, n = hessian_operator(task.loss(model, batch), parameters), sum(p.numel() for p in parameters)
    of = lambda v: times(torch.tensor(v.ravel(), dtype=torch.float32)).double().numpy()  # noqa: E731
    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=of, dtype=np.float64)
    expected = np.sort(scipy.sparse.linalg.eigsh(operator, k=2, which="BE", tol=1e-4, return_eigenvectors=False))
    np.testing.assert_allclose([found["smallest"], found["largest"]], expected, rtol=1e-2)
    assert found["residual_largest"] < 0.01 * found["largest"] and found["residual_smallest"] < 0.01 * found["largest"]


def test_lanczos_does_not_stop_at_an_inner_eigenvalue():
    """Many eigenvalues near 0, a large one, and a single negative one that shows late."""
    values = torch.cat([torch.linspace(0, 1e-3, 900), torch.linspace(0.1, 40, 20), torch.tensor([-0.15])]).double()
    for seed in range(5):
        start = torch.randn(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ends = extreme_eigenvalues(lambda v: values * v, start)
        assert ends.smallest == pytest.approx(-0.15, rel=1e-2) and ends.largest == pytest.approx(40, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-23, 1e-30, 1.0, 1e25])
def test_tiny_and_huge_gradients_have_their_norm_and_cosine(scale):
    """In float32 the square of 1e-23 is 0, and that of 1e25 infinite."""
    model = transformer()
    loss = lambda model, batch: next_token_loss(model, batch) * scale  # noqa: E731
    plain = sl.Recorder(transformer(), probes=["gradient"], batch=tokens(), loss=next_token_loss)
    scaled = sl.Recorder(model, probes=["gradient"], batch=tokens(), loss=loss)
    for step in range(2):
        for recorder in (plain, scaled):
            recorder.measure(step)
            with torch.no_grad():
                for parameter in recorder.context.model.parameters():
                    parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    expected, found = (recorder.timeline for recorder in (plain, scaled))
    np.testing.assert_allclose(found["gradient/norm"], expected["gradient/norm"] * scale, rtol=1e-3)
    np.testing.assert_allclose(found["gradient/cosine"], expected["gradient/cosine"], atol=1e-3)
    assert expected["gradient/norm"].min() > 0 and (expected["gradient/cosine"][1] < 0.999).any()


@pytest.mark.parametrize("n", [1, 2, 5, 300])
def test_lanczos_agrees_with_scipy(n):
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    matrix = matrix + matrix.T
    ends = extreme_eigenvalues(lambda v: matrix @ v, torch.ones(n, dtype=torch.float64))
    if n < 6:
        expected = np.linalg.eigvalsh(matrix.numpy())
    else:
        expected = np.sort(scipy.sparse.linalg.eigsh(matrix.numpy(), k=2, which="BE", return_eigenvectors=False))
    np.testing.assert_allclose([ends.smallest, ends.largest], expected[[0, -1]], rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 40, 300])
def test_residuals_are_those_of_unit_vectors(n, dtype):
    """The estimate of the iteration itself is 0 if the space is exhausted, for any rounding error."""
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).to(dtype)
    matrix, asked = matrix + matrix.T, []

    def operator(v):
        asked.append(v)
        return matrix @ v

    ends = extreme_eigenvalues(operator, torch.ones(n, dtype=dtype))
    eigenvalues = np.linalg.eigvalsh(matrix.double().numpy())
    last = zip(asked[-2:], (ends.largest, ends.smallest), (ends.residual_largest, ends.residual_smallest), strict=True)
    for v, value, residual in last:
        assert v.norm().item() == pytest.approx(1, abs=1e-5)
        assert residual == pytest.approx((matrix @ v - value * v).norm().item(), rel=1e-5) and residual > 0
        true = (matrix.double() @ v.double() - value * v.double()).norm().item() / v.double().norm().item()
        assert np.abs(eigenvalues - value).min() <= true * (1 + 1e-9)


def test_lanczos_ends_where_the_operator_does():
    zero = extreme_eigenvalues(torch.zeros_like, torch.ones(5))
    assert (zero.largest, zero.smallest) == (0, 0)
    identity = extreme_eigenvalues(lambda v: 3 * v, torch.ones(5))
    assert (identity.largest, identity.smallest) == pytest.approx((3, 3))


def test_curvature_of_a_loss_without_curvature_is_zero():
    linear = lambda model, batch: model.blocks[0].attn.W_O.sum() + 0 * model(batch).sum().detach()  # noqa: E731
    found = measured(PositionalToy(), "curvature", torch.randn(2, 6, 4), loss=linear)
    assert found["largest"] == 0 and found["smallest"] == 0


@pytest.mark.parametrize("probe", ["head_ablation", "gradient", "curvature"])
def test_without_a_loss_they_give_their_reason(probe):
    assert "no loss is known" in refusal(transformer(), probe, tokens())


@pytest.mark.parametrize("probe", ["gradient", "curvature"])
def test_a_model_that_cannot_be_trained_has_no_gradient(probe):
    model = transformer().requires_grad_(False)
    assert "no parameter" in refusal(model, probe, tokens(), loss=next_token_loss)


def test_errors_of_ablation_are_over_sequences():
    model, batch = transformer().double(), tokens()
    found = measured(model, "head_ablation", batch, loss=next_token_loss)
    without = deepcopy(model)
    without.blocks[0].attn.W_O.data[1] = 0
    losses = [one(batch, return_type="loss", loss_per_token=True).mean(1).detach() for one in (without, model)]
    change = losses[0] - losses[1]  # [sequence]
    assert found["zero"][0, 1] == pytest.approx(change.mean().item())
    assert found["zero_error"][0, 1] == pytest.approx(change.std().item() / len(batch) ** 0.5)
    assert found["mean_error"].shape == (2, 3)


def test_another_loss_has_no_errors_of_ablation():
    _, omitted = omissions(PositionalToy(), "head_ablation", torch.randn(5, 6, 4), loss=squared_loss)
    assert set(omitted) == {"zero_error", "mean_error"} and "loss of each sequence" in omitted["zero_error"]


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, x), lambda x: {"tokens": x}], ids=["one", "tuple", "dict"])
def test_halves_of_the_batch_have_the_cosine_of_their_gradients(wrap):
    model, batch = transformer().double(), tokens(7)

    def loss(model, given):
        given = given["tokens"] if isinstance(given, dict) else given[0] if isinstance(given, tuple) else given
        return next_token_loss(model, given)

    recorder = sl.Recorder(model, probes=["gradient"], batch=wrap(batch), loss=loss)
    recorder.measure(0)
    found = recorder.timeline["gradient/halves_cosine"][0]
    gradients = []
    for half in (batch[:3], batch[3:6]):  # the last sequence of an odd number counts in neither
        model.zero_grad()
        next_token_loss(model, half).backward()
        gradients.append(parameters_to_vector(p.grad for p in model.parameters()))
    assert found.sel(group="all").item() == pytest.approx(cosine_similarity(*gradients, dim=0).item())
    assert found.sizes == {"group": recorder.timeline["gradient/norm"].sizes["group"]}


def test_equal_halves_have_cosine_one_and_one_sequence_has_none():
    model, batch = transformer().double(), tokens(2)
    found = measured(model, "gradient", batch.repeat(2, 1), loss=next_token_loss)
    np.testing.assert_allclose(found["halves_cosine"][found["norm"] > 1e-12], 1)
    _, omitted = omissions(model, "gradient", tokens(1), loss=next_token_loss)
    assert "two halves" in omitted["halves_cosine"]


def test_curvature_warns_if_it_did_not_converge(monkeypatch):
    model, batch = transformer().double(), tokens()
    assert measured(model, "curvature", batch, loss=next_token_loss)["converged"] == 1
    monkeypatch.setattr("stagelens_probes.curvature.MOST_PRODUCTS", 4)
    with pytest.warns(UserWarning, match="did not converge in 4 products at step 0: .* residuals"):
        found = measured(model, "curvature", batch, loss=next_token_loss)
    assert found["converged"] == 0 and found["residual_largest"] > 1e-3 * found["largest"]


def test_lanczos_has_converged_if_it_has_used_the_whole_space():
    ends = extreme_eigenvalues(lambda v: v * torch.arange(1.0, 6.0), torch.ones(5))
    assert ends.converged and ends.largest == pytest.approx(5, rel=1e-5)
