"""The built-in probes. They are registered in the same way as the probes of any plugin."""

from __future__ import annotations

from stagelens import ProbeRef, hookimpl

PROBES = (
    ProbeRef(
        "attention_sparsity",
        "how few keys a head attends to",
        (
            *("entropy", "effective_keys", "top_mass", "sparsity", "first_key_mass", "perplexity", "sparsity_by_third"),
            *("first_key_mass_chance", "entropy_error", "effective_keys_error", "top_mass_error", "sparsity_error"),
            *("first_key_mass_error", "perplexity_error", "sparsity_by_third_error"),
        ),
        "stagelens_probes.attention_sparsity:AttentionSparsity",
    ),
    ProbeRef(
        "head_specialization",
        "whether heads compete for one group of keys or attend to different groups",
        (
            *("mass", "mass_error", "mass_chance", "lift", "leader"),
            *("overlap", "coverage", "coverage_chance", "phase"),
        ),
        "stagelens_probes.head_specialization:HeadSpecialization",
    ),
    ProbeRef(
        "induction",
        "prefix matching, previous-token and duplicate-token attention, and copying, per head",
        (
            *("prefix_matching", "prefix_matching_error", "prefix_matching_chance"),
            *("previous_token", "previous_token_error", "previous_token_chance"),
            *("duplicate_token", "duplicate_token_error", "duplicate_token_chance"),
            *("prefix_matching_by_gap", "prefix_matching_by_gap_error", "prefix_matching_by_gap_chance"),
            *("copying", "copying_chance", "copying_folded", "copying_folded_chance"),
            *("icl_score", "icl_score_error", "icl_score_fixed", "icl_score_fixed_error"),
        ),
        "stagelens_probes.induction:Induction",
        passes="1, and 1 if the context is longer than 128",
    ),
    ProbeRef(
        "qk_alignment",
        "principal components of keys and queries, and how they align",
        (
            *("explained", "effective_rank", "rank", "key_query", "key_query_chance", "leading", "reference"),
            *("score_spectrum", "score_top", "score_top_error", "score_top_chance"),
            *("score_rank", "score_rank_error", "score_rank_chance"),
            *("score_reference", "score_reference_error", "score_reference_chance"),
        ),
        "stagelens_probes.qk_alignment:QKAlignment",
    ),
    ProbeRef(
        "kl_to_references",
        "KL divergence from the task's reference predictors to the model",
        ("kl", "kl_error", "fraction", "fraction_error"),
        "stagelens_probes.kl_to_references:KLToReferences",
    ),
    ProbeRef(
        "loss_by_position",
        "next-token loss at each position of the context",
        ("loss", "loss_error"),
        "stagelens_probes.loss_by_position:LossByPosition",
    ),
    ProbeRef(
        "weight_norms",
        "Frobenius norm of each parameter, and of each head's part of it",
        ("norm", "head_norm", "qk_norm", "ov_norm", "from_start"),
        "stagelens_probes.weight_norms:WeightNorms",
    ),
    ProbeRef(
        "conserved",
        "the task's conserved quantities and their drift",
        ("value", "drift"),
        "stagelens_probes.conserved:Conserved",
    ),
    ProbeRef(
        "head_ablation",
        "change of the loss when a head is zeroed or mean-ablated",
        ("zero", "zero_error", "mean", "mean_error"),
        "stagelens_probes.head_ablation:HeadAblation",
        passes="2 per head",
        default=False,
    ),
    ProbeRef(
        "gradient",
        "norm of the loss gradient per module, and its cosine with the previous measurement",
        ("norm", "cosine", "halves_cosine"),
        "stagelens_probes.gradient:Gradient",
        passes="2, and 2 backward",
        default=False,
    ),
    ProbeRef(
        "curvature",
        "largest and smallest eigenvalue of the loss Hessian",
        ("largest", "smallest", "residual_largest", "residual_smallest", "converged"),
        "stagelens_probes.curvature:Curvature",
        passes="1, and up to 102 Hessian-vector products",
        default=False,
    ),
)


@hookimpl
def stagelens_register_probes() -> tuple[ProbeRef, ...]:
    return PROBES
