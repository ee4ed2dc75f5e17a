"""The notebooks run from top to bottom, and what is stored of their outputs is small."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path

import pytest

from conftest import ROOT
from kit.printed import assert_same_text

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
LARGEST = 200_000  # bytes
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The first cell of each: no names of the notebook before, an empty folder, and what is registered is trained once.
FIRST = """
get_ipython().run_line_magic("reset", "-f")
import os
os.chdir({folder!r})
from kit.store import reuse
reuse()
"""


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks: it imports torch once."""
    from jupyter_client.manager import KernelManager

    with pytest.MonkeyPatch.context() as patch:
        folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        patch.setenv("PATH", folder)  # its shell commands find the stagelens that is tested
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
    with warnings.catch_warnings():  # its clients close their sockets when they are collected, and warn
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery
def test_a_notebook_runs(path, tmp_path, kernel):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    shown = [printed(cell) for cell in notebook.cells]
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST.format(folder=str(tmp_path))))
    NotebookClient(notebook, km=kernel, timeout=300).execute()
    everything = json.dumps(notebook)
    assert "Traceback" not in everything and "error: " not in everything
    for cell, stored in zip(notebook.cells[1:], shown, strict=True):
        if not cell.source.startswith("!"):  # a command's table depends on the width of the terminal
            assert_same_text(printed(cell), stored)


def printed(cell):
    """What a cell prints, one text."""
    return "".join(out.text for out in cell.get("outputs", ()) if out.output_type == "stream" and out.name == "stdout")


def test_a_notebook_is_small_installs_what_it_needs_and_names_no_local_path(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert "%pip install --quiet git+{REPOSITORY}" in text  # it is not on a package index
    assert str(ROOT) not in text and "/home/" not in text and "/tmp/" not in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)  # a reader sees results before running anything
