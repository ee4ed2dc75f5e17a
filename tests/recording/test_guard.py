"""Measuring does not change the modes of modules, the random states of generators, and the user's batch."""
# ruff: noqa: NPY002  what is tested is the global generator

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule

import stagelens as sl
from kit.probe_models import loss_without_last_token
from kit.tasks import TwoMaps
from stagelens.recording import guard
from stagelens.recording.guard import ModelChanged, reached

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
    recorder = sl.Recorder(model, ["attention_sparsity", "gradient"], TOKENS, loss=loss_without_last_token)
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
    """The model has dropout, which would be off if a module stayed in evaluation mode. Compared bit for bit."""
    ends = []
    for measured in (True, False):
        model = bridged(kind).train()
        recorder = sl.Recorder(model, batch=TOKENS, loss=loss_without_last_token)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        for step in range(4):
            if measured:
                recorder.measure(step)
            optimizer.zero_grad()
            loss_without_last_token(model, TOKENS).backward()
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
    sl.Recorder(bridged(kind), ["weight_norms"], TOKENS, loss=loss_without_last_token).measure(0)


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
