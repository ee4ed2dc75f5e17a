"""A user's mistakes get one line that says what to do."""

from __future__ import annotations

import re

import pytest

from stagelens.base.errors import UsageError
from stagelens.experiments.config import make_config
from stagelens_rich.flow import RichFlow
from stagelens_rich.tasks.toy import HighDim, RichToy

SHARED = {
    "w_star=0.7": "needs 4 w*^4 < 1; give 0 < w_star < 0.7",
    "w_star=1": "needs 4 w*^4 < 1; give 0 < w_star < 0.7",
    "w_star=0": "give 0 < w_star < 0.7",
    "L=4": "give L >= 5",
    "L=-1": "give L >= 5",
    "sigma_init=0": "should be above 0",
    "sigma_init=-0.1": "should be above 0",
    "sigma_init=0.5": "give sigma_init < 0.49",
    "alpha_star=0": "should be above 0",
}


@pytest.mark.parametrize("kind", [RichToy, RichFlow, HighDim])
@pytest.mark.parametrize("setting", SHARED)
def test_a_setting_outside_of_the_theory_is_an_error_that_names_its_limit(kind, setting):
    with pytest.raises(UsageError, match=re.escape(SHARED[setting])) as raised:
        make_config(kind.Config, kind.presets, "quick", [setting])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "setting", "says"),
    [
        (RichToy, "first_steps=-1", "greater than or equal to 0"),
        (RichToy, "first_lr=0", "greater than 0"),
        (RichToy, "steps=300", "leave none for the second layer; give steps > 500, or first_steps=0"),
        (RichToy, "tokens=words", "'gaussian' or 'boolean'"),
        (RichToy, "lr=0", "above 0"),
        (RichFlow, "time=0", "above 0"),
        (RichFlow, "system=six", "'four', 'five' or 'first-layer'"),
        (RichFlow, "imbalance=-1", "greater than -1"),
        (HighDim, "D=0", "greater than or equal to 1"),
        (HighDim, "optimizer=sgd", "'adam' or 'gd'"),
        (HighDim, "train_size=100", "exact loss has no training set"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(kind, setting, says):
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        make_config(kind.Config, kind.presets, "quick", [setting])
    assert "\n" not in str(raised.value)


def test_the_command_line_says_it_in_one_line(cli):
    said = cli("run", "rich", "--set", "w_star=0.7")
    assert said.code == 2 and "give 0 < w_star < 0.7" in said.complaint
