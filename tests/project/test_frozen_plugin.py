"""A third party's plugin, written for an older version, still installs and works through the command line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SEVERAL

PLUGIN = Path(__file__).with_name("frozen_plugin")
DIGEST = "84859664ed8e3b5a"
PROBES = "first_key,frozen_source,frozen_growth,attention_sparsity,head_specialization,kl_to_references,qk_alignment"


COMMANDS = {
    "plugins": ["plugins"],
    "tasks": ["tasks"],
    "probes": ["probes"],
    "run": ["run", "frozen", "--probes", PROBES, "--name", "copy"],
    "flow": ["run", "frozen/flow"],
    "verify": ["verify", "frozen", "--workers", "1"],
}
OWN_TESTS = """
import runpy
try:
    sys.argv = ["checks", "more"]
    runpy.run_module("stagelens_frozen.checks", run_name="__main__")
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(answers), file=stdout)
"""


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """Calls Python where the plugin is installed, in `call.folder`."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copytree(PLUGIN, folder / "source")
    places = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    surroundings = os.environ | {"PYTHONPATH": places, "STAGELENS_CACHE": str(folder / "cache")}

    def call(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=surroundings, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-build-isolation"]
    call(*pip, "--target", str(folder / "site"), str(folder / "source"))
    call.folder = folder
    return call


@pytest.fixture(scope="module")
def answers(call):
    """What the commands printed. The plugin's own tests ran in the same process, after them."""
    words = json.dumps({name: [*words, "--json"] for name, words in COMMANDS.items()})
    return json.loads(call("-c", SEVERAL + OWN_TESTS, words).splitlines()[-1])


def test_the_frozen_plugin_is_unchanged():
    files = sorted(path for path in PLUGIN.rglob("*") if path.suffix in (".py", ".toml"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    assert digest == DIGEST, "the plugin is frozen: what no longer works in it is broken for its users; keep it working"


@pytest.mark.slow
def test_it_is_listed_with_all_that_it_brings(answers):
    (listed,) = [row for row in answers["plugins"] if row["name"] == "frozen"]
    assert (listed["status"], listed["version"], listed["distribution"]) == ("loaded", "1.0.0", "stagelens-frozen")
    tasks = {row["id"]: row["default"] for row in answers["tasks"] if row["plugin"] == "frozen"}
    assert tasks == {"frozen/copy": True, "frozen/flow": False, "frozen/regression": False}
    probes = {row["name"] for row in answers["probes"] if row["plugin"] == "frozen"}
    assert probes == {"first_key", "frozen_source", "frozen_growth"}


@pytest.mark.slow
def test_its_task_runs_with_its_probes_figure_and_observer(call, answers):
    ran = answers["run"]
    assert (ran["task"], ran["status"], ran["problems"]) == ("frozen/copy", "finished", {})
    assert not {"first_key", "frozen_source", "frozen_growth"} & ran["skipped"].keys()
    assert {"accuracy", "first_key/value", "frozen_source/attention", "frozen_growth/change"} <= ran["final"].keys()
    assert {"kl_to_references/kl", "head_specialization/mass", "qk_alignment/reference"} <= ran["final"].keys()
    assert [phase["phase"] for phase in ran["training_phases"]] == ["embedding", "all"]
    assert {one["name"]: one["measured"] for one in ran["predictions"]}["end"] == 8
    folder = call.folder / ran["run"]
    assert (folder / "figures" / "accuracy.png").stat().st_size > 3000
    observed = (folder / "observed.txt").read_text().splitlines()
    assert observed[0] == "started frozen/copy 0" and observed[-1] == "finished" and len(observed) == 9 + 2


@pytest.mark.slow
def test_its_flow_runs_and_its_claims_hold(answers):
    ran = answers["flow"]
    jumps = [stage["name"] for stage in ran["stages"] if stage["kind"] == "transition"]
    assert ran["status"] == "finished" and jumps == ["jump"]
    assert abs(ran["events"]["half"] - 6.358) < 0.01
    assert {row["id"]: row["verdict"] for row in answers["verify"]} == {"FROZEN1": "holds", "FROZEN2": "holds"}


@pytest.mark.slow
def test_its_own_tests_pass(call, answers):
    assert answers and (call.folder / "more").is_dir()
