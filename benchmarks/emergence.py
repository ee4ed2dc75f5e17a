"""Fig. 2's two power laws from the reduced flow, and the cost of a point in a sweep of it.

Run with `python -m benchmarks.emergence`. It exits with 1 where the two fits take longer than their bar, where their
exponents are off, or where a run of `emergence/flow` costs more beyond its own integration than its bar.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import product
from time import perf_counter

import numpy as np
from benchmarks.measure import Row, report

import stagelens as sl
from stagelens.experiments.flow import integrate
from stagelens.host.host import make_host
from stagelens_emergence import theory
from stagelens_emergence.flow import ReducedConfig, ReducedFlow, flow_plateaus
from stagelens_emergence.theory import Reduced

T = 4096
DIMENSIONS = (16, 32, 64, 128, 256)
REPEATS = (1, 2, 4, 8, 16)
PROBABILITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
FITS_BAR = 5.0  # seconds
OVERHEAD_BAR = 0.05  # seconds per point
POINTS = 20


def two_fits() -> tuple[sl.Law, sl.Law]:
    """Fig. 2 left, in T/B and d, and right, in sqrt(d) T / sqrt(p^2 d + (1-p)^2)."""
    left = [Reduced(T, d, B) for B, d in product(REPEATS, DIMENSIONS)]
    right = [Reduced(T, d, 1, p) for p, d in product(PROBABILITIES, DIMENSIONS)]
    scale = [float(np.sqrt(q.d) * T / theory.repetition(q.p, q.d)) for q in right]
    return (
        sl.fit_law({"T/B": [T / q.B for q in left], "d": [q.d for q in left]}, flow_plateaus(left)),
        sl.fit_law({"scale": scale}, flow_plateaus(right)),
    )


def point_overhead() -> tuple[float, float]:
    """Seconds that a run costs beyond integrating, and that integrating costs, per point."""
    host, dimensions = make_host(), np.unique(np.geomspace(16, 256, POINTS).astype(int)).tolist()
    with tempfile.TemporaryDirectory() as runs:
        sl.run("emergence/flow", settings={"T": 64}, runs=runs, host=host, report=False)  # imports
        began = perf_counter()
        for d in dimensions:
            integrate(ReducedFlow(ReducedConfig(d=d)))
        integrating = perf_counter() - began
        began = perf_counter()
        for d in dimensions:
            sl.run("emergence/flow", settings={"d": d}, runs=runs, name=f"d{d}", host=host, report=False)
        whole = perf_counter() - began
    return (whole - integrating) / len(dimensions), integrating / len(dimensions)


def main() -> int:
    began = perf_counter()
    left, right = two_fits()
    seconds = perf_counter() - began
    print(f"Fig. 2 left:  {left}")
    print(f"Fig. 2 right: {right}\n")
    overhead, integrating = point_overhead()
    agreement = {"T/B": (left.exponents["T/B"].value, 0.99), "scale": (right.exponents["scale"].value, 1.02)}
    rows = [
        Row(f"Fig. 2's two fits, {left.points + right.points} flows", seconds, at_most=FITS_BAR, unit="s"),
        Row("exponent of T/B, off the paper's 0.99", abs(np.subtract(*agreement["T/B"])), at_most=0.03, unit=""),
        Row(
            "exponent of the scale, off the paper's 1.02", abs(np.subtract(*agreement["scale"])), at_most=0.05, unit=""
        ),
        Row("a point of a sweep, beside its integration", 1e3 * overhead, at_most=1e3 * OVERHEAD_BAR, unit="ms"),
        Row("the integration of a point", 1e3 * integrating, unit="ms"),
    ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
