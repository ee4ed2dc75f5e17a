"""Two thousand damaged and untrusted files, each read by all of its readers: the same content, or a one-line error.

Each case follows from its kind and number: `CASE=17 pytest tests/stress/test_mutations.py -k manifest` is that one,
and `EVERY=10` takes one in ten.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import oracles
from kit.chance import chance
from kit.mutations import ANY, STATEMENTS, Mutation, one_header, one_statement, page_over_page, rewritten
from kit.readers import REPORTED, SAME, Reader, judge, make_world, read, readers_of_file, readers_of_run
from kit.tasks import Decay, Regression, Repeats
from stagelens.base.documents import CHECKSUM, save_sealed
from stress.table import record

ATTENDED = (None, *range(0, 25, 3))  # at and between checkpoints
Damage = Callable[[Path, random.Random], str]  # damages a world's file, and says how


@dataclass(frozen=True)
class Kind:
    """Files of one kind: `folder` is what is put back between cases; readers with an oracle may give what that says."""

    fault: str
    cases: int
    folder: str
    damage: Damage
    readers: dict[str, Reader]
    strict: bool = True  # only the content as it was will do


def by(mutations: Sequence[Mutation], *files: str) -> Damage:
    """One of `mutations` of one of `files` (which may be patterns)."""

    def damage_one(world: Path, rng: random.Random) -> str:
        path = rng.choice(sorted(found for file in files for found in world.glob(file)))
        before, mutation = path.read_bytes(), rng.choice(mutations)
        after = before
        while after == before:
            after = mutation(before, rng) if before else rng.randbytes(50)
        path.write_bytes(after)
        return f"{mutation.__name__} of {path.relative_to(world)}"

    return damage_one


def swapped(world: Path, rng: random.Random) -> str:
    """Replaces a file by a valid one of another step, run, or kind."""
    files = [file for run in ("runs/ended", "runs/flow", "aside/attending") for file in (world / run).rglob("*.*")]
    ours = [file for file in files if file.suffix in (".json", ".sqlite", ".safetensors")]
    kinds = ("run.json", "timeline.sqlite", "checkpoints/*.safetensors")
    place = rng.choice(sorted(path for kind in kinds for path in (world / "runs/attending").glob(kind)))
    taken = rng.choice(sorted([*ours, *(world / "runs/attending/checkpoints").iterdir()]))
    if taken.read_bytes() == place.read_bytes():
        return swapped(world, rng)
    shutil.copy(taken, place)
    return f"{taken.relative_to(world)} as {place.relative_to(world)}"


def sealed_anew(world: Path, rng: random.Random) -> str:
    """Forges a manifest with other content and the right checksum, as an attacker can."""
    path = world / "runs/ended/run.json"
    while True:
        try:
            document = json.loads(rewritten(path.read_bytes(), rng))
            document.pop(CHECKSUM, None)
            save_sealed(path, document)
        except (ValueError, RecursionError):
            continue
        return "another manifest"


CONFIG = by((*ANY, *[rewritten] * 8), "series/config.json")
WEIGHTS = by((*ANY, *[one_header] * 4), "series/*.safetensors")
KINDS = {
    "manifest": Kind(
        "a damaged run.json",
        450,
        "runs/ended",
        by((*ANY, *[rewritten] * 8), "runs/ended/run.json"),
        readers_of_run("ended", Regression, (None, 17)),
    ),
    "forged": Kind(
        "a forged manifest or timeline with right checksums",
        250,
        "runs/ended",
        lambda world, rng: rng.choice((sealed_anew, oracles.made_up_timeline))(world, rng),
        readers_of_run("ended", Regression, (None, 17)),
        strict=False,
    ),
    "timeline": Kind(
        "a damaged timeline.sqlite",
        350,
        "runs/ended",
        by((*ANY, *[page_over_page, one_statement(STATEMENTS)] * 3), "runs/ended/timeline.sqlite"),
        readers_of_run("ended", Regression, (None, 17)),
    ),
    "log": Kind(
        "a damaged timeline.sqlite, -wal or -shm of a run that was killed",
        150,
        "runs/killed",
        by((*ANY, page_over_page), "runs/killed/timeline.sqlite*"),
        oracles.readers_of_killed(),
    ),
    "flow": Kind(
        "damaged files of a flow",
        100,
        "runs/flow",
        by((*ANY, page_over_page), "runs/flow/run.json", "runs/flow/timeline.sqlite"),
        readers_of_run("flow", Decay),
    ),
    "checkpoint": Kind(
        "a damaged checkpoint",
        250,
        "runs/attending",
        by((*ANY, *[one_header] * 6), "runs/attending/checkpoints/*.safetensors"),
        readers_of_run("attending", Repeats, ATTENDED),
    ),
    "swapped": Kind(
        "a file of another step, run or kind in a file's place",
        100,
        "runs/attending",
        swapped,
        readers_of_run("attending", Repeats, ATTENDED),
    ),
    "sweep": Kind(
        "a damaged sweep.json",
        100,
        "runs/sweeps",
        by((*ANY, *[rewritten] * 6), "runs/sweeps/*/sweep.json"),
        readers_of_file("sweep"),
    ),
    "csv": Kind("a damaged csv", 100, "", by(ANY, "curve.csv"), oracles.readers_of_csv()),
    "yaml": Kind("a damaged grid.yaml", 75, "", by(ANY, "grid.yaml"), oracles.readers_of_yaml()),
    "series": Kind(
        "a damaged config.json or checkpoint of another program",
        75,
        "series",
        lambda world, rng: rng.choice((CONFIG, WEIGHTS))(world, rng),
        readers_of_file("series"),
        strict=False,
    ),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The undamaged specimens, and a copy to damage, which is the current directory."""
    whole, world = tmp_path_factory.mktemp("whole") / "world", tmp_path_factory.mktemp("work") / "world"
    before = Path.cwd()
    whole.mkdir()
    make_world(whole)
    shutil.copytree(whole, world)
    os.chdir(world)
    yield whole, world
    os.chdir(before)


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_reported_or_does_no_harm(name: str, worlds: tuple[Path, Path]) -> None:
    kind, (whole, world) = KINDS[name], worlds
    contents = {}
    for reader, use in kind.readers.items():
        put_back(kind, whole, world)
        contents[reader] = read(use)
    only, every = os.environ.get("CASE"), int(os.environ.get("EVERY", "1"))
    verdicts: Counter[str] = Counter()
    wrong = []
    for number in range(0, kind.cases, every) if only is None else [int(only)]:
        put_back(kind, whole, world)
        how = kind.damage(world, chance(name, number))
        found = {reader: judge(use, contents[reader] if kind.strict else None) for reader, use in kind.readers.items()}
        faults = {reader: verdict for reader, verdict in found.items() if verdict not in (SAME, REPORTED)}
        verdicts["wrong" if faults else REPORTED if REPORTED in found.values() else SAME] += 1
        wrong += [f"{name} {number} ({how}), {reader}: {verdict}" for reader, verdict in faults.items()]
    put_back(kind, whole, world)
    if only is None:
        note = f"{verdicts[REPORTED]} reported in one line, {verdicts[SAME]} unchanged; readers: {len(kind.readers)}"
        cut = f"EVERY={every} " if every > 1 else ""
        command = f"{cut}pytest tests/stress/test_mutations.py -k {name}"
        record(kind.fault, verdicts.total(), 0, verdicts["wrong"], command, note)
    assert not wrong, "\n".join(wrong)


def test_there_are_two_thousand_of_them() -> None:
    assert sum(kind.cases for kind in KINDS.values()) == 2000


def put_back(kind: Kind, whole: Path, world: Path) -> None:
    if kind.folder:
        shutil.rmtree(world / kind.folder)
        shutil.copytree(whole / kind.folder, world / kind.folder)
    for file in ("curve.csv", "grid.yaml"):
        shutil.copy(whole / file, world / file)
