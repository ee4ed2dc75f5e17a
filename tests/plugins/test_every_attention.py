"""The attention of every task: the probes know its mask, and uniform attention is not sparse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stagelens as sl
from stagelens.experiments.task import Task
from stagelens.host.host import make_host
from stagelens.recording.context import Site

HOST = make_host()
TASKS = [task_id for task_id, ref in HOST.tasks if issubclass(ref.load(), Task)]
VARIANTS = [
    ("markov/minimal", {"context": 3}),
    ("markov/minimal", {"window": 4}),
    ("markov/full", {"context": 2}),
    ("recall/simplified", {"order": 2, "heads": 2}),
    ("recall/simplified", {"sampled": True}),
    ("recall/transformer", {"positions": "alibi"}),
    ("rich/toy", {"tokens": "boolean", "L": 5}),
    ("linear-icl/separate", {"loss": "next-token"}),
    ("linear-icl/sequences", {"loss": "next-token", "attention": "softmax"}),
    ("emergence/recall", {"layers": 1, "heads": 1}),
    ("emergence/recall", {"layers": 3, "heads": 2}),
]
CASES = [(task_id, {}) for task_id in TASKS] + VARIANTS
each = pytest.mark.parametrize(("task_id", "settings"), CASES, ids=lambda value: str(value))


def recorder_of(task_id: str, settings: dict[str, Any]) -> sl.Recorder:
    kind = HOST.tasks[task_id].load()
    task = kind(kind.Config(**kind.presets["quick"] | settings))
    model = task.build_model()
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():  # weights that make every score differ from 0
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=stream, dtype=parameter.dtype)
    return sl.Recorder(model, ["attention_sparsity"], task.sample(3, stream), task=task)


def attended(scores: Tensor) -> Tensor:
    """bool, as `scores`: those that the mask leaves; it sets the others to -inf, or to 0 where there is no softmax."""
    return scores != 0 if scores.isfinite().all() and (scores == 0).any() else scores.isfinite()


def passing(recorder: sl.Recorder, hook: str, function: Any) -> None:
    sites = recorder.context.sites(hook)
    assert sites
    with torch.no_grad():
        recorder.context.run(hooks=[(site.name, function) for site in sites])


@each
def test_the_visible_keys_are_those_that_the_models_own_mask_leaves(task_id, settings):
    recorder = recorder_of(task_id, settings)
    seen: list[Site] = []

    def check(scores: Tensor, hook: Any) -> None:
        site = Site.of(hook.name)
        seen.append(site)
        assert torch.equal(attended(scores).any(0).any(0), recorder.context.visible(scores, site.layer)), hook.name
        assert torch.equal(attended(scores).all(0).all(0), recorder.context.visible(scores, site.layer)), hook.name

    passing(recorder, "attn.hook_attn_scores", check)
    assert len(seen) == recorder.context.model.cfg.n_layers == len(recorder.context.sites("attn.hook_pattern"))


@each
def test_no_attention_is_on_keys_that_count_as_masked(task_id, settings):
    recorder = recorder_of(task_id, settings)

    def check(pattern: Tensor, hook: Any) -> None:
        masked = ~recorder.context.visible(pattern, Site.of(hook.name).layer)
        assert pattern.abs().amax((0, 1))[masked].sum() == 0, hook.name

    passing(recorder, "attn.hook_pattern", check)


@each
def test_uniform_attention_over_the_models_own_mask_has_sparsity_zero(task_id, settings):
    recorder = recorder_of(task_id, settings)

    def uniform(scores: Tensor, hook: Any) -> Tensor:
        left = attended(scores)
        linear = scores.isfinite().all() and not left.all()
        return left.to(scores.dtype) if linear else torch.where(left, 0.0, scores)

    recorder.context.model.add_hook(lambda name: name.endswith("attn.hook_attn_scores"), uniform)
    readings = {reading.name: reading.array() for reading in recorder.measure(0)}
    assert not recorder.problems and all(name.endswith(("_error", "_by_third")) for name in recorder.skipped)
    found = readings["attention_sparsity/sparsity"]  # [layer, head], nan for heads that a layer does not have
    assert (~torch.tensor(found).isnan()).any(-1).all()
    torch.testing.assert_close(
        torch.tensor(found).nan_to_num(), torch.zeros(found.shape, dtype=torch.float64), rtol=0, atol=1e-6
    )
