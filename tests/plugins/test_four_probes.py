"""The four probes on every task: which are recorded by default, why one is not, and their readings in known states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.store import host
from kit.tiny import is_flow, reported_run, task_ids, tiny_task
from stagelens.experiments import eval_batch
from stagelens_linear_icl.theory import fixed_point_weights

FOUR = {  # each with its main reading
    "attention_sparsity": "sparsity",
    "head_specialization": "mass",
    "induction": "prefix_matching",
    "qk_alignment": "score_top",
}
MISSING = {
    "emergence/toy": {"head_specialization", "induction", "qk_alignment"},
    "emergence/regression": {"induction"},
    "linear-icl/separate": {"induction"},
    "linear-icl/sequences": {"induction"},
    "markov/minimal": {"induction", "qk_alignment"},
    "recall/simplified": {"qk_alignment"},
    "rich/toy": {"qk_alignment"},
}
TASKS = [task_id for task_id in task_ids() if not is_flow(task_id)]
FLOWS = {
    "markov/flow": {"attention_sparsity", "head_specialization"},
    "recall/flow": {"attention_sparsity", "head_specialization"},
    "rich/flow": {"attention_sparsity", "head_specialization"},
    "emergence/flow": {"attention_sparsity"},  # it has one head
}
OF_AN_EXCEPTION = re.compile(r"Error|Exception|Traceback|expected|shape|\(|\[")


def recorded(run: sl.Run) -> set[str]:
    return {probe for probe, reading in FOUR.items() if f"{probe}/{reading}" in run.timeline}


@pytest.mark.parametrize("task_id", TASKS)
def test_a_task_records_the_four_probes_by_default_or_says_in_plain_words_why_not(task_id):
    run, missing = reported_run(task_id), MISSING.get(task_id, set())
    assert recorded(run) == FOUR.keys() - missing
    assert not run.manifest.problems
    readme = " ".join((_plugin(task_id) / "README.md").read_text(encoding="utf-8").split())
    for probe in missing:
        without = run.experiment.without.get(probe)
        skipped = run.manifest.skipped
        reason = skipped[probe if without or probe in skipped else f"{probe}/{FOUR[probe]}"]
        assert len(reason.split()) > 5 and not OF_AN_EXCEPTION.search(reason)
        assert without in (None, reason) and (without or probe) in readme


def _plugin(task_id: str) -> Path:
    (plugin,) = (plugin for plugin in host().plugins if plugin.name == host().tasks.owners[task_id])
    return Path(plugin.file).parent


@pytest.mark.parametrize("task_id", FLOWS)
def test_a_flow_records_the_attention_probes_under_the_same_names_and_dims_as_a_model(task_id):
    run, model = reported_run(task_id), reported_run(f"{task_id.partition('/')[0]}/{MODELS[task_id]}")
    assert recorded(run) == FLOWS[task_id]
    for name in run.timeline:
        if name.partition("/")[0] in FOUR:
            assert run.timeline[name].dims == model.timeline[name].dims
            assert run.timeline.column(name).labels == model.timeline.column(name).labels


MODELS = {"markov/flow": "minimal", "recall/flow": "simplified", "rich/flow": "toy", "emergence/flow": "toy"}


def measured(task_id: str, attention: str, probes: list[str]) -> sl.Recorder:
    """One measurement of a task whose attention is replaced, in every layer and head, by a known one."""
    task = tiny_task(task_id)
    model: Any = task.build_model()
    recorder = sl.Recorder(model, probes, eval_batch(task), task=task, host=host())

    def replaced(pattern: torch.Tensor, hook: Any) -> torch.Tensor:
        visible = recorder.context.visible(pattern, int(hook.name.split(".")[1])).to(pattern)  # [query, key]
        if attention == "one key":  # the last one that each query sees
            last = visible.shape[-1] - 1 - visible.flip(-1).argmax(-1)
            visible = torch.nn.functional.one_hot(last, visible.shape[-1]).to(pattern) * visible
        return (visible / visible.sum(-1, keepdim=True).clamp(min=1)).expand_as(pattern)

    model.add_hook(lambda name: name.endswith("attn.hook_pattern"), replaced, is_permanent=True)
    recorder.measure(0)
    assert not recorder.problems
    return recorder


@pytest.mark.parametrize("task_id", TASKS)
def test_uniform_attention_has_sparsity_zero_and_attention_to_one_key_has_one(task_id):
    for attention, sparsity in (("uniform", 0.0), ("one key", 1.0)):
        found = measured(task_id, attention, ["attention_sparsity"]).timeline
        values = found["attention_sparsity/sparsity"].values
        np.testing.assert_allclose(values[~np.isnan(values)], sparsity, atol=1e-5)


BY_KEYS = [task_id for task_id in TASKS if not task_id.startswith("linear-icl") and task_id != "emergence/toy"]


@pytest.mark.parametrize("task_id", BY_KEYS)
def test_heads_that_attend_alike_overlap_fully_and_are_diffuse_or_competitive(task_id):
    for attention, phase in (("uniform", "diffuse"), ("one key", "competitive")):
        recorder = measured(task_id, attention, ["head_specialization"])
        overlap = recorder.timeline["head_specialization/overlap"].values[0]  # [layer]
        there = ~np.isnan(overlap)
        assert there.any()
        np.testing.assert_allclose(overlap[there], 1.0, atol=1e-5)
        codes = recorder.timeline["head_specialization/phase"].values[0][there]
        names = recorder.timeline.column("head_specialization/phase").labels
        if attention == "uniform" or task_id != "rich/toy":
            assert {names[int(code)] for code in codes} == {phase}


@pytest.mark.parametrize(("heads_at", "phase"), [((0, 0, 0, 0), "competitive"), ((0, 1, 2, 3), "cooperative")])
def test_the_heads_of_linear_attention_compete_for_one_eigenvector_or_take_different_ones(heads_at, phase):
    task = tiny_task("linear-icl/separate")
    model: Any = task.build_model()
    _, k, q = model.attention.core()
    e = torch.from_numpy(task.covariance.eigenvectors)
    with torch.no_grad():
        for head, direction in enumerate(heads_at):
            k[head, 0], q[head, 0] = 0.3 * e[direction], -2.0 * e[direction]
    recorder = sl.Recorder(model, ["head_specialization"], eval_batch(task), task=task, host=host())
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"]
    assert list(mass.group.values) == ["e1", "e2", "e3", "e4", "rest"]
    np.testing.assert_allclose(mass.values[0, 0], np.eye(5)[list(heads_at)], atol=1e-6)
    labels = recorder.timeline.column("head_specialization/phase").labels
    assert labels[int(recorder.timeline["head_specialization/phase"].values[0, 0])] == phase


def test_the_mass_of_a_head_of_rank_two_is_the_fraction_of_its_keys_and_queries_along_each_direction():
    task = tiny_task("linear-icl/separate")
    task = type(task)(task.config.model_copy(update={"R": 2}), 0)
    model: Any = task.build_model()
    recorder = sl.Recorder(model, ["head_specialization"], eval_batch(task), task=task, host=host())
    recorder.measure(0)
    cache: dict[str, torch.Tensor] = {}
    hooks = [(f"blocks.0.attn.hook_{side}", lambda x, hook: cache.update({hook.name[-1]: x})) for side in "kq"]
    with torch.no_grad():
        recorder.context.run(hooks=hooks)
    e = torch.from_numpy(np.pad(task.covariance.eigenvectors, ((0, 0), (0, 1))))  # [direction, D + 1]
    for head in range(task.config.H):
        plain = []
        for side in "kq":
            x = cache[side][:, :, head].flatten(0, 1).double()  # [sample, D + 1]
            plain.append((x @ e.T).square().sum(0) / x.square().sum())
        expected = torch.stack(plain).mean(0)
        found = recorder.timeline["head_specialization/mass"].values[0, 0, head]
        np.testing.assert_allclose(found, [*expected.tolist(), 1 - float(expected.sum())], atol=1e-6)


def test_equal_eigenvalues_are_one_group():
    kind = host().tasks["linear-icl/separate"].load()
    task = kind(kind.Config(**kind.presets["fig9"]), 0)
    assert any("+" in name and len(group.directions) > 1 for name, group in task.groups().items())
    assert sum(len(group.directions) for group in task.groups().values()) == task.config.D


def test_a_plateau_of_linear_attention_has_one_head_at_each_learned_eigenvector():
    task = tiny_task("linear-icl/separate")
    model: Any = task.build_model()
    weights = fixed_point_weights(task.covariance, [0, 2], task.inverse_length, task.config.H, 1)
    with torch.no_grad():
        for own, given in zip(model.attention.core(), weights, strict=True):
            own.copy_(torch.from_numpy(given))
    recorder = sl.Recorder(model, ["head_specialization"], eval_batch(task), task=task, host=host())
    recorder.measure(0)
    mass = recorder.timeline["head_specialization/mass"].values[0, 0]  # [head, group]
    np.testing.assert_allclose(mass[:2], np.eye(5)[[0, 2]], atol=1e-6)
    np.testing.assert_allclose(mass[2:, -1], 1.0)  # heads without keys and queries are along no direction
