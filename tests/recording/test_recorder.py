"""The recorder makes one shared pass, changes nothing, and continues if a probe fails."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stagelens as sl
from kit.tasks import Regression, Repeats
from stagelens.base.errors import UsageError
from stagelens.models import build_transformer
from stagelens.recording.probes import DoesNotApply, Omitted, Probe
from stagelens.runs.store import Store, read_measurements
from stagelens.timelines.timeline import Timeline


@sl.probe(hooks="hook_middle")
def middle_mean(activation, context):
    """The mean of the middle layer."""
    return activation.mean()


class Second(Probe):
    name, gives = "second", ("value",)
    hooks = ("hook_middle",)

    def reduce(self, activation, site, context):
        return activation.square().mean()

    def readings(self, reduced, context):
        (value,) = reduced.values()
        yield sl.Reading("value", value)


class Moody(Second):
    """Fails from step 2 on, in one of several ways."""

    name = "moody"
    way = "raise"

    def readings(self, reduced, context):
        if context.step < 2:
            yield sl.Reading("value", torch.ones(2), ("k",))
        elif self.way == "raise":
            raise RuntimeError("out of\ntune")
        elif self.way == "shape":
            yield sl.Reading("value", torch.ones(3), ("k",))
        elif self.way == "nan":
            yield sl.Reading("value", torch.tensor([1.0, torch.nan]), ("k",))
        elif self.way == "leaves":
            raise DoesNotApply("no longer")


def setting(kind=Regression):
    task = kind(kind.Config())
    return task, task.build_model(), task.sample(4, torch.Generator().manual_seed(0))


def recorder_of(*probes, **options):
    task, model, batch = setting()
    return sl.Recorder(model, list(probes), batch, loss=task.loss, **options), model, batch


def test_readings_are_what_the_hooks_saw():
    recorder, model, batch = recorder_of(middle_mean, Second)
    recorder.measure(3, rate=0.5)
    middle = batch[0] @ model.first
    assert recorder.timeline["middle_mean/value"].sel(step=3).item() == pytest.approx(middle.mean().item())
    assert recorder.timeline["second/value"].sel(step=3).item() == pytest.approx(middle.square().mean().item())
    assert recorder.timeline["rate"].item() == 0.5
    assert recorder.timeline["loss"].item() == pytest.approx((model(batch[0]) - batch[1]).square().mean().item())


def test_all_probes_share_one_forward_pass():
    recorder, model, _ = recorder_of(middle_mean, Second, "weight_norms")
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    recorder.measure(0)
    assert len(passes) == 1


def test_model_gradients_modes_hooks_and_random_states_are_left_as_found():
    task, model, batch = setting(Repeats)
    model.train()
    model.embed_dropout.eval()
    task.loss(model, batch).backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    modes = {name: module.training for name, module in model.named_modules()}
    recorder = sl.Recorder(model, ["attention_sparsity", "gradient", "head_ablation"], batch, loss=task.loss)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    recorder.measure(0)
    assert torch.equal(torch.rand(3), expected)
    assert not recorder.problems and not recorder.skipped
    for name, parameter in model.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name][0]) and torch.equal(parameter.grad, before[name][1])
        else:
            assert parameter.grad is None
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not any(point.fwd_hooks or point._forward_hooks for point in model.hook_dict.values())


def test_it_measures_in_evaluation_mode():
    task, model, batch = setting(Repeats)
    model.train()
    recorder = sl.Recorder(model, [], batch, loss=task.loss)
    recorder.measure(0), recorder.measure(1)
    assert recorder.timeline["loss"].values[0] == recorder.timeline["loss"].values[1]


@pytest.mark.parametrize(
    ("way", "message"),
    [("raise", "RuntimeError: out of tune"), ("shape", "changed from shape"), ("nan", "'moody/value' is nan")],
)
def test_a_probe_that_fails_is_dropped_and_named_and_the_others_continue(way, message):
    probe = Moody()
    probe.way = way
    recorder, *_ = recorder_of(probe, Second)
    for step in range(4):
        recorder.measure(step)
    assert message in recorder.problems["moody"] and "hook_middle" in recorder.problems["moody"]
    assert len(recorder.timeline.scalar("second/value")[0]) == 4
    values = recorder.timeline.series("moody/value")
    assert (~np.isnan(values).all(1)).tolist() == [True, True, False, False]


def test_a_probe_can_find_out_late_that_it_does_not_apply():
    probe = Moody()
    probe.way = "leaves"
    recorder, *_ = recorder_of(probe)
    for step in range(3):
        recorder.measure(step)
    assert recorder.skipped == {"moody": "no longer"} and not recorder.problems


def test_a_probe_that_fails_inside_its_hook_is_named_with_the_hook():
    @sl.probe(hooks="hook_middle")
    def broken(activation, context):
        return activation.no_such_thing

    recorder, *_ = recorder_of(broken, Second)
    recorder.measure(0)
    assert "probe 'broken' at hook 'hook_middle' failed: AttributeError" in recorder.problems["broken"]
    assert recorder.problems["broken"].endswith(f"({place_of('return activation.no_such_thing')})")
    assert "second/value" in recorder.timeline


def test_the_problem_of_a_probe_names_the_line_that_raised():
    probe = Moody()
    recorder, *_ = recorder_of(probe)
    recorder.measure(0), recorder.measure(2)
    told = f"probe 'moody' at hook 'hook_middle' failed: RuntimeError: out of tune ({place_of('raise RuntimeError(')})"
    assert recorder.problems == {"moody": told}


def test_the_problem_of_a_reference_names_the_line_of_the_reference():
    def reference(batch):
        return batch.no_such_thing  # in a reference

    task, model, batch = setting(Repeats)
    for given in ({"references": {"own": reference}}, {"task": with_reference(task, reference)}):
        recorder = sl.Recorder(model, ["kl_to_references"], batch, loss=task.loss, **given)
        recorder.measure(0)
        assert recorder.problems["kl_to_references"].endswith(f"({place_of('no_such_thing  # in a reference')})")


def with_reference(task, reference):
    task.references = lambda: {"own": reference}
    return task


def place_of(code):
    """file:line of the first line of this file that ends with `code`, or has it."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{1 + next(number for number, line in enumerate(lines) if code in line)}"


def test_a_probe_whose_hooks_are_missing_is_reported():
    recorder, *_ = recorder_of("attention_sparsity")
    assert recorder.skipped == {"attention_sparsity": "the model has no hook 'attn.hook_pattern'"}


def test_a_resumed_recorder_remembers_shapes_numbers_and_who_was_dropped():
    probe = Moody()
    probe.way = "nan"
    first, *_ = recorder_of(probe, Second)
    first.measure(0)
    second, *_ = recorder_of(type("Again", (Moody,), {"way": "nan"}), Second)
    second.load_state(first.state(), first.measurements)
    second.measure(2)
    assert "is nan" in second.problems["moody"]
    third, *_ = recorder_of(Moody, Second)
    third.load_state(second.state(), second.measurements)
    assert list(third.probes) == ["second"] and third.problems == second.problems


def test_measuring_a_step_again_replaces_it():
    recorder, _model, _ = recorder_of()
    recorder.measure(0, x=1.0), recorder.measure(0, x=2.0)
    assert recorder.timeline["x"].values.tolist() == [2.0]


@pytest.mark.parametrize(
    "steps",
    [[10, 5, 10], [3, 2, 1, 0], [0, 0.5, 0, 0.25, 1], [5, 5.0, 4], list(np.random.default_rng(0).integers(9, size=40))],
)
def test_steps_are_strictly_increasing_in_whatever_order_they_are_measured(steps, tmp_path):
    """Each step has the value that was measured last; the store of a run follows the same rule."""
    with closing(Store(tmp_path)) as store:
        recorder, *_ = recorder_of(Second, sink=lambda measurement, readings: store.add(measurement))
        for index, step in enumerate(steps):
            recorder.measure(step, x=float(index))
    expected = {step: float(index) for index, step in enumerate(steps)}
    for timeline in (recorder.timeline, Timeline(read_measurements(tmp_path))):
        assert timeline.steps.tolist() == sorted(expected)
        assert timeline["x"].values.tolist() == [expected[step] for step in sorted(expected)]
        assert not np.isnan(timeline["second/value"]).any()
    assert [m.step for m in recorder.measurements] == sorted(expected)
    if len(expected) > 3:
        sl.detect_stages(*recorder.timeline.scalar("x"))


@pytest.mark.parametrize("step", [np.int64(3), np.float32(0.5), torch.tensor(3), np.array(4.5), 2**53])
def test_a_step_may_be_a_number_of_numpy_or_torch(step, tmp_path):
    with closing(Store(tmp_path)) as store:
        recorder, *_ = recorder_of(sink=lambda measurement, readings: store.add(measurement))
        recorder.measure(step, x=1.0)
        assert recorder.timeline.steps.tolist() == [float(step)]
    assert [m.step for m in read_measurements(tmp_path)] == [float(step)]


@pytest.mark.parametrize(
    "step",
    [
        *(float("nan"), float("inf"), -float("inf"), 1e300, torch.tensor(torch.nan), np.ones(2), "10", None),
        *(True, np.bool_(0), torch.tensor(True)),
    ],
)
def test_a_step_that_is_no_number_is_refused_before_anything_is_measured(step):
    recorder, model, _ = recorder_of(Second)
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(UsageError, match="is not a finite number"):
        recorder.measure(step)
    assert not passes and not recorder.measurements


def test_a_scalar_that_is_none_is_refused_before_anything_is_measured():
    recorder, *_ = recorder_of(Second)
    with pytest.raises(UsageError, match=r"rate=None was given at step 3; give a number, or leave rate out"):
        recorder.measure(3, x=1.0, rate=None)
    assert not recorder.measurements


class Shuffled(Probe):
    """The same numbers at every step, in another order each time; `way` says what is shuffled."""

    name, gives = "shuffled", ("mass", "leader")
    way = "coords"
    heads, kinds = ("a", "b", "c"), ("low", "high")

    def readings(self, reduced, context):
        step = int(context.step)
        heads = np.roll(self.heads, step).tolist() if self.way == "coords" else self.heads
        kinds = self.kinds[:: -1 if step % 2 else 1] if self.way == "labels" else self.kinds
        mass = np.array([[ord(head) + layer for head in heads] for layer in (0, 10)])
        dims, coords = ("layer", "head"), {"layer": [0, 10], "head": heads}
        if self.way == "dims" and step % 2:
            mass, dims = mass.T, dims[::-1]
        if self.way == "other coords" and step:
            coords["head"] = ("a", "b", "d")
        if self.way == "other labels" and step:
            kinds = ("low", "middle")
        if self.way == "fewer" and step:
            mass, heads = mass[:, :2], heads[:2]
            coords["head"] = heads
        yield sl.Reading("mass", mass, dims, coords)
        codes = [kinds.index("low") if head == "a" else 1 - kinds.index("low") for head in heads]
        yield sl.Reading("leader", np.array(codes), ("head",), {"head": coords["head"]}, labels=kinds)


@pytest.mark.parametrize("way", ["coords", "labels", "dims"])
def test_readings_that_change_their_order_are_matched_by_label(way):
    recorder, *_ = recorder_of(type("Own", (Shuffled,), {"way": way}))
    for step in range(5):
        recorder.measure(step)
    mass, leader = recorder.timeline["shuffled/mass"], recorder.timeline["shuffled/leader"]
    assert not recorder.problems and mass.dims == ("step", "layer", "head")
    for head in "abc":
        assert mass.sel(head=head, layer=10).values.tolist() == [ord(head) + 10] * 5
        names = [recorder.timeline.column("shuffled/leader").label(code) for code in leader.sel(head=head).values]
        assert names == ["low" if head == "a" else "high"] * 5


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("other coords", "changed its coordinates of 'head' from ['a', 'b', 'c'] to ['a', 'b', 'd']"),
        ("other labels", "changed its labels from ['low', 'high'] to ['low', 'middle']"),
        ("fewer", "changed from shape {'layer': 2, 'head': 3} to {'layer': 2, 'head': 2}"),
    ],
)
def test_a_reading_with_other_labels_than_at_first_is_a_problem_of_its_probe(way, message):
    recorder, *_ = recorder_of(type("Own", (Shuffled,), {"way": way}), Second)
    recorder.measure(0), recorder.measure(1)
    assert message in recorder.problems["shuffled"]
    assert len(recorder.timeline.scalar("second/value")[0]) == 2


def test_two_readings_of_one_name_are_a_problem_of_the_probe():
    recorder, *_ = recorder_of(type("Own", (Shuffled,), {"heads": ("a", "b", "b")}))
    recorder.measure(0)
    assert "name one place twice" in recorder.problems["shuffled"]


def test_without_hooks_or_batch_the_error_names_what_is_missing():
    with pytest.raises(UsageError, match="no attention was seen in Linear"):
        sl.Recorder(nn.Linear(2, 2), [], torch.ones(2))
    with pytest.raises(UsageError, match="needs a batch"):
        sl.Recorder(setting()[1], [])
    with pytest.raises(UsageError, match="unknown probe 'second'"):
        recorder_of("second")
    with pytest.raises(UsageError, match="expected a name, a Probe or a Probe class"):
        recorder_of(5)


class Picky(sl.Probe):
    """Returns `late` from step 2 on, and always omits `never`."""

    name = "picky"
    gives = ("always", "late", "never")
    stacks = True

    def readings(self, reduced, context):
        yield sl.Reading("always", 1.0)
        yield sl.Reading("late", 2.0) if context.step >= 2 else Omitted("late", "not before step 2")
        yield Omitted("never", f"this model has none (step {context.step})")


def test_a_reading_that_a_probe_omits_is_skipped_with_its_reason_until_it_is_given():
    model = build_transformer(n_layers=1, n_heads=2, d_model=8, n_ctx=6, d_vocab=5, seed=0)
    batch = torch.zeros(2, 6, dtype=torch.long)
    recorder = sl.Recorder(model, probes=[Picky], batch=batch)
    names = [reading.name for reading in recorder.measure(0)]
    assert names == ["picky/always"]
    assert recorder.skipped == {"picky/late": "not before step 2", "picky/never": "this model has none (step 0)"}
    recorder.measure(1)
    assert recorder.skipped["picky/never"].endswith("(step 0)")  # the first reason stays

    resumed = sl.Recorder(model, probes=[Picky], batch=batch)
    resumed.load_state(recorder.state(), recorder.measurements)
    assert resumed.skipped == recorder.skipped and list(resumed.probes) == ["picky"]
    resumed.measure(2)
    assert set(resumed.skipped) == {"picky/never"} and not resumed.problems
    assert resumed.timeline.series("picky/late")[-1] == 2
