"""The notebooks run from top to bottom, and what is stored of their outputs is small."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from conftest import ROOT

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
LARGEST = 200_000  # bytes
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", folder)  # its shell commands find the stagelens that is tested
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    shown = [printed(cell) for cell in notebook.cells]
    first = nbformat.v4.new_code_cell("from kit.store import reuse\nreuse()")  # what is registered is trained once
    notebook.cells.insert(0, first)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    everything = json.dumps(notebook)
    assert "Traceback" not in everything and "error: " not in everything
    for cell, stored in zip(notebook.cells[1:], shown, strict=True):
        if not cell.source.startswith("!"):  # a command's table depends on the width of the terminal
            assert_same_text(printed(cell), stored)


def printed(cell):
    """What a cell prints, one text."""
    return "".join(out.text for out in cell.get("outputs", ()) if out.output_type == "stream" and out.name == "stdout")


def assert_same_text(found, stored):
    """The same words, and numbers that are equal to 5%, to 0.001 or in the last digit: processors round differently."""
    ours, theirs = (NUMBER.split(text) for text in (found, stored))
    assert [" ".join(part.split()) for part in ours] == [" ".join(part.split()) for part in theirs]
    for one, other in zip(NUMBER.findall(found), NUMBER.findall(stored), strict=True):
        unit = 10.0 ** -len(other.partition(".")[2])
        assert abs(float(one) - float(other)) <= max(1.5 * unit, 1e-3, 0.05 * abs(float(other))), (one, other)


def test_a_notebook_is_small_installs_what_it_needs_and_names_no_local_path(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert "%pip install --quiet stagelens" in text
    assert str(ROOT) not in text and "/home/" not in text and "/tmp/" not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)  # a reader sees results before running anything
