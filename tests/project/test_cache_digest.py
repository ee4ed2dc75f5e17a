"""The lab's cache: every module that a run without a report loads is in the digest of the run's source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.tiny import task_ids, tiny_settings
from stagelens.claims.lab import NO_PART_IN_RUNS, NO_PART_IN_RUNS_HERE, find_source, run_files

# Modules that a run without a report loads although its numbers do not depend on them, each with the reason.
ALLOWED: dict[str, str] = {}

SCRIPT = """
import json, sys
import torch
from stagelens.host import make_host
from stagelens.training import run

torch.set_num_threads(1)
host = make_host()
for task, settings in json.loads(sys.argv[1]).items():
    run(task, settings=settings, runs=sys.argv[2], device="cpu", host=host)
ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0].startswith("stagelens")}
print(json.dumps({name: module.__file__ for name, module in ours.items()}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The modules of stagelens, probes and plugins that a process has loaded after running every task; their files."""
    settings = json.dumps({task: tiny_settings(task) for task in task_ids()})
    command = [sys.executable, "-c", SCRIPT, settings, str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: Path(file) for name, file in json.loads(done.stdout).items()}


def test_every_module_that_a_run_loads_is_in_the_digest(loaded):
    packages = {name.partition(".")[0] for name in loaded}
    assert {"stagelens", "stagelens_probes", "stagelens_markov"} <= packages
    counted = {file for package in packages for file in run_files(find_source(package))}
    missing = {name for name, file in loaded.items() if file not in counted}
    assert missing == ALLOWED.keys(), (
        f"runs load {sorted(missing - ALLOWED.keys())}, but the lab's digest leaves them out (claims/lab.py): "
        "`stagelens verify` would reuse runs that older source made"
    )


def test_what_the_digest_leaves_out_exists():
    names = {path.stem for path in find_source("stagelens").iterdir()}
    assert names >= NO_PART_IN_RUNS_HERE and NO_PART_IN_RUNS <= NO_PART_IN_RUNS_HERE


def test_a_module_counts_by_its_path_and_not_by_a_name_below_it(tmp_path):
    package = tmp_path / "package"
    counted = ["model.py", "stages.py", "events.py", "data/claims.py", "data/figures/__init__.py", "claimed.py"]
    aside = ["claims.py", "text_claims.py", "figures/loss.py", "cli/show.py"]
    for name in [*counted, *aside]:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    assert [file.relative_to(package).as_posix() for file in run_files(package)] == sorted(counted)
