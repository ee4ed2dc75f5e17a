"""Each value of a preset `paper` has a source; guesses are marked as guesses."""

from __future__ import annotations

import sys
from itertools import chain

import pytest

from conftest import ROOT
from stagelens.host.host import make_host

sys.path.insert(0, str(ROOT / "docs"))
import verdicts

HOST = make_host(allow=())
TASKS = [ref.id for _, ref in HOST.tasks if ref.id.partition("/")[0] in verdicts.PAPERS]


@pytest.mark.parametrize("task", TASKS)
def test_each_value_of_the_preset_paper_has_one_source(task):
    kind = HOST.task(task).load()
    named = list(chain.from_iterable(kind.sources.values()))
    assert len(named) == len(set(named)), "a key has two sources"
    assert set(kind.presets["paper"]) <= set(named) <= set(kind.Config.model_fields)


def test_stagelens_tasks_shows_the_sources(cli):
    shown = cli("tasks", "markov/full").out
    assert "preset paper, d_model, d_mlp, dropout: Table 3" in shown
    assert "preset paper, init_scale: a guess" in shown
    assert {"source": "Table 4", "keys": ["intervals"]} in cli("tasks", "markov/full", "--json").json["sources"]
