"""The claims. Their runs come from the cache of `stagelens verify`, so they are trained once."""

from __future__ import annotations

import pytest
from stagelens import Claim
from stagelens.claims import Lab
from stagelens.testing import check_claim

from stagelens_statistical_induction.claims.strategies import TwoLayerCircuit, UnigramsFirst
from stagelens_statistical_induction.figures.strategies import fig1


@pytest.mark.parametrize("claim", [UnigramsFirst, TwoLayerCircuit])
def test_a_claim_holds(claim: type[Claim]) -> None:
    assert check_claim(claim, seeds=1).verdict == "holds"


def test_the_figure_has_the_loss_and_the_distance_from_each_strategy(lab: Lab) -> None:
    left, right = fig1(lab).axes
    assert left.get_lines()[0].get_ydata()[0] > left.get_lines()[0].get_ydata()[-1]
    assert [line.get_label() for line in right.get_lines()] == ["uniform", "unigram", "bigram"]
