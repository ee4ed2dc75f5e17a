"""What the claims read off a run."""

from __future__ import annotations

import json

from stagelens import Run


def strategies_in_order(run: Run) -> list[str]:
    """Returns the strategies that the model was nearest to, by KL divergence, in the order of time."""
    return [str(span["reference"]) for span in run.nearest]


def remaining(run: Run) -> float:
    """Returns the last distance from bigrams over the last distance from unigrams, both as KL divergences."""
    distance = run.timeline["kl_to_references/kl"].isel(step=-1)
    return float(distance.sel(reference="bigram") / distance.sel(reference="unigram"))


def roles(run: Run, layer: int) -> list[str]:
    """Returns the group of keys that each head of `layer` specializes in at the end."""
    leader = run.timeline[f"head_specialization/leader[layer={layer}]"].isel(step=-1)
    names = json.loads(leader.attrs["labels"])
    return [names[int(code)] for code in leader.values]
