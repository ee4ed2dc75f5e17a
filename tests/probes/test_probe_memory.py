"""No probe stores more than it reports: peak memory does not grow with the number of layers."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import stagelens as sl
from kit.probe_models import next_token_loss, tokens, transformer
from stagelens.models import build_transformer


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made inside that are still alive; `peak` is the most there ever were."""

    def __init__(self, known):
        super().__init__()
        self.live = {}
        self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


def peak_bytes(n_layers, probes=None):
    model = transformer(n_layers=n_layers, n_heads=4, d_model=32, n_ctx=32, d_mlp=64)
    batch = tokens(16, 32)
    recorder = sl.Recorder(model, probes=probes, batch=batch, loss=next_token_loss)
    recorder.measure(0)
    with LiveBytes([*model.parameters(), *model.buffers(), batch]) as memory:
        recorder.measure(1)
    assert not recorder.problems
    return memory.peak


def test_the_counter_counts_what_is_stored():
    @sl.probe(hooks="attn.hook_pattern", dims=("batch", "head", "query", "key"))
    def hoarder(pattern, context):
        return pattern

    assert peak_bytes(12, [hoarder]) > 3 * peak_bytes(2, [hoarder])


def test_peak_memory_does_not_grow_with_the_number_of_layers():
    shallow, deep = peak_bytes(2), peak_bytes(12)
    assert shallow > 16 * 4 * 32 * 32 * 4  # a pattern at least was there to see
    assert deep < 1.2 * shallow


@pytest.mark.parametrize(("n_ctx", "n_batch", "n_heads"), [(512, 4, 4), (1024, 1, 4)])
def test_long_patterns_take_less_memory_than_128_queries_of_one_layer(n_ctx, n_batch, n_heads):
    """They are read in blocks of queries. What is more than the memory of a plain pass is the probes'."""
    model = build_transformer(n_layers=2, n_heads=n_heads, d_model=32, n_ctx=n_ctx, d_vocab=64, seed=0)
    batch = tokens(n_batch, n_ctx, 64)
    recorder = sl.Recorder(model, batch=batch, loss=next_token_loss)
    recorder.measure(0)
    peaks = []
    for look in (lambda: next_token_loss(model, batch), lambda: recorder.measure(1)):
        with torch.no_grad(), LiveBytes([*model.parameters(), *model.buffers(), batch]) as memory:
            look()
        peaks.append(memory.peak)
    assert not recorder.problems and "attention_sparsity" in recorder.probes
    assert peaks[1] - peaks[0] < n_batch * n_heads * 128 * n_ctx * 4
