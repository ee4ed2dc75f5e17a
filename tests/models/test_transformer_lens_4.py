"""A selection of tests with TransformerLens 4, in an overlay over the installed packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "4.3.0"
ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / ".venv" / "overlay" / f"transformer-lens-{VERSION}"
SELECTION = (
    "tests/models/test_both_lenses.py",
    "tests/models/test_watching.py::test_patterns_are_hugging_faces_own_and_the_output_is_not_changed",
    "tests/models/test_watching.py::test_a_hook_can_replace_heads_scores_and_patterns",
    "tests/recording/test_own_models.py::test_a_measured_training_is_the_unmeasured_one",
    "tests/training/test_own_loop.py::test_resuming_continues_the_timeline",
    "tests/training/test_series_hugging_face.py::"
    "test_the_directory_of_a_trainer_is_a_series_with_the_numbers_of_its_callback",
)


def overlay() -> Path:
    """Returns the folder with TransformerLens 4 alone, which the first call installs. Skips without a registry."""
    if not OVERLAY.exists():
        making = OVERLAY.with_name(f"{OVERLAY.name}-{os.getpid()}")
        words = ["install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(making)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, f"transformer-lens=={VERSION}"], capture_output=True, text=True
        )
        if done.returncode:
            shutil.rmtree(making, ignore_errors=True)
            pytest.skip(f"TransformerLens {VERSION} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        making.rename(OVERLAY)
    return OVERLAY


def test_a_selection_of_tests_passes_with_transformer_lens_4() -> None:
    paths = os.pathsep.join([str(overlay()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *SELECTION],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
