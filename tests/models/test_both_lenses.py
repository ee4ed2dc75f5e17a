"""Features that work with TransformerLens 3 and 4. `test_transformer_lens_4.py` runs this file with version 4 too."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stagelens as sl
from kit.own_models import LAYERS, hugging_face, next_token_loss, plain_model, tokens_like_text
from stagelens.host import make_host

ROOT = Path(__file__).parents[2]
TOKENS = tokens_like_text()
IS_4 = int(version("transformer-lens").split(".")[0]) >= 4
TRANSFORMERS = {"emergence/regression", "emergence/recall", "markov/full", "recall/transformer", "rich/text"}


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_only_the_room_of_models_imports_transformer_lens() -> None:
    def imported(path: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    files = [path for room in ("toolkit", "probes", "plugins") for path in (ROOT / room).rglob("*.py")]
    using = {p.relative_to(ROOT) for p in files if any(m.startswith("transformer_lens") for m in imported(p))}
    assert {path.parent.as_posix() for path in using} == {"toolkit/stagelens/models"}


@pytest.mark.parametrize("kind", ["plain", "gpt2", "bridge"])
def test_every_default_probe_of_any_model(kind: str) -> None:
    batch: Any = TOKENS
    if kind == "plain":
        model: Any = plain_model("scaled")
    else:
        model = hugging_face("gpt2")
    if kind == "bridge":
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        model = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    recorder = sl.Recorder(model, batch=batch, loss=next_token_loss if kind == "plain" else None)
    recorder.measure(0)
    assert recorder.problems == {}
    series = {"attention_sparsity/sparsity", "head_specialization/mass", "induction/prefix_matching"}
    assert series | {"qk_alignment/explained", "weight_norms/norm"} <= set(recorder.timeline)


def test_ablation_and_patching_of_a_watched_model() -> None:
    watched = sl.watch(plain_model("scaled"), TOKENS)
    logits, cache = watched.run_with_cache(TOKENS)
    pattern = cache[f"blocks.{LAYERS - 1}.attn.hook_pattern"]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))
    same = [(f"blocks.0.attn.{name}", lambda x, hook: x) for name in ("hook_pattern", "hook_z")]
    torch.testing.assert_close(watched.run_with_hooks(TOKENS, fwd_hooks=same), logits)
    zero = watched.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: 0 * z)])
    assert not torch.allclose(zero, logits)


def test_tasks_build_their_models_or_say_that_they_need_version_3() -> None:
    refused = {}
    for name, reference in make_host().tasks:
        kind = reference.load()
        if name == "rich/text" or issubclass(kind, sl.Flow):
            continue  # the text has to be downloaded; a flow has no model
        try:
            kind(kind.Config(**kind.presets["quick"]), 0).build_model()
        except sl.StagelensError as error:
            refused[name] = str(error)
    assert set(refused) == (TRANSFORMERS - {"rich/text"} if IS_4 else set())
    assert all("TransformerLens 4 removed" in line and "\n" not in line for line in refused.values())


def test_a_toy_task_a_flow_and_their_reports() -> None:
    toy = sl.run("emergence", settings={"steps": 20}, name="toy")
    assert (toy.status, toy.problems) == ("finished", {})
    assert (toy.folder / "report.html").exists()
    flow = sl.run("recall/flow", name="flow", report=False)
    assert flow.status == "finished"
    model = toy.model_at(20)
    _, cache = model.run_with_cache(toy.experiment.sample(4, torch.Generator().manual_seed(0))[0])
    assert any(name.endswith("hook_pattern") for name in cache)
    assert np.isfinite(toy.timeline.series("loss")).all()
