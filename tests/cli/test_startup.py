"""Commands that only read import no torch, and options work although typer's converters are skipped."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED = "import sys, json; from stagelens.cli import main\ntry: main()\nexcept SystemExit: pass\n"


def loaded_after(*words):
    """Returns the modules that a new Python process has loaded after `stagelens WORDS`."""
    code = f"{LOADED}print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("words", [["--help"], ["tasks"], ["plugins", "--json"]])
def test_listing_makes_no_pydantic_converters(words):
    printed, modules = loaded_after(*words)
    assert printed
    assert "pydantic.type_adapter" not in modules and "typer._adapters" not in modules


def test_an_option_before_the_command_is_still_read(tmp_path):
    (tmp_path / "mine.py").write_text("")
    printed, _ = loaded_after("--plugin-dir", str(tmp_path), "plugins", "--json")
    assert "mine" in [plugin["name"] for plugin in json.loads(printed)]


def test_python_m_stagelens_is_the_command_line():
    command = [sys.executable, "-m", "stagelens", "tasks", "markof"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown task 'markof' (did you mean 'markov'?)")
