"""Grids: every way to write one, and a one-line error for what is not a grid."""

from __future__ import annotations

from typing import Any

import pytest

from stagelens.base.errors import UsageError
from stagelens.experiments.config import Config
from stagelens.sweeps.grid import make_grid


class Nested(Config):
    inner: float = 1.0


class Sizes(Config):
    T: int = 1
    d: int = 1
    lr: float = 1.0
    spectrum: str = ""
    betas: tuple[float, ...] = ()
    nested: Nested = Nested()


def points(given: Any) -> list[dict[str, str]]:
    return list(make_grid(given, Sizes))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("T=1,2,5", ["1", "2", "5"]),
        ("T=7", ["7"]),
        ("T=10:50:20", ["10", "30", "50"]),
        ("T=10:45:20", ["10", "30"]),
        ("T=5:1:-2", ["5", "3", "1"]),
        ("lr=0.1:0.5:0.1", ["0.1", "0.2", "0.3", "0.4", "0.5"]),
        ("lr=log:0.01:1:3", ["0.01", "0.1", "1"]),
        ("T=log:10:1000:5", ["10", "32", "100", "316", "1000"]),  # integers for a key that takes integers
        ("T=log:1:3:5", ["1", "2", "3"]),  # each once
        ("lr=log:1e-300:1e300:3", ["1e-300", "1", "1e+300"]),  # whose ratio is no number
        ("spectrum=power:1,flat", ["power:1", "flat"]),
        ("betas=[0.1,0.2],[0.3]", ["[0.1,0.2]", "[0.3]"]),
        ("nested.inner=1,2", ["1", "2"]),
    ],
)
def test_a_key_takes_the_values_that_its_text_lists(text: str, values: list[str]) -> None:
    key = text.partition("=")[0]
    assert [point[key] for point in points(text)] == values


def test_a_grid_is_the_product_of_its_axes_the_last_one_fastest() -> None:
    assert points(["T=1,2", "d=3,4"]) == [
        {"T": "1", "d": "3"},
        {"T": "1", "d": "4"},
        {"T": "2", "d": "3"},
        {"T": "2", "d": "4"},
    ]


def test_paired_keys_move_together() -> None:
    assert points(["T,d=10:5,20:10", "lr=1"]) == [
        {"T": "10", "d": "5", "lr": "1"},
        {"T": "20", "d": "10", "lr": "1"},
    ]


def test_a_mapping_and_a_yaml_file_mean_what_the_texts_mean(tmp_path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text('T: [1, 2]\nlr: "log:0.01:1:3"\nd,betas: [[3, [0.1, 0.2]], [4, [0.3]]]\n')
    texts = points(["T=1,2", "lr=log:0.01:1:3", "d,betas=3:[0.1, 0.2],4:[0.3]"])
    assert points(file) == points(str(file)) == texts
    assert points({"T": [1, 2], "lr": "log:0.01:1:3", ("d", "betas"): [(3, [0.1, 0.2]), (4, [0.3])]}) == texts


def test_yaml_is_read_safely(tmp_path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("T: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(UsageError, match="not yaml"):
        make_grid(file, Sizes)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([], "the grid is empty"),
        ({}, "the grid is empty"),
        ({"T": []}, "the grid is empty"),
        ("T=", "has no values"),
        ("Q=1,2", "unknown grid key 'Q'"),
        ("seed=1,2", "give --seeds N"),
        (["T=1", "T=2"], "'T' is given twice"),
        ("T=10:5:1", "is empty; its step must lead to its last"),
        ("T=1:5:0", "is empty"),
        ("T=log:0:5:3", "ends above 0"),
        ("T=log:1:5", "a log range is log:first:last:count"),
        ("T=1:1e9:1", "has more than 1,000,000 values; give fewer"),
        ("T=-1e308:1e308:1", "has more than 1,000,000 values"),
        ("T=log:1:10:1e9", "has more than 1,000,000 values"),
        ("T=log:1:10:inf", "a count of 2 or more"),
        ({1: [2]}, "grid key 1: expected the name of a config key"),
        ({"T,d": [1, 2]}, "expected a list of rows of 2 values"),
        ("T,d=1:2,3", "'3' has 1 values for the 2 keys T, d"),
        ({"T,d": [[1, 2], [3]]}, "expected a list of rows of 2 values"),
        ("nothing.yaml", "cannot read it"),
        ("T", "give k=a,b,c"),
    ],
)
def test_what_is_no_grid_is_reported_in_one_line(given: Any, word: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=word) as told:
        make_grid(given, Sizes)
    assert "\n" not in str(told.value)


def test_the_size_is_known_without_making_the_points() -> None:
    assert make_grid(["T=1:10000:1", "d=1:10000:1", "lr=1:10000:1"], Sizes).size == 10**12
