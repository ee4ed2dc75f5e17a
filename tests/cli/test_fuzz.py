"""Random inputs: each is accepted, or refused in one line. `tests/stress` has the long set."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from kit.fuzz.calls import call, fault_of, make_world
from kit.fuzz.files import csv_text, yaml_text
from kit.fuzz.words import HUGE, NUMBERS, ODD_NUMBERS, TEXTS, Words, config_of, host, keys_of
from stagelens.base.errors import UsageError
from stagelens.experiments.config import make_config
from stagelens.sweeps.grid import make_grid
from stagelens.sweeps.measures import parse_measure
from stagelens.timelines.csv_curve import read_curve

CASES = 60
READ, MOST_DRAWN = 32, 2000
READING = {"show", "stages", "export", "runs", "tasks", "probes", "plugins"}
TASKS = [name for name, _ in host().tasks]
values = st.sampled_from([*NUMBERS, *HUGE, *ODD_NUMBERS, *TEXTS]) | st.text(max_size=30)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A directory to call commands in, which is the current one until the end of the module."""
    folder, before = tmp_path_factory.mktemp("world"), Path.cwd()
    make_world(folder)
    os.chdir(folder)
    yield folder
    os.chdir(before)


def write_files(folder: Path, words: Words, seed: int) -> None:
    """Writes a new curve and new grids, which a command line may name."""
    rng = random.Random(seed)
    (folder / "made.csv").write_bytes(csv_text(rng))
    for name in ("made.yaml", "made.yml"):
        (folder / name).write_bytes(yaml_text(rng, keys_of(config_of(words.task))))


def test_no_command_line_ends_in_a_traceback(world, imports):
    faults = []
    for number in range(CASES):
        words = Words(0, number, works=False)
        line = words.line()
        write_files(world, words, number)
        if fault := fault_of(line, call(line)):
            faults.append((number, [word[:60] for word in line], fault))
    assert not faults, faults[:5]


def test_plausible_command_lines_that_read_are_answered(world, imports):
    """Each of these commands succeeds for some of its random lines, so the lines above do not fail at their start."""
    faults, answered = [], Counter()
    lines = (words.line() for number in range(MOST_DRAWN) if (words := Words(3, number)).hostility < 0.1)
    for line in islice((line for line in lines if line[:1] and line[0] in READING), READ):
        ended = call(line)
        answered[line[0]] += ended.code == 0 and bool(ended.out.strip())
        if fault := fault_of(line, ended):
            faults.append((line, fault))
    assert not faults, faults[:5]
    assert +answered == answered and set(answered) == READING, answered


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "\udcff", "\u202eabc", "x" * 100_000, "n" * 300, "--", "\x85"])
def test_a_name_with_control_characters_is_reported_in_one_line(world, name):
    for line in (["run", name], ["show", name], ["stages", name], ["run", "markov", "--set", name], [name]):
        ended = call(line)
        assert ended.code == 2 and not fault_of(line, ended), (line, ended)


def taken_or_refused(function, *given) -> None:
    """Calls `function`. It may succeed, or raise a `UsageError` with a message."""
    try:
        function(*given)
    except UsageError as error:
        assert len(str(error).split()) > 3


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("markov/minimal", "m=1e308"),
        ("markov/minimal", "intervals=[[1000000000]]"),
        ("markov/flow", "b0=1e30"),
        ("linear-icl/flow", "w_init=1e30"),
        ("linear-icl/separate", "spectrum=power:1000"),
        ("linear-icl/separate", "spectrum=1e308,1,1,1"),
        ("recall/simplified", "order=1000000000"),
        ("recall/flow", "betas=1e308,1,1"),
        ("recall/flow", "learned_score=1e308"),
        ("rich/flow", "sigma_init=1e-300"),
        ("rich/flow", "imbalance=1e300"),
        ("emergence/flow", "w_init=1e30"),
        ("emergence/recall", "layers=1000000000"),
    ],
)
def test_sizes_that_no_machine_can_compute_are_refused_at_once(task, setting):
    kind = host().task(task).load()
    with pytest.raises(UsageError, match="config"):
        make_config(kind.Config, kind.presets, "quick", [setting])


def any_setting(data) -> None:
    kind = host().task(data.draw(st.sampled_from(TASKS))).load()
    pairs = st.tuples(st.sampled_from(keys_of(kind.Config)), values).map("=".join)
    taken_or_refused(make_config, kind.Config, kind.presets, "quick", data.draw(st.lists(pairs, max_size=3)))


def any_grid(data) -> None:
    kind = config_of(data.draw(st.sampled_from(TASKS)))
    key, mark = data.draw(st.sampled_from(keys_of(kind))), data.draw(st.sampled_from([",", ":"]))
    text = data.draw(st.sampled_from(["", "log:"])) + mark.join(data.draw(st.lists(values, min_size=1, max_size=4)))
    taken_or_refused(make_grid, [f"{key}={text}"], kind)
    taken_or_refused(parse_measure, data.draw(values) + data.draw(st.sampled_from(["", ":final", "@1", "[a=1]"])))


def any_file(data) -> None:
    rng, junk, task = data.draw(st.randoms()), data.draw(st.binary(max_size=60)), data.draw(st.sampled_from(TASKS))
    with TemporaryDirectory() as folder:
        for text in (csv_text(rng), junk):
            (file := Path(folder, "curve.csv")).write_bytes(text)
            taken_or_refused(read_curve, file)
        for text in (yaml_text(rng, keys_of(config_of(task))), junk):
            (file := Path(folder, "grid.yaml")).write_bytes(text)
            taken_or_refused(make_grid, file, config_of(task))


@settings(max_examples=40)
@given(st.data())
def test_any_setting_of_any_task_is_taken_or_refused(data):
    any_setting(data)


@settings(max_examples=40)
@given(st.data())
def test_any_grid_and_any_measure_is_taken_or_refused(data):
    any_grid(data)


@settings(max_examples=40)
@given(st.data())
def test_any_curve_and_any_grid_file_is_read_or_refused(data):
    any_file(data)
