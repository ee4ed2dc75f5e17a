"""Properties of every probe on any transformer: the ranges of its readings, and how they change if the model changes.

`test_probe_invariances` tests three probes on activations that no model produces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import stagelens as sl
from kit.probe_models import PATTERN, Written, measured, next_token_loss, tokens, transformer
from probes.test_every_probe import LONG, NAMES, Everything
from stagelens_probes import plugin as built_in
from stagelens_probes.curvature import TOLERANCE

few = settings(max_examples=settings().max_examples // 8)  # 3; `make stress` has a profile of more, drawn anew
HEAD_PARAMETERS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
ROUND = 1e-9  # in float64
CURVATURE = ("curvature/largest", "curvature/smallest")
OWN_TOKENS = tuple(f"induction/{name}" for name in ("prefix", "previous", "duplicate"))  # measured on tokens of its own
OF_SAMPLE = (
    "leader",
    "coverage",
    "phase",
    "halves_cosine",
)  # they depend on the number of sequences, or on their order
OF_SAMPLE += tuple(
    f"qk_alignment/score_{name}_{kind}" for name in ("top", "rank", "reference") for kind in ("error", "chance")
)
INDUCTION = ("prefix_matching", "previous_token", "duplicate_token", "prefix_matching_by_gap")

# The least and the largest that each reading can be; None: there is no bound. K: keys, D: d_head, both of the model.
RANGES: dict[str, tuple[Any, Any]] = {
    "attention_sparsity/entropy": (0, "log K"),
    "attention_sparsity/effective_keys": (1, "K"),
    "attention_sparsity/perplexity": (1, "K"),
    "attention_sparsity/top_mass": ("1 / K", 1),
    "attention_sparsity/sparsity": (0, 1),
    "attention_sparsity/sparsity_by_third": (0, 1),
    "attention_sparsity/first_key_mass": (0, 1),
    "attention_sparsity/first_key_mass_chance": (0, 1),
    **{f"attention_sparsity/{name}_error": (0, 0.5) for name in ("top_mass", "sparsity", "first_key_mass")},
    "attention_sparsity/sparsity_by_third_error": (0, 0.5),
    **{f"attention_sparsity/{name}_error": (0, None) for name in ("entropy", "effective_keys", "perplexity")},
    "head_specialization/mass": (0, 1),
    "head_specialization/mass_error": (0, 0.5),
    "head_specialization/mass_chance": (0, 1),
    "head_specialization/lift": (0, "K"),
    "head_specialization/leader": (0, 2),
    "head_specialization/overlap": (0, 1),
    "head_specialization/coverage": (0, 1),
    "head_specialization/coverage_chance": (0, 1),
    "head_specialization/phase": (0, 2),
    **{f"induction/{name}": (0, 1) for name in INDUCTION},
    **{f"induction/{name}_error": (0, 0.5) for name in INDUCTION},
    **{f"induction/{name}_chance": (0, 1) for name in INDUCTION},
    "induction/copying": (-1, 1),
    "induction/copying_chance": (-1, 1),
    "induction/copying_folded": (-1, 1),
    "induction/copying_folded_chance": (-1, 1),
    "induction/icl_score": (None, None),
    "induction/icl_score_error": (0, None),
    "induction/icl_score_fixed": (None, None),
    "induction/icl_score_fixed_error": (0, None),
    "qk_alignment/explained": (0, 1),
    "qk_alignment/effective_rank": (1, "D"),
    "qk_alignment/rank": (1, "D"),
    "qk_alignment/key_query": (0, 1),
    "qk_alignment/key_query_chance": ("1 / D", 1),
    "qk_alignment/leading": (-1, 1),
    "qk_alignment/reference": (0, 1),
    "qk_alignment/score_spectrum": (0, 1),
    "qk_alignment/score_top": (0, 1),
    "qk_alignment/score_top_error": (0, None),
    "qk_alignment/score_top_chance": (0, 1),
    "qk_alignment/score_rank": (1, "D"),
    "qk_alignment/score_rank_error": (0, None),
    "qk_alignment/score_rank_chance": (1, "D"),
    "qk_alignment/score_reference": (0, 1),
    "qk_alignment/score_reference_error": (0, None),
    "qk_alignment/score_reference_chance": (0, 1),
    "kl_to_references/kl": (0, None),
    "kl_to_references/kl_error": (0, None),
    "kl_to_references/fraction": (0, None),
    "kl_to_references/fraction_error": (0, None),
    "loss_by_position/loss": (0, None),
    "loss_by_position/loss_error": (0, None),
    **{f"weight_norms/{name}": (0, None) for name in ("norm", "head_norm", "qk_norm", "ov_norm", "from_start")},
    "conserved/value": (None, None),
    "conserved/drift": (0, None),
    "head_ablation/zero": (None, None),
    "head_ablation/zero_error": (0, None),
    "head_ablation/mean": (None, None),
    "head_ablation/mean_error": (0, None),
    "gradient/norm": (0, None),
    "gradient/cosine": (-1, 1),
    "gradient/halves_cosine": (-1, 1),
    "curvature/largest": (None, None),
    "curvature/smallest": (None, None),
    "curvature/residual_largest": (0, None),
    "curvature/residual_smallest": (0, None),
    "curvature/converged": (0, 1),
}


@st.composite
def models(draw: Any) -> Any:
    """A transformer of any small size, with weights large enough for its heads to differ."""
    changes = {
        "n_layers": draw(st.integers(1, 2)),
        "n_heads": draw(st.integers(2, 4)),
        "d_head": 4,  # as long as the directions that the task names
        "d_mlp": draw(st.sampled_from([None, 8])),
        "normalization": draw(st.sampled_from(["layer", "none"])),
        "positions": draw(st.sampled_from(["learned", "sinusoidal", "alibi"])),
        "init_scale": draw(st.sampled_from([0.3, 1.0, 2.0])),
        "seed": draw(st.integers(0, 10**6)),
    }
    return transformer(**changes).double()


class Task(Everything):
    def __init__(self, model: Any, scale: float = 1.0) -> None:
        super().__init__(sl.TaskConfig())
        self.model, self.scale = model, scale

    def build_model(self) -> Any:
        return self.model

    def loss(self, model: Any, batch: Any) -> Any:
        return self.scale * next_token_loss(model, batch)


def about(name: str) -> str:
    """The reading that a standard error or a chance level belongs to."""
    return name.removesuffix("_error").removesuffix("_chance")


def omitted(model: Any, length: int) -> set[str]:
    """The readings that a small model does not have."""
    unnormalized = {"induction/copying_folded"} if model.cfg.normalization_type is None else set()
    short = {"induction/icl_score"} if length < 5 else set()
    return LONG | unnormalized | short | ({"attention_sparsity/sparsity_by_third"} if length < 4 else set())


def all_readings(
    model: Any, batch: torch.Tensor, scale: float = 1.0, probes: Sequence[str] = NAMES, skipped: Iterable[str] = ()
) -> dict[str, sl.Reading]:
    """Every reading of every probe, of the second of two measurements."""
    recorder = sl.Recorder(model, probes=list(probes), batch=batch, task=Task(model, scale))
    recorder.measure(0)
    found = {reading.name: reading for reading in recorder.measure(1) if "/" in reading.name}
    expected = {*skipped, *(n for n in omitted(model, batch.shape[1]) if n.partition("/")[0] in probes)}
    assert not recorder.problems and {*map(about, recorder.skipped)} == expected, (recorder.problems, recorder.skipped)
    return found


def assert_equal(found: dict[str, sl.Reading], expected: dict[str, np.ndarray]) -> None:
    """Asserts equality up to rounding. Compares the Hessian's eigenvalues to the probe's tolerance, without residuals.

    The iteration has the same start vector for every order of the heads.
    """
    steepest = max((abs(float(expected[name])) for name in CURVATURE if name in expected), default=0.0)
    for name, values in expected.items():
        if name.startswith("curvature/residual"):
            continue
        tolerance = 2 * TOLERANCE * steepest if name in CURVATURE else ROUND * max(1.0, np.abs(values).max())
        np.testing.assert_allclose(found[name].array(), values, rtol=0, atol=tolerance, err_msg=name)


def test_every_reading_of_every_probe_has_its_range_here():
    assert set(RANGES) == {f"{ref.name}/{reading}" for ref in built_in.probes for reading in ref.readings}


@few
@given(models(), st.integers(2, 5), st.integers(2, 10))  # of one sequence there is no mean ablation
def test_readings_stay_in_their_ranges(model, n, length):
    assert_in_range(model, n, length)


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "alibi"])
def test_readings_stay_in_their_ranges_for_every_kind_of_positions_and_number_of_heads(positions, heads):
    model = transformer(n_layers=1, n_heads=heads, d_head=4, positions=positions, seed=heads).double()
    assert_in_range(model, 3, 6)


def assert_in_range(model, n, length):
    """Every reading of every probe is finite and in its range, and those that belong together fit together."""
    alone = model.cfg.n_heads == 1
    skipped = {"head_specialization"} if alone else set()  # it compares heads
    found = all_readings(model, tokens(n, length), skipped=skipped)
    skipped |= omitted(model, length)
    sizes = {"K": length, "log K": np.log(length), "1 / K": 1 / length, "D": 4, "1 / D": 1 / 4}
    for name, (low, high) in RANGES.items():
        if about(name) in skipped or name.partition("/")[0] in skipped:
            continue
        values = found[name].array()
        if name == "head_specialization/lift":  # of a group that has keys
            values = values[~np.isnan(values)]
            possible = found["head_specialization/mass_chance"].array() > 0
            assert values.size == possible.sum() * model.cfg.n_heads
        assert np.isfinite(values).all(), name
        assert low is None or (values >= sizes.get(low, low) - ROUND).all(), (name, values.min())
        assert high is None or (values <= sizes.get(high, high) + ROUND).all(), (name, values.max())
    if not alone:  # the groups and the rest take in every key; groups may overlap
        assert (found["head_specialization/mass"].array().sum(-1) >= 1 - ROUND).all()
    explained, leading, norms = (
        found[name].array() for name in ("qk_alignment/explained", "qk_alignment/leading", "gradient/norm")
    )
    np.testing.assert_allclose(explained.sum(-1), 1)
    np.testing.assert_allclose(np.linalg.norm(leading, axis=-1), 1)
    assert (found["gradient/cosine"].array() >= 1 - 1e-6).all()  # nothing moved between the two measurements
    assert (found["conserved/drift"].array() == 0).all()
    assert found["curvature/smallest"].array() <= found["curvature/largest"].array()
    np.testing.assert_allclose((norms[1:] ** 2).sum(), norms[0] ** 2)  # the first is of all, the others are its parts


@few
@given(models(), st.randoms(use_true_random=False))
def test_permuting_the_heads_permutes_what_is_said_of_each_and_leaves_the_rest(model, rng):
    order = list(range(model.cfg.n_heads))
    rng.shuffle(order)
    permuted = deepcopy(model)
    for block in permuted.blocks:
        for name in (*HEAD_PARAMETERS, "alibi_slope"):
            if isinstance(parameter := getattr(block.attn, name, None), torch.nn.Parameter):
                parameter.data = parameter.data[order]
    before, after = all_readings(model, tokens()), all_readings(permuted, tokens())
    assert_equal(
        after,
        {
            name: reading.array().take(order, reading.dims.index("head")) if "head" in reading.dims else reading.array()
            for name, reading in before.items()
        },
    )


@few
@given(models(), st.integers(2, 4), st.integers(2, 3))  # of one sequence there is no mean ablation
def test_repeating_the_batch_changes_nothing(model, n, times):
    before = {name: r.array() for name, r in all_readings(model, tokens(n)).items() if not name.endswith(OF_SAMPLE)}
    for name in before:
        if name.endswith("_error") and not name.startswith(OWN_TOKENS):  # as if they were so many sequences
            before[name] = before[name] * ((n - 1) / (n * times - 1)) ** 0.5
    assert_equal(all_readings(model, tokens(n).repeat(times, 1)), before)


@few
@given(models(), st.sampled_from([0.25, 3.0, 100.0]))
def test_a_loss_in_other_units_scales_what_is_made_of_it_and_nothing_else(model, scale):
    scaled = {"gradient/norm", "curvature/largest", "curvature/smallest"}
    scaled |= {"head_ablation/zero", "head_ablation/mean"}
    before = {name: reading.array() for name, reading in all_readings(model, tokens()).items()}
    of_the_loss = ["loss_by_position", "induction/icl_score"]  # are in nats, and skipped if the loss is not
    by_sequence = ["head_ablation/zero", "head_ablation/mean"]  # their errors, which need the loss of each sequence
    after = all_readings(model, tokens(), scale, skipped=of_the_loss + by_sequence)
    without = (*of_the_loss, *(f"{name}_error" for name in by_sequence))
    kept = {name: values for name, values in before.items() if not name.startswith(without)}
    assert_equal(after, {name: (scale if name in scaled else 1.0) * values for name, values in kept.items()})


@few
@given(models(), st.floats(-100, 100))
def test_a_constant_on_all_logits_changes_no_reading_of_the_output(model, shift):
    shifted = deepcopy(model)
    shifted.unembed.b_U.data += shift
    probes = ("kl_to_references", "loss_by_position", "head_ablation", "induction")
    before, after = (all_readings(m, tokens(), probes=probes) for m in (model, shifted))
    assert_equal(after, {name: reading.array() for name, reading in before.items()})


@few
@given(models(), st.sampled_from([-7.0, -1.0, 0.1, 30.0]))
def test_values_in_other_units_scale_their_norm_and_keep_or_turn_what_they_copy(model, factor):
    """`copying` is a ratio of eigenvalues of the circuit, so only the sign of the factor is seen."""
    scaled = deepcopy(model)
    for block in scaled.blocks:
        block.attn.W_V.data *= factor
    before, after = (measured(m, "induction", tokens()) for m in (model, scaled))
    np.testing.assert_allclose(after["copying"], np.sign(factor) * before["copying"], atol=1e-7)
    norms = [sl.Recorder(m, probes=["weight_norms"], batch=tokens()).measure(0) for m in (model, scaled)]
    by_name = [{r.name: r for r in readings} for readings in norms]
    for reading, dim in (("norm", "parameter"), ("head_norm", "head_parameter")):
        one, two = (found[f"weight_norms/{reading}"] for found in by_name)
        sizes = np.array([abs(factor) if label.endswith("W_V") else 1.0 for label in one.coords[dim]])
        np.testing.assert_allclose(two.array(), one.array() * sizes.reshape(-1, *[1] * (one.array().ndim - 1)))


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 4), st.booleans())
def test_linear_attention_is_read_by_its_shares_so_a_factor_on_a_row_is_not_seen(seed, length, heads, causal):
    """A factor of any sign and size for each query and head does not change |a| / sum |a|."""
    stream = torch.Generator().manual_seed(seed)
    pattern = torch.randn(2, heads, length, length, generator=stream, dtype=torch.float64)
    pattern = pattern.tril() if causal else pattern
    factor = torch.randn(2, heads, length, 1, generator=stream, dtype=torch.float64).exp()
    factor[:, ::2] *= -1
    direction = "causal" if causal else "bidirectional"
    for probe in ("attention_sparsity", "head_specialization"):
        before, after = (
            measured(Written({PATTERN: p}, attention_dir=direction), probe) for p in (pattern, factor * pattern)
        )
        for name, values in before.items():
            np.testing.assert_allclose(after[name], values, atol=ROUND, err_msg=name)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(3, 8), st.sampled_from([1e-3, 0.5, 40.0]), st.sampled_from([-1e3, -2.0, 0.1]))
def test_keys_and_queries_in_other_units_span_what_they_spanned(seed, length, by_key, by_query):
    """Principal components have a direction and no length; the sign of the leading one is a convention."""
    stream = torch.Generator().manual_seed(seed)
    k, q = (torch.randn(2, length, 3, 4, generator=stream, dtype=torch.float64) for _ in range(2))
    before, after = (
        measured(Written({"blocks.0.attn.hook_k": a, "blocks.0.attn.hook_q": b}), "qk_alignment")
        for a, b in ((k, q), (by_key * k, by_query * q))
    )
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("replaced", ["zero", "mean"])
def test_ablating_a_head_whose_output_is_not_read_changes_nothing(replaced):
    model = transformer().double()
    for block in model.blocks:
        block.attn.W_O.data[1] = 0
    change = measured(model, "head_ablation", tokens(), loss=next_token_loss)[replaced]
    np.testing.assert_allclose(change[:, 1], 0, atol=1e-12)
    assert (np.abs(change[:, [0, 2]]) > 1e-6).all()
