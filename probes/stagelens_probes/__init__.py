"""The built-in probes. They are registered in the same way as the probes of any plugin."""

from stagelens import Registration

plugin = Registration(__name__)

plugin.probe(
    "attention_sparsity",
    "attention_sparsity:AttentionSparsity",
    "how few keys a head attends to",
    (
        "entropy",
        "effective_keys",
        "top_mass",
        "sparsity",
        "first_key_mass",
        "perplexity",
        "sparsity_by_third",
        "first_key_mass_chance",
        "entropy_error",
        "effective_keys_error",
        "top_mass_error",
        "sparsity_error",
        "first_key_mass_error",
        "perplexity_error",
        "sparsity_by_third_error",
    ),
)
plugin.probe(
    "head_specialization",
    "head_specialization:HeadSpecialization",
    "whether heads compete for one group of keys or attend to different groups",
    ("mass", "mass_error", "mass_chance", "lift", "leader", "overlap", "coverage", "coverage_chance", "phase"),
)
plugin.probe(
    "induction",
    "induction:Induction",
    "prefix matching, previous-token and duplicate-token attention, and copying, per head",
    (
        "prefix_matching",
        "prefix_matching_error",
        "prefix_matching_chance",
        "previous_token",
        "previous_token_error",
        "previous_token_chance",
        "duplicate_token",
        "duplicate_token_error",
        "duplicate_token_chance",
        "prefix_matching_by_gap",
        "prefix_matching_by_gap_error",
        "prefix_matching_by_gap_chance",
        "copying",
        "copying_chance",
        "copying_folded",
        "copying_folded_chance",
        "icl_score",
        "icl_score_error",
        "icl_score_fixed",
        "icl_score_fixed_error",
    ),
    passes="1, and 1 if the context is longer than 128",
)
plugin.probe(
    "qk_alignment",
    "qk_alignment:QKAlignment",
    "principal components of keys and queries, and how they align",
    (
        "explained",
        "effective_rank",
        "rank",
        "key_query",
        "key_query_chance",
        "leading",
        "reference",
        "score_spectrum",
        "score_top",
        "score_top_error",
        "score_top_chance",
        "score_rank",
        "score_rank_error",
        "score_rank_chance",
        "score_reference",
        "score_reference_error",
        "score_reference_chance",
    ),
)
plugin.probe(
    "kl_to_references",
    "kl_to_references:KLToReferences",
    "KL divergence from the task's reference predictors to the model",
    ("kl", "kl_error", "fraction", "fraction_error"),
)
plugin.probe(
    "loss_by_position",
    "loss_by_position:LossByPosition",
    "next-token loss at each position of the context",
    ("loss", "loss_error"),
)
plugin.probe(
    "weight_norms",
    "weight_norms:WeightNorms",
    "Frobenius norm of each parameter, and of each head's part of it",
    ("norm", "head_norm", "qk_norm", "ov_norm", "from_start"),
)
plugin.probe("conserved", "conserved:Conserved", "the task's conserved quantities and their drift", ("value", "drift"))
plugin.probe(
    "head_ablation",
    "head_ablation:HeadAblation",
    "change of the loss when a head is zeroed or mean-ablated",
    ("zero", "zero_error", "mean", "mean_error"),
    passes="2 per head",
    default=False,
)
plugin.probe(
    "gradient",
    "gradient:Gradient",
    "norm of the loss gradient per module, and its cosine with the previous measurement",
    ("norm", "cosine", "halves_cosine"),
    passes="2, and 2 backward",
    default=False,
)
plugin.probe(
    "curvature",
    "curvature:Curvature",
    "largest and smallest eigenvalue of the loss Hessian",
    ("largest", "smallest", "residual_largest", "residual_smallest", "converged"),
    passes="1, and up to 102 Hessian-vector products",
    default=False,
)
