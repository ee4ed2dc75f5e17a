"""Measures the cost of the guard per measurement, in forward passes of a model of 85M parameters.

The guard checks that a measurement changes nothing. After the first measurement it should cost less than a twentieth of
a pass. At the first measurement, and at every measurement of a strict recorder, it also compares checksums of the
parameters.
"""

from __future__ import annotations

import sys

import torch
from benchmarks.measure import Row, in_turns, ratio, report

from stagelens.models import build_transformer
from stagelens.recording.guard import Guard


def measured(guard: Guard) -> None:
    with guard.measuring():
        pass


def main() -> int:
    model = build_transformer(n_layers=12, n_heads=12, d_model=768, n_ctx=128, d_vocab=100, d_mlp=3072, seed=0).eval()
    tokens = torch.randint(100, (4, 128), generator=torch.Generator().manual_seed(0))
    later, strict = Guard(model), Guard(model, strict=True)
    measured(later)
    with torch.no_grad():
        times = in_turns(
            {
                "pass": lambda: model(tokens),
                "later": lambda: measured(later),
                "first": lambda: measured(Guard(model)),
                "strict": lambda: measured(strict),
            },
            repeats=9,
        )
    return report(
        __file__,
        [
            Row("the guard of a measurement in your own loop / a forward pass", ratio(times, "later", "pass"), 0.05),
            Row("the same at the first measurement", ratio(times, "first", "pass")),
            Row("the same in a run (strict)", ratio(times, "strict", "pass")),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
