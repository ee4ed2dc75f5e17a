"""A user's mistakes get one line that says what to do."""

from __future__ import annotations

import re

import pytest

from stagelens.base.errors import UsageError
from stagelens.experiments.config import make_config
from stagelens.experiments.training import Training
from stagelens_linear_icl.flow import LinearFlow
from stagelens_linear_icl.tasks import RawSequences, Separate

WRONG = {
    "spectrum=0.4,0.3,0.2,0": "positive",
    "spectrum=0.4,0.3,0.2,-0.1": "positive",
    "spectrum=0.4,0.3,0.2": "3 eigenvalues and D is 4",
    "spectrum=[[1,0,0],[0,1,0]]": "square, and this matrix is 2 by 3",
    "spectrum=[[1,0.5],[0.2,1]]": "symmetric",
    "spectrum=[[1,2],[2,1]]": "positive eigenvalues",
    "spectrum=[[1,0],[0,1]]": "2 rows and D is 4",
    "spectrum=[[1,0],[0]]": "give D eigenvalues",
    "spectrum=[]": "give D eigenvalues",
    "spectrum=power": "power:1",
    "spectrum=law:2": "power:1",
    "R=5": "rank R=5 is larger than D=4",
    "R=0": "greater than or equal to 1",
    "N=0": "greater than or equal to 1",
    "w_init=0": "greater than 0",
    "loss=first": "'query' or 'next-token'",
}


@pytest.mark.parametrize("kind", [Separate, RawSequences, LinearFlow])
@pytest.mark.parametrize("setting", WRONG)
def test_an_impossible_setting_is_an_error_that_names_the_cause(kind, setting):
    with pytest.raises(UsageError, match=re.escape(WRONG[setting])) as raised:
        make_config(kind.Config, kind.presets, "quick", [setting])
    assert "\n" not in str(raised.value)


def test_train_size_is_called_p():
    with pytest.raises(UsageError, match="called P here"):
        make_config(Separate.Config, Separate.presets, "quick", ["train_size=10"])
    assert make_config(Separate.Config, Separate.presets, "quick", ["P=10"]).train_size == 10


@pytest.mark.parametrize("kind", [Separate, RawSequences])
def test_a_rate_that_diverges_is_refused_with_one_that_does_not(kind):
    def training(lr):
        settings = [f"lr={lr}", "w_init=0.5", "P=20", "batch_size=20"]
        return Training(kind(make_config(kind.Config, kind.presets, "quick", settings)))

    with pytest.raises(UsageError, match="lr=50: descent diverges") as raised:
        training(50)
    rate = float(re.search(r"largest stable one is about ([\d.e-]+)", str(raised.value)).group(1))
    assert 0.5 < rate < 5
    training(rate / 2)


def test_the_command_line_says_it_in_one_line(cli):
    said = cli("run", "linear-icl", "--set", "lr=50")
    assert said.code == 2 and "largest stable one is about" in said.complaint
