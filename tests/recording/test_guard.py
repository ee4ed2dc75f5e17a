"""Measuring leaves no trace: modes of every module, random states of every generator, and the user's own batch."""
# ruff: noqa: NPY002  what is tested is the global generator

from __future__ import annotations

import copy
import signal
import warnings
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformer_lens import HookedRootModule

import stagelens as sl
from kit.probe_models import tokens, transformer
from kit.tasks import Regression, Repeats, TwoMaps
from stagelens.models import build_transformer
from stagelens.recording import guard
from stagelens.recording.guard import ModelChanged, fingerprint, reached

# Modes.


def hugging_face(kind: str) -> nn.Module:
    import transformers as hf

    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "attention_dropout": 0.2}
    wide = sizes | {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 8}
    if kind == "gpt2":
        small = {"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.2, "attn_pdrop": 0.2}
        return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=11, **small))
    if kind == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**wide, num_attention_heads=4, num_key_value_heads=2))
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**wide, num_attention_heads=2, hidden_dropout=0.2))


def bridged(kind: str) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model = hugging_face(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)


def next_token(model: Any, tokens: Tensor) -> Tensor:
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def modes(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """The mode of every module, those of a bridge's own model included."""
    inner = [m.original_model for m in model.modules() if "original_model" in m.__dict__]
    return [(module, module.training) for one in (model, *inner) for module in one.modules()]


KINDS = ["gpt2", "llama", "neox"]
TOKENS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_every_module_of_a_bridge_gets_its_own_mode_back(kind: str) -> None:
    model = bridged(kind)
    outside = set(model.original_model.modules()) - set(model.modules())
    assert outside <= set(reached(model)) and outside
    recorder = sl.Recorder(model, ["attention_sparsity", "gradient"], TOKENS, loss=next_token)
    everything = [module for module, _ in modes(model)]
    for pattern in ("train", "eval", "one frozen", "mixed"):
        model.train(pattern != "eval")
        if pattern == "one frozen":
            model.blocks[0].eval()
        if pattern == "mixed":  # every third module, whether `modules()` lists it or not
            for index, module in enumerate(everything):
                module.training = index % 3 > 0
        before = modes(model)
        recorder.measure(0)
        assert modes(model) == before, pattern
    assert not recorder.problems


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_measured_training_of_a_bridge_is_the_unmeasured_one(kind: str) -> None:
    """With dropout, which a module left in evaluation mode would not do. Compared bit for bit."""
    ends = []
    for measured in (True, False):
        model = bridged(kind).train()
        recorder = sl.Recorder(model, batch=TOKENS, loss=next_token)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        for step in range(4):
            if measured:
                recorder.measure(step)
            optimizer.zero_grad()
            next_token(model, TOKENS).backward()
            optimizer.step()
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


class Around(HookedRootModule):
    """A model around another one, with a part that no module lists, in one of several places."""

    def __init__(self, inner: nn.Module, place: str) -> None:
        super().__init__()
        self.inner, self.place = inner, place
        self.part = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
        if place != "listed":
            part = self._modules.pop("part")
            self.__dict__["parts"] = {"attribute": part, "list": [part], "dict": {"a": (part, None)}}[place]
            self.__dict__["inside"] = part
        self.setup()

    def train(self, mode: bool = True) -> Around:
        super().train(mode)
        self.hidden.train(mode)
        return self

    @property
    def hidden(self) -> nn.Module:
        return self.part if self.place == "listed" else self.__dict__["inside"]

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("place", ["listed", "attribute", "list", "dict"])
@pytest.mark.parametrize("depth", [1, 3])
def test_modules_that_only_train_and_eval_reach_get_their_mode_back(place: str, depth: int) -> None:
    model: nn.Module = TwoMaps(0, dropout=0.5)
    layers = []
    for _ in range(depth):
        model = Around(model, place)
        layers.append(model)
    model.train()
    layers[0].hidden[1].eval()  # a frozen batch norm
    recorder = sl.Recorder(model, [], torch.randn(4, 3))
    before = [module.training for layer in layers for module in layer.hidden.modules()]
    recorder.measure(0)
    assert [module.training for layer in layers for module in layer.hidden.modules()] == before
    assert model.inner.training


class Merging(TwoMaps):
    """Adds its second weights into the first ones in evaluation mode, as a low-rank adapter does."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        with torch.no_grad():
            if self.merged is mode:
                self.first.mul_(2.0 if not mode else 0.5)
        self.merged = not mode
        return super().train(mode)


def test_what_else_a_train_of_its_own_does_is_undone() -> None:
    model = Merging(0).train()
    first = model.first.detach().clone()
    sl.Recorder(model, [], torch.randn(4, 3)).measure(0)
    assert model.training and not model.merged and torch.equal(model.first, first)


class Adapted(TwoMaps):
    """Adds a product of weights into another weight in evaluation mode; undoing that rounds."""

    merged, rebinds, within = False, False, False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.left, self.right = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2, 4))

    def train(self, mode: bool = True) -> Adapted:
        super().train(mode)
        if self.merged is mode:
            change = (-1 if mode else 1) * self.left.data @ self.right.data
            if self.rebinds:
                self.first.data = self.first.data + change
            else:
                self.first.data += change
        self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        change = 0 if self.merged else self.left @ self.right
        return x @ (self.first + change) @ self.second


class Wrapped(HookedRootModule):
    """A model without a `train` of its own around one that has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.setup()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Writing(sl.Probe):
    name, gives = "writing", ("value",)

    def readings(self, reduced: Any, context: Any) -> Iterator[sl.Reading]:
        context.model.second.data.add_(1.0)
        yield sl.Reading("value", 1.0)


@pytest.mark.parametrize("rebinds", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_merged_adapters_are_put_back_bit_for_bit(rebinds: bool, wrapped: bool) -> None:
    torch.manual_seed(0)
    model = Adapted(0).train()
    model.rebinds = rebinds
    values = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    outer = Wrapped(model) if wrapped else model
    recorder = sl.Recorder(outer, ["weight_norms"], torch.randn(4, 3), loss=lambda m, x: m(x).square().mean())
    for step in range(3):
        recorder.measure(step)
        assert model.training and not model.merged and not recorder.problems
        for parameter, (place, value) in zip(model.parameters(), values, strict=True):
            assert parameter.data_ptr() == place and torch.equal(parameter, value)


def test_a_probe_that_writes_to_a_model_with_adapters_is_named() -> None:
    recorder = sl.Recorder(Adapted(0).train(), [Writing], torch.randn(4, 3))
    with pytest.raises(ModelChanged, match="probe 'writing'"):
        recorder.measure(0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_bridges_are_not_copied(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_copies", lambda model: pytest.fail("copied"))
    sl.Recorder(bridged(kind), ["weight_norms"], TOKENS, loss=next_token).measure(0)


# numpy's generators.

GENERATORS = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]


@pytest.fixture(params=GENERATORS)
def generator(request: pytest.FixtureRequest) -> Iterator[Any]:
    before = np.random.get_bit_generator()
    state = np.random.get_state(legacy=False)
    np.random.set_bit_generator(request.param(5))
    yield np.random.get_bit_generator()
    np.random.set_bit_generator(before)
    np.random.set_state(state)


class Drawing(sl.Probe):
    """Draws from numpy's global generator, or puts another one in its place."""

    name, gives = "drawing", ("value",)
    swaps = False

    def readings(self, reduced: Any, context: Any) -> Iterator[sl.Reading]:
        if self.swaps:
            np.random.set_bit_generator(np.random.PCG64(7))
        yield sl.Reading("value", float(np.random.normal()))


@pytest.mark.parametrize("probes", [[], [Drawing], [type("Swapping", (Drawing,), {"swaps": True})]])
def test_any_generator_of_numpy_is_left_as_found(generator: Any, probes: list[Any]) -> None:
    expected = [*np.random.RandomState(copy.deepcopy(generator)).normal(size=3)]
    recorder = sl.Recorder(TwoMaps(0), probes, torch.randn(4, 3))
    found = []
    for step in range(3):
        recorder.measure(step)
        found.append(np.random.normal())
    assert found == expected and np.random.get_bit_generator() is generator
    assert bool(recorder.problems) == bool(probes)  # a probe that draws is named at the second measurement


# The batch.


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Both:
    x: Any
    y: Any


def kinds_of_batch(x: Tensor, y: Tensor) -> dict[str, tuple[Any, Any]]:
    """name -> (the batch, how its x and y are found in it)."""
    return {
        "tuple": ((x, y), lambda b: b),
        "list": ([x, y], lambda b: b),
        "dict": ({"x": x, "y": y}, lambda b: (b["x"], b["y"])),
        "nested": ({"a": [(x, "text"), 3], "b": Pair(x, y)}, lambda b: (b["a"][0][0], b["b"].y)),
        "mapping": (UserDict(x=x, y=y), lambda b: (b["x"], b["y"])),
        "dataclass": (Both(x, y), lambda b: (b.x, b.y)),
        "numpy": (Pair(x.numpy(), y.numpy()), lambda b: map(torch.from_numpy, b)),
        "view": ((torch.stack([x, x])[1], y.expand(2, *y.shape)[0]), lambda b: b),
    }


@pytest.mark.parametrize("kind", kinds_of_batch(torch.ones(1), torch.ones(1)))
def test_a_batch_that_is_changed_in_place_is_measured_as_it_was(kind: str) -> None:
    task = Regression(Regression.Config())
    model, (x, y) = task.build_model(), task.sample(8, torch.Generator().manual_seed(0))
    expected = task.loss(model, (x, y)).item()
    batch, found = kinds_of_batch(x, y)[kind]
    recorder = sl.Recorder(model, [], batch, loss=lambda model, batch: task.loss(model, (*found(batch),)))
    recorder.measure(0)
    for changed in found(batch):
        changed.add_(3.0)
    recorder.measure(1)
    assert recorder.timeline["loss"].values == pytest.approx([expected, expected], rel=1e-6)


@pytest.mark.parametrize("changed", ["before the first measurement", "after it"])
def test_references_groups_and_directions_stay_those_of_the_batch(changed: str) -> None:
    """Half of what a probe knows of a batch is computed once: it must be of the same batch as the other half."""
    model = build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=8, d_vocab=11, seed=0)
    tokens, axis = TOKENS.clone(), torch.eye(4)[0].clone()

    def uniform_over_seen(batch: Tensor) -> Tensor:  # [batch, 6, 11]: a reference that depends on the batch
        seen = nn.functional.one_hot(batch[:, :-1], 11).cumsum(1).double() + 0.1
        return (seen / seen.sum(-1, keepdim=True)).log()

    def recorder_of(tokens: Tensor, axis: Tensor) -> sl.Recorder:
        return sl.Recorder(
            model,
            ["head_specialization", "qk_alignment", "kl_to_references", "induction", "loss_by_position"],
            tokens,
            loss=next_token,
            groups={"first": sl.Group(positions=(0,)), "recent": sl.Group(offsets=(1,))},
            directions={"first": axis},
            references={"seen": uniform_over_seen},
        )

    alone, reused = recorder_of(tokens.clone(), axis.clone()), recorder_of(tokens, axis)
    for step in range(2):
        if step == 1 or changed.startswith("before"):
            tokens.copy_((tokens + 3) % 11)
            axis.copy_(torch.eye(4)[2 + step])
        alone.measure(step), reused.measure(step)
    assert not reused.problems and set(alone.timeline) == set(reused.timeline)
    for name in alone.timeline:
        assert np.array_equal(alone.timeline.series(name), reused.timeline.series(name), equal_nan=True), name


def test_a_batch_goes_to_the_models_device_without_its_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    batch = {"x": weight * torch.randn(4, 3), "y": weight, "n": 3}
    recorder = sl.Recorder(TwoMaps(0).to("meta"), [], batch)
    kept = recorder.context.batch
    assert kept["x"].device.type == kept["y"].device.type == "meta" and kept["n"] == 3
    assert kept["x"].is_leaf and kept["x"].requires_grad


def test_the_trainings_own_batch_is_not_touched_either() -> None:
    """A task that gives one stored tensor as its batch keeps it, whatever a loss does to the recorder's copy."""
    task = Repeats(Repeats.Config())
    stored = task.sample(4, torch.Generator().manual_seed(0))
    before = stored.clone()

    def blanking(model: Any, batch: Tensor) -> Tensor:
        batch[:, 0] = 0
        return task.loss(model, batch)

    sl.Recorder(task.build_model(), [], stored, loss=blanking).measure(0)
    assert torch.equal(stored, before)


@pytest.mark.parametrize("strict", [False, True])
def test_a_users_own_loop_gets_no_signal_handler(strict):
    seen = []

    @sl.probe(hooks="attn.hook_pattern", dims=("head",))
    def looks(pattern, context):
        seen.append(signal.getsignal(signal.SIGALRM))
        return pattern.mean((0, 2, 3))

    before = signal.getsignal(signal.SIGALRM)
    recorder = sl.Recorder(transformer(), [looks], tokens(), strict=strict)
    recorder.measure(0)
    assert not recorder.problems and seen and all((one is before) is not strict for one in seen)
    assert signal.getsignal(signal.SIGALRM) is before


class WritesAt(sl.Probe):
    name, gives = "writes", ("value",)

    def __init__(self, first=0):
        super().__init__()
        self.first = first

    def readings(self, reduced, context):
        if context.step >= self.first:
            next(context.model.parameters()).data.mul_(1.5)
        yield sl.Reading("value", 0.0)


@pytest.mark.parametrize(("strict", "step"), [(False, 0), (True, 0), (True, 3)])
def test_a_changed_parameter_is_noticed_at_the_first_measurement_or_with_strict_at_any(strict, step):
    recorder = sl.Recorder(transformer(), [WritesAt(step)], tokens(), strict=strict)
    for earlier in range(step):
        recorder.measure(earlier)
    with pytest.raises(ModelChanged, match="probe 'writes' changed the model's parameters"):
        recorder.measure(step)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_fingerprint_tells_any_change_of_one_number(dtype):
    model = torch.nn.Linear(5, 3).to(dtype)
    before = fingerprint(model)
    assert before == fingerprint(model)
    kept = model.weight.data[1, 2].clone()
    for value in (kept * (1 + 2 * torch.finfo(dtype).eps), -kept, torch.tensor(torch.nan)):
        model.weight.data[1, 2] = value
        assert fingerprint(model) != before
        model.weight.data[1, 2] = kept
    assert fingerprint(model) == before
