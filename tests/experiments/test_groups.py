"""Groups of keys: by offset, by position and by content."""

from __future__ import annotations

import pytest
import torch

import stagelens as sl
from stagelens import Group
from stagelens.base.errors import UsageError


def test_groups_by_offset_and_by_position():
    mask = Group(offsets=(0, 2), positions=(1,)).keys(4, 4)
    assert mask.int().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]]


def test_with_fewer_queries_than_keys_the_last_query_is_at_the_last_key():
    whole = Group(offsets=(1,)).keys(5, 5)
    assert torch.equal(Group(offsets=(1,)).keys(2, 5), whole[-2:])


def test_negative_positions_count_from_the_last_key():
    assert torch.equal(Group(positions=(-1, -4)).keys(4, 4), Group(positions=(3, 0)).keys(4, 4))
    assert torch.equal(Group(positions=(-2,)).keys(1, 5), Group(positions=(3,)).keys(1, 5))


@pytest.mark.parametrize("position", [4, -5, 99])
def test_a_position_that_is_no_key_is_refused(position):
    with pytest.raises(UsageError, match=rf"position {position} was given, but there are 4 keys"):
        Group(positions=(0, position)).keys(4, 4)


def test_a_group_applies_to_the_layers_that_it_names_or_to_all():
    assert [Group(offsets=(1,), layers=(0, 2)).is_in(layer) for layer in (0, 1, 2, None)] == [True, False, True, False]
    assert all(Group(offsets=(1,)).is_in(layer) for layer in (0, 1, None))


def test_the_method_mask_of_older_plugins_still_works():
    with pytest.warns(DeprecationWarning, match="Group.mask is now Group.keys"):
        assert torch.equal(Group(offsets=(1,)).mask(3, 4), Group(offsets=(1,)).keys(3, 4))


def is_zero(batch):
    return (batch == 0)[:, None, :].expand(-1, batch.shape[1], -1)


def test_a_group_by_content_joins_offsets_and_positions():
    batch = torch.tensor([[5, 0, 0, 7], [0, 1, 2, 3]])
    found = Group(offsets=(0,), positions=(-1,), mask=is_zero).keys(4, 4, batch)
    assert found[0].int().tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert found[1].int().tolist() == [[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1]]
    assert Group(mask=is_zero) == Group(mask=is_zero) != Group()


def test_a_mask_is_cut_to_the_positions_that_the_model_reads_and_to_the_last_queries():
    batch = torch.tensor([[5, 0, 0, 7, 0]])
    whole = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(Group(mask=lambda batch: whole).keys(2, 4, batch), whole[:, 2:4, :4])
    exact = whole[:, :2, :4]
    assert torch.equal(Group(mask=lambda batch: exact).keys(2, 4, batch), exact)


@pytest.mark.parametrize(
    ("mask", "given"),
    [
        (torch.ones(2, 3, 3), r"torch.float32 \[2, 3, 3\]"),
        (torch.ones(3, 3, dtype=torch.bool), r"torch.bool \[3, 3\]"),
        (torch.ones(2, 2, 2, dtype=torch.bool), r"torch.bool \[2, 2, 2\]"),
        (None, "NoneType"),
    ],
)
def test_a_bad_mask_is_refused_in_one_line(mask, given):
    with pytest.raises(UsageError, match=rf"its mask gave {given}; expected a bool tensor \[batch, query, key\]"):
        Group(mask=lambda batch: mask).keys(3, 3, torch.zeros(2, 3))
    with pytest.raises(UsageError, match="mask=Tensor was given; expected a function"):
        Group(mask=torch.ones(2, 3, 3))


def plain(tokens, name):
    """The keys of a ready-made group by loops: bool [batch, query, key]."""
    n_batch, n = tokens.shape
    found = torch.zeros(n_batch, n, n, dtype=torch.bool)
    for b in range(n_batch):
        for q in range(n):
            before = [k for k in range(q) if tokens[b, k] == tokens[b, q]]
            keys = {
                "previous token": [q - 1] if q else [],
                "own token": [q],
                "same token earlier": before,
                "induction target": [k + 1 for k in before],
                "first token": [0],
            }[name]
            found[b, q, keys] = True
    return found


@pytest.mark.parametrize("name", sl.token_groups())
def test_the_ready_made_groups_are_what_loops_find(name):
    tokens = torch.randint(4, (3, 9), generator=torch.Generator().manual_seed(0))
    for batch in (tokens, (tokens, None), {"input_ids": tokens}, {"tokens": tokens, "other": 1}):
        found = sl.token_groups()[name].keys(9, 9, batch)
        assert torch.equal(found.expand(3, 9, 9), plain(tokens, name))
    answers = sl.token_groups(lambda batch: batch["x"][0])[name].keys(9, 9, {"x": [tokens]})
    assert torch.equal(answers.expand(3, 9, 9), plain(tokens, name))


@pytest.mark.parametrize("batch", [torch.zeros(2, 3), {"x": 1}, (), None, torch.zeros(2, 3, dtype=torch.bool)])
def test_a_batch_without_tokens_is_refused(batch):
    with pytest.raises(UsageError, match=r"the batch has no tokens: int \[batch, position\].*token_groups\(tokens=\)"):
        sl.token_groups()["induction target"].keys(3, 3, batch)
