"""Every random number is a function of the seed and of its purpose."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from stagelens.base.seeds import derive, generator, untouched_rng


def test_the_streams_are_the_same_on_every_machine():
    assert (derive(0, "init"), derive(7, "train", 5)) == (6109011495221250200, 9146426286339864521)
    drawn = torch.randint(2**31, (3,), generator=generator(0, "train", 5))
    assert drawn.tolist() == [521305863, 1986160204, 101292551]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["init", "train", "eval"]), st.integers(0, 3)), unique=True)
)
def test_different_uses_get_different_seeds(paths):
    assert len({derive(*path) for path in paths}) == len(paths)


def test_a_seed_fits_into_63_bits():
    assert all(0 <= derive(seed, "x") < 2**63 for seed in (0, 1, 2**64, -1))


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.Philox])
@pytest.mark.parametrize("swaps", [False, True])
def test_any_bit_generator_of_numpy_is_left_as_found(kind, swaps):
    before, state = np.random.get_bit_generator(), np.random.get_state(legacy=False)  # noqa: NPY002
    try:
        np.random.set_bit_generator(kind(3))
        expected = np.random.RandomState(kind(3)).normal(size=3).tolist()
        with warnings.catch_warnings(), untouched_rng():
            warnings.simplefilter("error")
            if swaps:
                np.random.set_bit_generator(np.random.PCG64(7))
            np.random.rand(5)  # noqa: NPY002
        assert np.random.normal(size=3).tolist() == expected  # noqa: NPY002
    finally:
        np.random.set_bit_generator(before)
        np.random.set_state(state)  # noqa: NPY002


@pytest.mark.parametrize("fails", [False, True])
def test_random_states_are_left_as_found(fails):
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    expected = torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    try:
        with untouched_rng():
            torch.rand(100), np.random.rand(100), random.random()  # noqa: NPY002
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()) == expected  # noqa: NPY002
