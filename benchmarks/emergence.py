"""Fits the two power laws of Fig. 2 to the reduced flow, and measures the cost of a grid point in its sweep.

Run with `python -m benchmarks.emergence`. It exits with 1 if the two fits take too long or their exponents are wrong.
It also exits with 1 if the overhead of a run of `emergence/flow`, without the integration, exceeds its limit.
"""

from __future__ import annotations

import sys
import tempfile
from time import perf_counter

import numpy as np
from benchmarks.measure import Row, report

import stagelens as sl
from stagelens.experiments.flow import integrate
from stagelens.host.host import make_host
from stagelens_emergence.claims.measures import SCALE, cross_sample_fit, in_context_fit
from stagelens_emergence.config import ReducedConfig
from stagelens_emergence.flow import ReducedFlow

FITS_BAR = 5.0  # seconds
OVERHEAD_BAR = 0.05  # seconds per point
POINTS = 20


def point_overhead() -> tuple[float, float]:
    """Returns the seconds per point of a run without its integration, and the seconds of the integration."""
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
    left, right = in_context_fit().law, cross_sample_fit().law
    seconds = perf_counter() - began
    print(f"Fig. 2 left:  {left}")
    print(f"Fig. 2 right: {right}\n")
    overhead, integrating = point_overhead()
    agreement = {"T/B": (left.exponents["T / B"].value, 0.99), "scale": (right.exponents[SCALE].value, 1.02)}
    rows = [
        Row(f"Fig. 2's two fits, {left.points + right.points} flows", seconds, at_most=FITS_BAR, unit="s"),
        Row("exponent of T/B, off the paper's 0.99", abs(np.subtract(*agreement["T/B"])), at_most=0.03, unit=""),
        Row(
            "exponent of the scale, off the paper's 1.02", abs(np.subtract(*agreement["scale"])), at_most=0.05, unit=""
        ),
        Row("a point of a sweep, beyond its integration", 1e3 * overhead, at_most=1e3 * OVERHEAD_BAR, unit="ms"),
        Row("the integration of a point", 1e3 * integrating, unit="ms"),
    ]
    return report(__file__, rows)


if __name__ == "__main__":
    sys.exit(main())
