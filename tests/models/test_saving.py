"""Checkpoints of a HookedTransformer that `stagelens probe` can read."""

from __future__ import annotations

import json

import numpy as np
import torch

import stagelens as sl
from stagelens.models import build_transformer, config_json, save_checkpoint


def test_a_saved_checkpoint_is_measured_as_the_model_itself(tmp_path):
    model = build_transformer(n_layers=1, n_heads=2, d_model=8, n_ctx=8, d_vocab=5, seed=3)
    json.dumps(config_json(model), allow_nan=False)  # `model.cfg.to_dict()` holds dtypes
    tokens = torch.randint(5, (4, 8), generator=torch.Generator().manual_seed(0))
    for step in (1, 2):
        save_checkpoint(model, tmp_path / "saved", step)
    probes = ["attention_sparsity"]
    run = sl.probe_checkpoints([tmp_path / "saved"], probes=probes, batch=tokens, runs=tmp_path, name="probed")
    recorder = sl.Recorder(model, probes, batch=tokens)
    recorder.measure(0)
    name = "attention_sparsity/entropy"
    assert run.timeline.steps.tolist() == [1, 2]
    assert np.allclose(run.timeline[name].values[0], recorder.timeline[name].values[0], atol=1e-6)
