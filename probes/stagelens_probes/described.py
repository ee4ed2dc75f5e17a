"""Describes each reading of the built-in probes: meaning, dims, unit, range and chance level.

`docs/probes.md` has the definitions.

A standard error (`_error`) and a chance level (`_chance`) are described by the reading that they belong to.
"""

from __future__ import annotations

from stagelens.timelines import ReadingInfo

HEADS = ("layer", "head")
COSINE = "cosine"
FRACTION = "fraction"
NATS = "nats"
PARAMETERS = "units of the parameters"

ATTENTION_SPARSITY = {
    "entropy": ReadingInfo("entropy of the attention over the visible keys", HEADS, NATS, 0),
    "effective_keys": ReadingInfo("mean of exp(entropy) over the queries", HEADS, "keys", 1),
    "perplexity": ReadingInfo("exp of the mean entropy", HEADS, "keys", 1),
    "top_mass": ReadingInfo("largest weight of a query", HEADS, FRACTION, 0, 1),
    "sparsity": ReadingInfo("1 - entropy / log(visible keys); 0: uniform, 1: one key", HEADS, FRACTION, 0, 1, "0"),
    "first_key_mass": ReadingInfo(
        "attention to the first key (attention sinks)", HEADS, FRACTION, 0, 1, "first_key_mass_chance"
    ),
    "first_key_mass_chance": ReadingInfo("first_key_mass of uniform attention", ("layer",), FRACTION, 0, 1),
    "sparsity_by_third": ReadingInfo(
        "sparsity in the first, middle and last third of the queries", (*HEADS, "third"), FRACTION, 0, 1, "0"
    ),
}
MASS = (*HEADS, "group|lag")
HEAD_SPECIALIZATION = {
    "mass": ReadingInfo("attention to each group of keys", MASS, FRACTION, 0, 1, "mass_chance"),
    "mass_chance": ReadingInfo("mass of uniform attention", ("layer", "group|lag"), FRACTION, 0, 1),
    "lift": ReadingInfo("mass / mass_chance", MASS, "times chance", 0, chance="1"),
    "leader": ReadingInfo("the group that the head specializes in, or rest", HEADS, "label"),
    "overlap": ReadingInfo(
        "how alike the heads of a layer attend to the groups: 1 - Jensen-Shannon divergence", ("layer",), FRACTION, 0, 1
    ),
    "coverage": ReadingInfo(
        "distinct leading groups / min(heads, groups)", ("layer",), FRACTION, 0, 1, "coverage_chance"
    ),
    "phase": ReadingInfo("diffuse, competitive or cooperative", ("layer",), "label"),
}
GAPS = (*HEADS, "gap")
INDUCTION = {
    "prefix_matching": ReadingInfo(
        "attention to the token after the previous occurrence", HEADS, FRACTION, 0, 1, "prefix_matching_chance"
    ),
    "previous_token": ReadingInfo("attention to the previous token", HEADS, FRACTION, 0, 1, "previous_token_chance"),
    "duplicate_token": ReadingInfo(
        "attention to the previous occurrence", HEADS, FRACTION, 0, 1, "duplicate_token_chance"
    ),
    **{
        f"{name}_chance": ReadingInfo(f"{name} of uniform attention", ("layer",), FRACTION, 0, 1)
        for name in ("prefix_matching", "previous_token", "duplicate_token")
    },
    "prefix_matching_by_gap": ReadingInfo(
        "prefix_matching by the distance of the two occurrences", GAPS, FRACTION, 0, 1, "prefix_matching_by_gap_chance"
    ),
    "prefix_matching_by_gap_chance": ReadingInfo(
        "prefix_matching_by_gap of uniform attention", ("layer", "gap"), FRACTION, 0, 1
    ),
    "copying": ReadingInfo(
        "sum of the OV circuit's eigenvalues / sum of their absolute values", HEADS, "", -1, 1, "copying_chance"
    ),
    "copying_folded": ReadingInfo("copying with the layer norms folded in", HEADS, "", -1, 1, "copying_folded_chance"),
    "icl_score": ReadingInfo("loss late in the context minus loss early in it", (), NATS, chance="0"),
    "icl_score_fixed": ReadingInfo("loss at position 500 minus loss at position 50", (), NATS, chance="0"),
}
SIDES = (*HEADS, "side")
QK_ALIGNMENT = {
    "score_spectrum": ReadingInfo(
        "fraction of the scores' mean square in each component, largest first", (*HEADS, "component"), FRACTION, 0, 1
    ),
    "score_top": ReadingInfo("the first of score_spectrum", HEADS, FRACTION, 0, 1, "score_top_chance"),
    "score_top_chance": ReadingInfo("score_top of random keys and queries", ("layer",), FRACTION, 0, 1),
    "score_rank": ReadingInfo("number of components of the scores", HEADS, "components", 0, chance="score_rank_chance"),
    "score_rank_chance": ReadingInfo("score_rank of random keys and queries", ("layer",), "components", 0),
    "score_reference": ReadingInfo(
        "fraction of the components along a direction that the task names",
        (*SIDES, "direction"),
        FRACTION,
        0,
        1,
        "score_reference_chance",
    ),
    "score_reference_chance": ReadingInfo("1 / d_head", ("layer",), FRACTION, 0, 1),
    "explained": ReadingInfo(
        "variance of each principal component of keys and queries", (*SIDES, "component"), FRACTION, 0, 1
    ),
    "effective_rank": ReadingInfo("exp of the entropy of `explained`", SIDES, "components", 0),
    "rank": ReadingInfo("components that explain 90%", HEADS, "components", 0),
    "key_query": ReadingInfo(
        "mean squared cosine between the leading subspaces of keys and queries", HEADS, COSINE, 0, 1, "key_query_chance"
    ),
    "leading": ReadingInfo("the leading component", (*SIDES, "d_head"), "unit vector", -1, 1),
    "reference": ReadingInfo(
        "|cosine| of the leading component with a direction that the task names", (*SIDES, "direction"), COSINE, 0, 1
    ),
}
KL_TO_REFERENCES = {
    "kl": ReadingInfo("KL divergence from each reference predictor to the model", ("reference",), NATS, 0),
    "fraction": ReadingInfo(
        "kl / KL(reference, uniform predictor); 0: predicts as the reference", ("reference",), FRACTION, 0, chance="1"
    ),
}
LOSS_BY_POSITION = {
    "loss": ReadingInfo("next-token loss at each scored position", ("position",), NATS, 0, chance="log(vocabulary)"),
}
WEIGHT_NORMS = {
    "norm": ReadingInfo("Frobenius norm of each parameter", ("parameter",), PARAMETERS, 0),
    "head_norm": ReadingInfo("norm of each head's part of a parameter", ("head_parameter", "head"), PARAMETERS, 0),
    "qk_norm": ReadingInfo("Frobenius norm of W_Q W_K^T", HEADS, PARAMETERS, 0),
    "ov_norm": ReadingInfo("Frobenius norm of W_V W_O", HEADS, PARAMETERS, 0),
    "from_start": ReadingInfo("distance from the first measurement", ("parameter",), PARAMETERS, 0),
}
CONSERVED = {
    "value": ReadingInfo("each quantity that training conserves according to theory", ("quantity",)),
    "drift": ReadingInfo(
        "|value - first value| / |first value|; without the denominator if it is 0", ("quantity",), FRACTION, 0
    ),
}
HEAD_ABLATION = {
    "zero": ReadingInfo("loss with the head's output set to 0, minus the loss", HEADS, "units of the loss"),
    "mean": ReadingInfo(
        "loss with the head's output set to its mean over the batch, minus the loss", HEADS, "units of the loss"
    ),
}
GRADIENT = {
    "norm": ReadingInfo("norm of the loss gradient of each module", ("group",), "loss per unit of the parameters", 0),
    "cosine": ReadingInfo("cosine with the gradient at the previous measurement", ("group",), COSINE, -1, 1),
    "halves_cosine": ReadingInfo(
        "cosine between the gradients of the two halves of the batch", ("group",), COSINE, -1, 1, "0"
    ),
}
CURVATURE = {
    "largest": ReadingInfo("largest eigenvalue of the loss Hessian", (), "loss per squared unit"),
    "smallest": ReadingInfo("smallest eigenvalue of the loss Hessian", (), "loss per squared unit"),
    "residual_largest": ReadingInfo("|H v - largest v| for its unit vector v", (), "loss per squared unit", 0),
    "residual_smallest": ReadingInfo("|H v - smallest v| for its unit vector v", (), "loss per squared unit", 0),
    "converged": ReadingInfo("1 if both eigenvalues have converged", (), "0 or 1", 0, 1),
}
