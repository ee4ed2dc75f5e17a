"""The built-in probes. They are registered as those of any plugin."""

from __future__ import annotations

from stagelens import ProbeRef, hookimpl

PROBES = (
    ProbeRef(
        "attention_sparsity",
        "how few keys a head attends to",
        ("entropy", "effective_keys", "top_mass", "sparsity"),
        "stagelens_probes.attention_sparsity:AttentionSparsity",
    ),
    ProbeRef(
        "head_specialization",
        "whether heads compete for one group of keys or share the groups out",
        ("mass", "leader", "overlap", "coverage", "coverage_chance", "phase"),
        "stagelens_probes.head_specialization:HeadSpecialization",
    ),
    ProbeRef(
        "induction",
        "prefix matching, previous-token and duplicate-token attention, and copying, per head",
        (
            *("prefix_matching", "prefix_matching_error", "prefix_matching_chance"),
            *("previous_token", "previous_token_error", "previous_token_chance"),
            *("duplicate_token", "duplicate_token_error", "duplicate_token_chance"),
            *("copying", "icl_score", "icl_score_error"),
        ),
        "stagelens_probes.induction:Induction",
        passes="1",
    ),
    ProbeRef(
        "qk_alignment",
        "principal components of keys and queries, and how they align",
        ("explained", "effective_rank", "rank", "key_query", "key_query_chance", "leading", "reference"),
        "stagelens_probes.qk_alignment:QKAlignment",
    ),
    ProbeRef(
        "kl_to_references",
        "KL divergence from the task's reference predictors to the model",
        ("kl",),
        "stagelens_probes.kl_to_references:KLToReferences",
    ),
    ProbeRef(
        "loss_by_position",
        "next-token loss at each position of the context",
        ("loss",),
        "stagelens_probes.loss_by_position:LossByPosition",
    ),
    ProbeRef(
        "weight_norms",
        "Frobenius norm of each parameter, and of each head's part of it",
        ("norm", "head_norm"),
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
        ("zero", "mean"),
        "stagelens_probes.head_ablation:HeadAblation",
        passes="2 per head",
        default=False,
    ),
    ProbeRef(
        "gradient",
        "norm of the loss gradient per module, and its cosine with the measurement before",
        ("norm", "cosine"),
        "stagelens_probes.gradient:Gradient",
        passes="1, and 1 backward",
        default=False,
    ),
    ProbeRef(
        "curvature",
        "largest and smallest eigenvalue of the loss Hessian",
        ("largest", "smallest", "residual_largest", "residual_smallest"),
        "stagelens_probes.curvature:Curvature",
        passes="1, and up to 102 Hessian-vector products",
        default=False,
    ),
)


@hookimpl
def stagelens_register_probes() -> tuple[ProbeRef, ...]:
    return PROBES
