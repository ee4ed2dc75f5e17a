"""Measures how often `detect_stages` is right on curves that were not used for tuning: the table of docs/stages.md.

    python benchmarks/stages.py
    python benchmarks/stages.py docs/images/stages.png

With a path it draws the gallery of that page instead. The curves come from tests/kit. Generated curves have
held-out seeds. Real curves have seeds that were labelled before any detector was run on them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kit.curves import Curve, staircase
from kit.hard_curves import FAMILIES, HOLD_OUT, INTERVALS, TUNING, family
from kit.joint_timelines import agrees, staged
from kit.real_curves import labelled
from kit.written_runs import staircase as drop, timeline
from stagelens import joint_stages
from stagelens.stages import Stage, detect_stages

GENERATED, STAIRCASES = 200, 1000


def found(curve: Curve) -> tuple[Stage, ...]:
    return detect_stages(curve.steps, curve.values).transitions


def row(name: str, curves: list[Curve]) -> str:
    """Returns a line of the table: transitions found per curve, curves with the right number, times within 5%."""
    all_found = [found(curve) for curve in curves]
    right = [len(one) == len(curve.times) for one, curve in zip(all_found, curves, strict=True)]
    errors = [
        float(curve.errors([t.at for t in one]).max())
        for one, curve, ok in zip(all_found, curves, right, strict=True)
        if ok and len(one)
    ]
    mean, truth = np.mean([len(one) for one in all_found]), np.mean([len(curve.times) for curve in curves])
    within = f"{100 * np.mean(np.array(errors) < 0.05):.1f}%" if errors else ""
    return f"| {name} | {len(curves)} | {mean:.2f} ({truth:.2f}) | {100 * np.mean(right):.1f}% | {within} |"


def changed(curves: list[Curve]) -> list[str]:
    """Returns how often thinning, reversing or cutting a curve on its last plateau leaves its number of transitions."""
    same: dict[str, list[bool]] = {
        "thinned by 2": [],
        "thinned by 4": [],
        "reversed": [],
        "cut on its last plateau": [],
    }
    for curve in curves:
        steps, values, count = curve.steps, curve.values, len(found(curve))
        last = int(np.searchsorted(curve.position(list(steps)), (curve.position(curve.times)[-1] + 1) / 2))
        variants = {
            "thinned by 2": (steps[::2], values[::2]),
            "thinned by 4": (steps[::4], values[::4]),
            "cut on its last plateau": (steps[:last], values[:last]),
        }
        if not curve.logarithmic:
            variants["reversed"] = (steps, values[::-1])
        for name, variant in variants.items():
            same.setdefault(name, []).append(len(detect_stages(*variant).transitions) == count)
    return [f"| drops, {name} | {len(ok)} | | {100 * np.mean(ok):.1f}% | |" for name, ok in same.items()]


def coverage(curves: list[Curve]) -> str:
    """Returns how often the 95% confidence intervals contain the true time and the true drop."""
    times, drops = [], []
    for curve in curves:
        stages = found(curve)
        if len(stages) == len(curve.times):
            times += [bool(s.at_low <= at <= s.at_high) for s, at in zip(stages, curve.times, strict=True)]
            drops += [bool(s.drop_low <= drop <= s.drop_high) for s, drop in zip(stages, curve.drops, strict=True)]
    return f"95% intervals contain the time in {100 * np.mean(times):.1f}%, the drop in {100 * np.mean(drops):.1f}%"


def main() -> None:
    print("| curves | number | found per curve (true) | number right | times within 5% |\n|---|---|---|---|---|")
    for name in FAMILIES:
        print(row(name, family(name, HOLD_OUT, GENERATED)), flush=True)
    print(
        row("staircases in white noise", [staircase(np.random.default_rng([HOLD_OUT, i])) for i in range(STAIRCASES)])
    )
    drops = family("drops", HOLD_OUT, GENERATED)
    print("\n".join(changed(drops)))
    real = labelled("hold-out")
    wrong = [c.name for c in real if not c.agrees([t.at for t in detect_stages(c.steps, c.values).transitions])]
    print(f"| real curves | {len(real)} | | {100 - 100 * len(wrong) / len(real):.1f}% | |")
    print(f"\nnot as labelled: {', '.join(wrong) or 'none'}\n{coverage(family('drops', INTERVALS, 300))}")
    for decays in (0, 1, 3):
        print(joint_row(decays))
    print("\n".join(costs()))


def joint_row(decays: int, count: int = 40) -> str:
    """How often the stages of the whole model are right, with so many smooth decays among the readings."""
    rng = np.random.default_rng([HOLD_OUT, decays])
    right = []
    for known in (staged(rng, decays=decays) for _ in range(count)):
        times = [t.at for t in joint_stages(known.timeline).transitions]
        right.append(agrees(np.interp(times, known.timeline.steps, known.u), known))
    return f"whole model, {decays} decays: number and times right in {100 * np.mean(right):.0f}% of {count}"


def costs() -> list[str]:
    """CPU times: of a curve of 10,000 points, and of the whole model in units of one curve of as many points."""
    long, short, rng = np.arange(10_000.0), np.arange(300.0), np.random.default_rng(6)
    one = two_drops(short * 100 / 3)
    drops = {f"r{i}": drop(short, [50 + i], [0, 1], 3) + 0.02 * rng.normal(size=300) for i in range(200)}
    given = timeline(short, drops)
    curve = cpu(lambda: detect_stages(short, one), 10)
    return [
        f"10,000 points: {1000 * cpu(lambda: detect_stages(long, two_drops(long)), 10):.0f} ms of CPU time",
        f"200 series of 300 steps: as long as {cpu(lambda: joint_stages(given), 3) / curve:.0f} curves of 300 steps",
    ]


def cpu(call: Callable[[], object], times: int) -> float:
    """Seconds of CPU time of a call: the least of several."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def two_drops(steps: np.ndarray) -> np.ndarray:
    drops = 1 / (1 + np.exp((steps - 3000) / 100)) + 0.5 / (1 + np.exp((steps - 7000) / 100))
    return np.asarray(drops + 0.02 * np.random.default_rng(0).normal(size=len(steps)))


def gallery(path: Path) -> None:
    """Draws hard curves with the transitions that are found (grey) and their times (dashed)."""
    from matplotlib.figure import Figure

    names = ["flat, 0.95", "moving averages", "drops", "decays", "bumps", "rounded constants"]
    curves = [(name, c.steps, c.values) for name in names for c in family(name, TUNING, 4)[-1:]]
    wanted = {"recall_original/1/loss", "recall_transformer/1/loss", "markov_minimal/2/loss"}
    curves += [(c.name, c.steps, c.values) for c in labelled("development") if c.name in wanted]
    figure = Figure(figsize=(12, 8), layout="constrained")
    for axes, (name, steps, values) in zip(figure.subplots(3, 3).flat, curves, strict=True):
        stages = detect_stages(steps, values)
        if stages.axis == "log":
            axes.set_xscale("symlog", linthresh=max(float(steps[1]), 1.0))
        axes.plot(steps, values, ".-", color="tab:blue", markersize=2, linewidth=0.7)
        for stage in stages.transitions:
            axes.axvspan(stage.start, stage.end, color="0.85")
            axes.axvline(stage.at, color="black", linestyle="--", linewidth=0.8)
        count = len(stages.transitions)
        axes.set_title(f"{name}: {count or 'no'} transition{'s' * (count != 1)}", fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    gallery(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
