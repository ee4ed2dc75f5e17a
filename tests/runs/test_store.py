"""The store: one transaction per measurement, readable while written, and damage is detected."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from stagelens import Reading
from stagelens.base.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.runs.store import FILE, Store, read_measurements
from stagelens.timelines.timeline import pack


def measurement(step, value=None, heads=3):
    mass = np.arange(heads) + step / 7
    return pack(step, [Reading("loss", value or 1 / (1 + step)), Reading("probe/mass", mass, ("head",))])


def same(one, other):
    return (one.step, one.layout, one.values.tobytes()) == (other.step, other.layout, other.values.tobytes())


@pytest.fixture
def written(tmp_path):
    """A folder with a closed store of 30 measurements."""
    store = Store(tmp_path)
    store.add(*[measurement(step, heads=40) for step in range(30)])
    store.close()
    return tmp_path


def test_what_goes_in_comes_out_bit_for_bit(tmp_path):
    values = np.array([0.1, -0.0, 5e-324, 1e308, np.nan, np.inf])
    given = [pack(0.30000000000000004, [Reading("x", values, ("k",), {"k": list("abcdef")}, labels=("one", "two"))])]
    given.append(pack(7, [Reading("x", values[::-1], ("k",)), Reading("y", 2.0)]))
    store = Store(tmp_path)
    store.add(*given)
    store.close()
    found = read_measurements(tmp_path)
    assert all(map(same, found, given)) and len(found) == 2
    assert type(found[1].step) is int


def test_a_closed_store_is_one_file(written):
    assert [path.name for path in written.iterdir()] == [FILE]


def test_measuring_a_step_again_replaces_it(tmp_path):
    store = Store(tmp_path)
    store.add(measurement(3), measurement(4))
    store.add(measurement(3, value=9.0))
    store.close()
    found = read_measurements(tmp_path)
    assert [m.step for m in found] == [3, 4] and found[0].values[0] == 9.0


def test_forgetting_takes_out_only_what_comes_after(written):
    store = Store(written)
    store.forget_after(10)
    store.close()
    assert [m.step for m in read_measurements(written)] == list(range(11))


def test_what_was_synced_does_not_need_the_log(tmp_path, tmp_path_factory):
    store = Store(tmp_path)
    store.add(measurement(0), measurement(1))
    store.sync()
    store.add(measurement(2))
    alone = tmp_path_factory.mktemp("alone")
    shutil.copy(tmp_path / FILE, alone)  # as after a power cut that took the log
    assert [m.step for m in read_measurements(alone)] == [0, 1]
    assert [m.step for m in read_measurements(tmp_path)] == [0, 1, 2]
    store.close()


def test_a_failed_transaction_leaves_what_was_there(tmp_path):
    store = Store(tmp_path)
    store.add(measurement(0))
    with pytest.raises(EnvironmentFault):
        store.add(measurement(1), replace(measurement(1), step=None))
    store.add(measurement(2, heads=5))
    store.close()
    assert [m.step for m in read_measurements(tmp_path)] == [0, 2]


def test_it_can_be_read_at_every_moment_of_the_writing(tmp_path):
    """A reader in another process sees whole measurements, in order, while layouts change under it."""
    Store(tmp_path).close()
    watch = f"""
from pathlib import Path
from stagelens.runs.store import read_measurements
folder, seen = Path({str(tmp_path)!r}), 0
print("ready", flush=True)
while seen < 300:
    found = read_measurements(folder)
    assert [m.step for m in found] == list(range(1, len(found) + 1))
    assert all(m.values[0] == 1 / (1 + m.step) for m in found)
    assert len(found) >= seen
    if len(found) > seen:
        seen = len(found)
        print(seen, flush=True)
"""
    reader = subprocess.Popen([sys.executable, "-c", watch], stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    store = Store(tmp_path)
    for step in range(1, 301):
        store.add(measurement(step, heads=3 + step % 5))
        if step % 100 == 0:  # however the two processes are scheduled, the reader reads while the store is open
            assert any(int(line) >= step for line in reader.stdout)
    reader.communicate(timeout=60)
    store.close()
    assert reader.returncode == 0


def test_a_store_that_was_killed_is_whole_up_to_the_last_measurement(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from stagelens import Reading
from stagelens.runs.store import Store
from stagelens.timelines.timeline import pack
store = Store(Path({str(tmp_path)!r}))
for step in range(20):
    store.add(pack(step, [Reading("loss", float(step))]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60)
    assert [m.values[0] for m in read_measurements(tmp_path)] == list(range(20))
    Store(tmp_path).close()
    assert len(read_measurements(tmp_path)) == 20


@pytest.mark.parametrize("left", ["nothing", "empty", "header"])
def test_a_writer_killed_before_its_first_transaction_can_be_resumed(tmp_path, left):
    path = tmp_path / FILE
    if left == "empty":
        path.touch()
    elif left == "header":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    assert read_measurements(tmp_path) == []
    store = Store(tmp_path)
    store.add(measurement(0))
    store.close()
    assert len(read_measurements(tmp_path)) == 1


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    for use in (read_measurements, Store):
        with pytest.raises(UsageError, match="not a stagelens timeline"):
            use(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_file_that_is_no_database_is_reported(tmp_path):
    (tmp_path / FILE).write_text("step,loss\n0,1\n" * 100)
    for use in (read_measurements, Store):
        with pytest.raises(EnvironmentFault, match="file is not a database"):
            use(tmp_path)


def test_a_newer_format_is_refused(written):
    connection = sqlite3.connect(written / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UsageError, match="has format 99"):
        read_measurements(written)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_timeline_is_reported(written, part):
    path = written / FILE
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(EnvironmentFault, match=r"cannot be used|damaged"):
        read_measurements(written)


def test_a_flipped_bit_is_reported_or_does_no_harm(written, tmp_path_factory):
    """Reads all measurements as they were written, or raises: no row is lost or changed silently."""
    original = read_measurements(written)
    whole = (written / FILE).read_bytes()
    folder = tmp_path_factory.mktemp("flipped")
    chance = random.Random(0)
    told = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (folder / FILE).write_bytes(damaged)
        try:
            found = read_measurements(folder)
        except StagelensError:
            told += 1
        else:
            assert len(found) == len(original) and all(map(same, found, original))
        for log in folder.glob(f"{FILE}-*"):
            log.unlink()
    assert told > 50


def test_a_copy_without_its_log_is_still_a_timeline(written, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    shutil.copy(written / FILE, copy / FILE)
    assert len(read_measurements(copy)) == 30


@pytest.mark.parametrize("steps", [(0.0, 1e300), (0.0, float("inf")), (-1e200, 0.0)])
def test_steps_that_no_training_has_are_refused(tmp_path, steps):
    with closing(Store(tmp_path)) as store:
        store.add(*(replace(measurement(0), step=step) for step in steps))
    with pytest.raises(EnvironmentFault, match="its steps are not increasing numbers"):
        read_measurements(tmp_path)
