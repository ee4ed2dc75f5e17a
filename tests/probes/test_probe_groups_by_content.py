"""head_specialization with groups by content: written patterns, any model, fewer queries than keys, stacked seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.own_models import plain_model, tokens_like_text
from kit.probe_models import measured, refusal, tokens, transformer, written_pattern
from stagelens.experiments import Training, eval_batch
from stagelens.models import build_transformer
from stagelens.recording import Recorder
from stagelens.training.stacked_recorder import StackedRecorder
from stagelens.training.stacking import Stacked

ROLES = [*sl.token_groups(), "rest"]


def by_loops(pattern, batch):
    """Mean attention [head, group] to the ready-made groups and the rest, over queries that see two keys, by loops."""
    n_batch, n_head, n_query, n_key = pattern.shape
    mass = np.zeros((n_head, len(ROLES)))
    first = n_key - n_query
    counted = 0
    for b in range(n_batch):
        for q in range(max(first, 1), n_key):
            same = [k for k in range(q) if batch[b, k] == batch[b, q]]
            groups = [[q - 1], [q], same, [k + 1 for k in same], [0]]
            rest = set(range(n_key)) - {k for keys in groups for k in keys}
            for g, keys in enumerate([*groups, sorted(rest)]):
                mass[:, g] += pattern[b, :, q - first, keys].sum(-1).numpy()
            counted += 1
    return mass / counted


def random_pattern(n_batch, n_head, n_query, n_key):
    pattern = torch.rand(n_batch, n_head, n_query, n_key, generator=torch.Generator().manual_seed(1)).double()
    pattern = pattern.tril(n_key - n_query)
    return pattern / pattern.sum(-1, keepdim=True)


@pytest.mark.parametrize("n_query", [9, 4, 1])
def test_the_roles_of_heads_by_loops_with_as_many_queries_as_keys_and_with_fewer(n_query):
    batch = tokens(3, 9, d_vocab=4)
    pattern = random_pattern(3, 2, n_query, 9)
    found = measured(written_pattern(pattern), "head_specialization", batch)
    np.testing.assert_allclose(found["mass"][0], by_loops(pattern, batch), rtol=1e-6, atol=1e-12)


def test_an_exact_head_of_each_role_is_named():
    batch = torch.tensor([[0, 1, 2, 1, 2, 2, 0, 1]] * 2)
    masks = torch.stack(
        [group.keys(8, 8, batch).expand(2, 8, 8) for group in sl.token_groups().values()], dim=1
    ).double()
    nothing = masks.sum(-1, keepdim=True) == 0  # a query without such a key attends uniformly
    visible = torch.ones(8, 8).tril().double()
    pattern = torch.where(nothing, visible, masks)
    recorder = sl.Recorder(written_pattern(pattern / pattern.sum(-1, keepdim=True)), ["head_specialization"], batch)
    recorder.measure(0)
    leader = recorder.timeline["head_specialization/leader"]
    names = leader.attrs["flag_meanings"].split()
    assert [names[int(code)].replace("_", " ") for code in leader[0, 0]] == ROLES[:5]


def test_any_language_model_has_the_same_roles_however_it_attends():
    batch = tokens_like_text()
    found = [measured(plain_model(way), "head_specialization", batch)["mass"] for way in ("scaled", "by hand")]
    assert found[0].shape == (2, 4, 6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_a_batch_that_is_not_tokens_has_lags():
    recorder = sl.Recorder(transformer(d_in=4, d_out=4), ["head_specialization"], torch.randn(2, 5, 4))
    recorder.measure(0)
    assert recorder.timeline["head_specialization/mass"].dims == ("step", "layer", "head", "lag")


def test_tokens_that_are_not_the_keys_need_groups():
    pattern = random_pattern(2, 2, 5, 5)
    assert "the batch has 9 tokens but 'blocks.0.attn.hook_pattern' has 5 keys; give groups of keys" in refusal(
        written_pattern(pattern), "head_specialization", tokens(2, 9)
    )
    found = measured(written_pattern(pattern), "head_specialization", tokens(2, 6))  # the model reads all but the last
    np.testing.assert_allclose(found["mass"][0], by_loops(pattern, tokens(2, 6)), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (lambda batch: batch, "group 'mine' at 'blocks.0.attn.hook_pattern': its mask gave torch.int64"),
        (lambda batch: torch.ones(3, 10, 10, dtype=torch.bool), "its mask has 3 sequences, and the batch has 5"),
    ],
)
def test_a_bad_mask_is_a_problem_in_one_line(mask, problem):
    recorder = sl.Recorder(transformer(), ["head_specialization"], tokens(), groups={"mine": sl.Group(mask=mask)})
    recorder.measure(0)
    assert problem in recorder.problems["head_specialization"]
    assert "\n" not in recorder.problems["head_specialization"]


def test_a_mask_is_computed_once_per_batch():
    calls = []

    def mask(batch):
        calls.append(1)
        return torch.ones(5, 10, 10, dtype=torch.bool).tril()

    recorder = sl.Recorder(transformer(), ["head_specialization"], tokens(), groups={"all": sl.Group(mask=mask)})
    for step in range(3):
        recorder.measure(step)
    np.testing.assert_allclose(recorder.timeline["head_specialization/mass"][..., 0], 1, rtol=1e-6)
    assert len(calls) == 1


class Copying(sl.Task):
    """Random tokens, other ones for each seed."""

    id, title = "content/tokens", "random tokens"
    presets = {"quick": {}}

    def build_model(self):
        return build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=7, d_vocab=4, seed=self.seed)

    def sample(self, n, generator):
        return torch.randint(4, (n, 8), generator=generator)

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def test_vectorized_seeds_have_masks_of_their_own_batches():
    trainings = [Training(Copying(Copying.Config(eval_size=6), seed)) for seed in range(3)]
    recorders = [Recorder(t.model, ["head_specialization"], eval_batch(t.task), task=t.task) for t in trainings]
    assert not torch.equal(recorders[0].context.batch, recorders[1].context.batch)
    together = StackedRecorder(Stacked(trainings), recorders)
    seen = together.observe(0, range(3))
    assert seen is not None, together.apart
    for recorder, one in zip(recorders, seen, strict=True):
        for reading, alone in zip(
            *(o.readings["head_specialization"] for o in (one, recorder.observe(0))), strict=True
        ):
            np.testing.assert_allclose(reading.array(), alone.array(), rtol=1e-4, atol=1e-6, err_msg=reading.name)
