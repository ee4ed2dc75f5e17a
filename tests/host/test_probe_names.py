"""Which probes run: the usual ones, those selected by name, those added with a plus, or all."""

import pytest

from stagelens.base import UsageError
from stagelens.host import make_host

HOST = make_host()
DEFAULT = [name for name, ref in HOST.probes if ref.default]


def test_the_usual_probes_are_the_default_ones_and_those_that_the_task_adds() -> None:
    assert HOST.probe_names() == HOST.probe_names([]) == DEFAULT
    assert HOST.probe_names(own=["recall_circuit", "induction"]) == [*DEFAULT, "recall_circuit"]


def test_names_select_and_names_with_a_plus_add() -> None:
    own = ["recall_circuit"]
    assert HOST.probe_names(["head_ablation"], own) == ["head_ablation"]
    assert HOST.probe_names(["+head_ablation"], own) == [*DEFAULT, "recall_circuit", "head_ablation"]
    assert HOST.probe_names(["+induction", "+gradient", "+gradient"]) == [*DEFAULT, "gradient"]


def test_all_means_every_probe_of_every_plugin() -> None:
    names = HOST.probe_names(["all"])
    assert names == [name for name, _ in HOST.probes]
    assert {"head_ablation", "recall_circuit", *DEFAULT} <= set(names)


def test_to_add_and_to_select_at_once_is_one_line_that_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"\+NAME adds a probe and NAME selects it; give \+gradient to add"):
        HOST.probe_names(["+head_ablation", "gradient"])


@pytest.mark.parametrize("given", [["inductoin"], ["+inductoin"]])
def test_an_unknown_name_gets_the_nearest_one(given: list[str]) -> None:
    with pytest.raises(UsageError, match="induction"):
        HOST.probe_names(given)
