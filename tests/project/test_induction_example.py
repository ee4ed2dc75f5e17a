"""The example of docs/induction.md: its scripts run, and the page shows the numbers that they stored."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagelens as sl
from conftest import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "induction"


@pytest.fixture
def page() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "page.py"), run_name="page")


def test_the_page_shows_the_stored_numbers(page: dict[str, Any]) -> None:
    numbers = json.loads((EXAMPLE / "result.json").read_text())
    text = page["PAGE"].read_text(encoding="utf-8")
    assert page["with_numbers"](text, numbers) == text
    assert page["table"](numbers) in text


def test_the_stored_model_has_an_induction_head_and_a_previous_token_head_before_it() -> None:
    numbers = json.loads((EXAMPLE / "result.json").read_text())
    for score, layer in (("prefix_matching", 1), ("previous_token", 0)):
        best, error = (np.array(numbers[name]) for name in (score, f"{score}_error"))
        assert best.argmax() // best.shape[1] == layer
        assert best.max() - 3 * error.flat[best.argmax()] > 5 * numbers[f"{score}_chance"][layer]


@pytest.mark.slow
def test_the_scripts_run(page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = runpy.run_path(str(EXAMPLE / "train.py"), run_name="train")
    train["train"](Path("my_training"), steps=4, save_every=2, width=32)
    run = sl.probe_checkpoints("my_training", text="my_training/held_out.txt", length=32, sequences=2, name="induction")
    numbers = page["numbers_of"](run)
    assert numbers["steps"] == [0, 2, 4]
    assert numbers["measured_on"] == "held_out.txt, 2 sequences of 32 tokens"
    assert np.shape(numbers["prefix_matching"]) == (2, 4)
    assert page["table"](numbers).count("\n| 1 |") == 4
