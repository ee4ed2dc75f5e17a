"""Configs: typed from text, frozen, and mistakes reported in one line."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

import stagelens as sl
from stagelens.base.errors import UsageError
from stagelens.experiments.config import Config, make_config, validate
from stagelens.runs.manifest import Manifest, load_manifest


class Inner(Config):
    width: int = 4
    rate: float = 0.5


class Outer(sl.TaskConfig):
    label: str = "x"
    flag: bool = False
    limit: float | None = None
    kind: Literal["a", "b"] = "a"
    betas: tuple[float, ...] = (1.0, 2.0)
    names: list[str] = []
    pairs: tuple[tuple[int, ...], ...] = ((1, 2),)
    inner: Inner = Inner(width=7)


PRESETS = {"quick": {"steps": 10}, "paper": {"inner": {"rate": 0.25}, "betas": (3.0,)}}


def made(*settings, preset="quick"):
    return make_config(Outer, PRESETS, preset, settings)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("steps=500", "steps", 500),
        ("steps=1e3", "steps", 1000),
        ("lr=1e-3", "lr", 0.001),
        ("lr=3", "lr", 3.0),
        ("label=500", "label", "500"),
        ("label=a,b", "label", "a,b"),
        ("label=k=v", "label", "k=v"),
        ("label=", "label", ""),
        ("flag=true", "flag", True),
        ("flag=no", "flag", False),
        ("limit=null", "limit", None),
        ("limit=2", "limit", 2.0),
        ("kind=b", "kind", "b"),
        ("betas=1,2.5,3", "betas", (1.0, 2.5, 3.0)),
        ("betas=[4, 5]", "betas", (4.0, 5.0)),
        ("betas=0.5", "betas", (0.5,)),
        ("names=a,b", "names", ["a", "b"]),
        ("names=a", "names", ["a"]),
        ("pairs=[[1,2],[3]]", "pairs", ((1, 2), (3,))),
    ],
)
def test_text_takes_the_type_of_its_field(setting, key, value):
    found = getattr(made(setting), key)
    assert found == value and type(found) is type(value)


def test_settings_override_a_preset():
    assert made().steps == 10 and made("steps=20").steps == 20
    assert made(preset="paper").betas == (3.0,)
    assert made("steps=20", "steps=30").steps == 30


def test_dots_reach_into_nested_configs_and_leave_the_rest_as_it_was():
    assert made("inner.rate=0.1").inner == Inner(width=7, rate=0.1)
    assert made("inner.width=3", preset="paper").inner == Inner(width=3, rate=0.25)
    assert made('inner={"width": 2}').inner == Inner(width=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stepz=5", r"unknown config key 'stepz' \(did you mean 'steps'\?\); known: .*batch_size"),
        ("inner.widht=5", r"unknown config key 'inner.widht' \(did you mean 'inner.width'\?\); known: inner.rate"),
        ("inner.width.deep=5", "unknown config key 'inner.width.deep'"),
        ("label.deep=5", "unknown config key 'label.deep'"),
        ("nothing.deep=5", "unknown config key 'nothing.deep'"),
        ("steps=many", "config key 'steps': got 'many', input should be a valid integer"),
        ("steps=1.5", "config key 'steps': got 1.5, input should be a valid integer"),
        ("steps=-5", "config key 'steps': got -5, it should be at least 1"),
        ("batch_size=0", "config key 'batch_size': got 0"),
        ("lr=0", "config key 'lr': got 0, it should be above 0"),
        ("clip=-1", "config key 'clip': got -1, it should be at least 0"),
        ("train_size=-1", "config key 'train_size': got -1"),
        ("eval_size=-1", "config key 'eval_size': got -1"),
        ("lr=nan", "config key 'lr'"),
        ("lr=Infinity", "config key 'lr'.*finite"),
        ("kind=c", "config key 'kind': got 'c', input should be 'a' or 'b'"),
        ("betas=a,b", "config key 'betas.0'"),
        ("inner=5", "config key 'inner'"),
        ("steps=1000000001", "config key 'steps'.*integers should be at most 1,000,000,000"),
        ("pairs=[[1,2],[-1e12]]", "config key 'pairs'.*integers should be at most"),
        ("steps=" + "[" * 5000, "config key 'steps'"),
        ("steps=" + "9" * 5000, "config key 'steps'"),
        ("steps", "--set 'steps': expected key=value"),
        ("=5", "--set '=5': expected key=value"),
    ],
)
def test_mistakes_say_what_was_given_and_what_was_expected(setting, message):
    with pytest.raises(UsageError, match=message) as caught:
        made(setting)
    assert "\n" not in str(caught.value)


def test_a_nested_key_after_a_wrong_parent_is_reported_in_one_line():
    with pytest.raises(UsageError, match="config key 'inner'"):
        made("inner=5", "inner.width=3")


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown preset 'quik' \(did you mean 'quick'\?\); known: paper, quick"):
        made(preset="quik")


def test_another_default_does_not_remove_a_bound():
    class Shorter(sl.TaskConfig):
        steps: int = 40

    class Longer(sl.FlowConfig):
        time: float = 1e6

    flows = ("time=-1", "time=1e-300", "points=1", "points=1e7", "rtol=0", "rtol=2", "atol=1e3")
    for kind, setting in ((Shorter, "steps=0"), *((Longer, setting) for setting in flows)):
        with pytest.raises(UsageError, match="it should be"):
            make_config(kind, {"quick": {}}, "quick", [setting])


def test_an_unknown_method_of_integration_lists_the_known_ones():
    with pytest.raises(UsageError, match="config key 'method': got 'Euler', input should be 'LSODA', 'RK45'"):
        make_config(sl.FlowConfig, {"quick": {}}, "quick", ["method=Euler"])


def test_configs_are_frozen_and_refuse_unknown_keys():
    with pytest.raises(ValidationError, match="frozen"):
        made().steps = 5
    with pytest.raises(ValidationError):
        Outer(nothing=1)


def test_making_a_config_leaves_the_presets_as_they_were():
    presets = {"quick": {"inner": {"rate": 0.25}}}
    make_config(Outer, presets, "quick", ["inner.rate=0.1"])
    assert presets == {"quick": {"inner": {"rate": 0.25}}}


reals = st.floats(allow_nan=False, allow_infinity=False)
configs = st.builds(
    Outer,
    steps=st.integers(1, 10**9),
    lr=st.floats(1e-300, 1e300),
    label=st.text(),
    flag=st.booleans(),
    limit=st.none() | reals,
    kind=st.sampled_from("ab"),
    betas=st.lists(reals).map(tuple),
    names=st.lists(st.text()),
    pairs=st.lists(st.lists(st.integers(-(10**9), 10**9)).map(tuple)).map(tuple),
    inner=st.builds(Inner, width=st.integers(-(10**9), 10**9), rate=reals),
)


@given(configs)
def test_a_config_comes_back_from_the_manifest_as_it_went_in(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("run")
    dumped = config.model_dump(mode="json")
    Manifest("a/b", "a", "quick", dumped, seed=0, kind="training", steps=config.steps).save(folder)
    assert validate(Outer, load_manifest(folder).config) == config
