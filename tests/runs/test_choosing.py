"""`where` and `ordered_by` choose rows of the catalogue by their keys."""

from __future__ import annotations

import pytest

from stagelens.base import UsageError
from stagelens.runs import ordered_by, where

ROWS = [
    {"name": "a", "seed": 2, "lr": 0.1, "status": "finished", "own_token": True},
    {"name": "b", "seed": 10, "lr": 0.01, "status": "failed", "own_token": False},
    {"name": "c", "seed": 3, "lr": None, "status": "finished", "spectrum": "1/i, 2 and more"},
]


def chosen(expression):
    return "".join(row["name"] for row in where(ROWS, expression))


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("seed>=3", "bc"),  # as numbers: as text, "10" is less than "3"
        ("seed<3", "a"),
        ("seed = 1e1", "b"),
        ("status=finished and seed>2", "c"),
        ("status == 'finished'", "ac"),
        ("status!=finished", "b"),
        ("lr!=0.1", "b"),  # a run without the key meets no condition on it
        ("own_token=true", "a"),
        ("name>a", "bc"),
        ("seed<z", ""),  # a number has no order with a text
        ('spectrum="1/i, 2 and more"', "c"),
    ],
)
def test_rows_that_meet_every_condition_are_chosen(expression, names):
    assert chosen(expression) == names


def test_rows_without_the_key_are_sorted_last_in_both_directions():
    assert [row["name"] for row in ordered_by(ROWS, "seed")] == ["a", "c", "b"]
    assert [row["name"] for row in ordered_by(ROWS, "-seed")] == ["b", "c", "a"]
    assert [row["name"] for row in ordered_by(ROWS, "lr")] == ["b", "a", "c"]
    assert [row["name"] for row in ordered_by(ROWS, "-lr")] == ["a", "b", "c"]


@pytest.mark.parametrize("expression", ["", "seed", "seed=", "=3", "seed=1 or seed=2", "seed=1 and", "seed=>1"])
def test_an_expression_that_cannot_be_read_is_quoted_with_an_example(expression):
    with pytest.raises(UsageError, match="expected KEY=VALUE") as raised:
        where(ROWS, expression)
    assert repr(expression) in str(raised.value)


def test_an_unknown_key_names_the_nearest():
    for call in (lambda: where(ROWS, "sed=1"), lambda: ordered_by(ROWS, "-sed")):
        with pytest.raises(UsageError, match=r"unknown key 'sed' \(did you mean 'seed'\?\)"):
            call()
