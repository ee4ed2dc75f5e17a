"""The notebooks run from top to bottom, and what is stored of their outputs is small."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from conftest import ROOT

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
LARGEST = 200_000  # bytes
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", folder)  # its shell commands find the stagelens that is tested
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = json.dumps(notebook)
    assert "Traceback" not in printed and "error: " not in printed


def test_a_notebook_is_small_installs_what_it_needs_and_names_no_local_path(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert "%pip install --quiet stagelens" in text
    assert str(ROOT) not in text and "/home/" not in text and "/tmp/" not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)  # a reader sees results before running anything
