"""5,000 random inputs. `tests/cli/test_fuzz.py` has a few of each; here commands do their work, too.

What a command starts is of the smallest size. Some command lines are called in a process of their own.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from cli import test_fuzz
from kit.chance import seed
from kit.fuzz.calls import Ended, call, call_alone, fault_of, make_world
from kit.fuzz.words import Words
from stress.table import record

COMMAND = "pytest tests/stress/test_fuzz_long.py"
HERE, ALONE, EACH = 3700, 100, 400  # 3700 + 100 + 3 * 400 = 5000
CHEAP = {"tasks", "probes", "plugins", "runs", "show", "stages", "new-plugin", "export", "verify"}  # they need no torch
KEPT = [f"runs/{run}/{file}" for run in ("done", "flow") for file in ("run.json", "timeline.sqlite")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("world"), Path.cwd()
    make_world(folder)
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for a dataset fail at once."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def contents(world: Path) -> dict[str, bytes]:
    """The files that no command line may change."""
    return {name: (world / name).read_bytes() for name in KEPT}


def tell(number: int, line: list[str], fault: str, ended: Ended) -> None:
    print(f"{number}: {[word[:80] for word in line]}\n  {fault}\n{ended.raised[-2000:]}")  # noqa: T201


def test_command_lines(world, imports):
    before, wrong = contents(world), 0
    for number in range(HERE):
        words = Words(1 + 2 * seed(), number, works=number % 5 == 0)
        line = words.line()
        test_fuzz.write_files(world, words, number)
        ended = call(line)
        if fault := fault_of(line, ended):
            wrong += 1
            tell(number, line, fault, ended)
    lost = sum(before[name] != found for name, found in contents(world).items())
    record(
        "random command lines",
        HERE,
        lost,
        wrong,
        COMMAND,
        "in one process; lost: a file of an existing run",
    )
    assert (lost, wrong) == (0, 0)


def test_command_lines_in_processes_of_their_own(world):
    before, wrong, number, tried = contents(world), 0, 0, 0
    while tried < ALONE:
        words = Words(2 + 2 * seed(), number)
        line, number = words.line(), number + 1
        if not CHEAP.intersection(line) or any("\0" in word for word in line):
            continue
        tried += 1
        test_fuzz.write_files(world, words, number)
        ended = call_alone(line, world)
        if fault := fault_of(line, ended):
            wrong += 1
            tell(number, line, fault, ended)
    lost = sum(before[name] != found for name, found in contents(world).items())
    record("random command lines, one process each", ALONE, lost, wrong, COMMAND)
    assert (lost, wrong) == (0, 0)


@pytest.mark.parametrize(
    ("what", "tried"),
    [
        ("settings of every task with any value", test_fuzz.any_setting),
        ("grids and measures of any text", test_fuzz.any_grid),
        ("csv and yaml files of any content", test_fuzz.any_file),
    ],
)
def test_texts_and_files(what, tried):
    wrong = 0
    try:
        settings(max_examples=EACH)(given(st.data())(tried))()
    except Exception:
        wrong = 1
        traceback.print_exc()
    record(what, EACH, 0, wrong, COMMAND, "hypothesis stops at the first that is wrong")
    assert not wrong
