"""The checks that every plugin should pass, and the Fourier probe on a hand-made wave."""

from __future__ import annotations

import torch
from stagelens.testing import check_probe, check_task

from stagelens_grokking.data import split, table
from stagelens_grokking.probes import Fourier, spectrum
from stagelens_grokking.tasks import Addition


def test_the_table_is_addition() -> None:
    rows = table(5)
    assert rows.shape == (25, 4) and [4, 3, 5, 2] in rows.tolist()


def test_no_question_is_both_shown_and_held_out() -> None:
    shown, rest = split(7, 0.4, torch.Generator().manual_seed(0))
    assert len(shown) == 20 and len({tuple(row) for row in torch.cat([shown, rest]).tolist()}) == 49


def test_a_single_wave_has_all_the_power() -> None:
    angle = 2 * torch.pi * 3 * torch.arange(11) / 11
    power = spectrum(torch.stack([angle.cos(), angle.sin()], dim=1))
    assert power.argmax() == 2 and power[2] > 0.999  # frequency 3


def test_the_task() -> None:
    check_task(Addition)


def test_the_probe() -> None:
    power, concentration = check_probe(Fourier, task=Addition(Addition.Config()))
    assert abs(float(power.array().sum()) - 1) < 1e-5 and 0 < float(concentration.array()) < 0.5
