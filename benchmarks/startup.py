"""How long the command line takes to answer, against importing what it is made of.

`stagelens --help` should stay within 1.5 times, `stagelens tasks` within 3 times, the import of typer, rich and
pydantic alone. All are started in turn, several times, in one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

STAGELENS = str(Path(sys.executable).with_name("stagelens"))
COMMANDS = {
    "import typer, rich, pydantic": [sys.executable, "-c", "import typer, rich, pydantic"],
    "stagelens --help": [STAGELENS, "--help"],
    "stagelens tasks": [STAGELENS, "tasks"],
}
LIMITS = {"stagelens --help": 1.5, "stagelens tasks": 3.0}
REPEATS = 15


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    base, *others = (statistics.median(times[name]) for name in COMMANDS)
    print(f"{'import typer, rich, pydantic':32}{base * 1000:7.0f} ms")
    for name, median in zip(list(COMMANDS)[1:], others, strict=True):
        print(f"{name:32}{median * 1000:7.0f} ms{median / base:8.2f} times (at most {LIMITS[name]})")


if __name__ == "__main__":
    main()
