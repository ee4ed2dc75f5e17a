"""A third-party plugin of twenty lines has all the features of the built-in ones."""

from __future__ import annotations

PLUGIN = """
import torch
import stagelens as sl
from stagelens.models import build_transformer

class Copy(sl.Task):
    id, title, presets = "foreign/copy", "repeat", {"quick": {"steps": 6, "batch_size": 4, "eval_size": 4}}

    def build_model(self):
        return build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=8, d_vocab=5, d_mlp=8, seed=self.seed)

    def sample(self, n, generator):
        return torch.randint(5, (n, 4), generator=generator).repeat(1, 2)

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

@sl.probe(hooks="attn.hook_pattern", dims=("head",))
def first_key(pattern, context):
    return pattern[..., 0].mean((0, 2))

@sl.hookimpl
def stagelens_register_tasks(): return [Copy]

@sl.hookimpl
def stagelens_register_probes(): return [first_key]
"""


def test_it_runs_with_every_built_in_probe_and_its_own(cli, tmp_path):
    folder = tmp_path / "somewhere else"
    folder.mkdir()
    (folder / "foreign.py").write_text(PLUGIN)

    def call(*words):
        answer = cli("--plugin-dir", folder, *words, "--json")
        assert answer.code == 0, answer.err
        return answer.json

    probes = {row["name"]: row["readings"] for row in call("probes") if row["plugin"] in ("probes", "foreign")}
    found = call("run", "foreign", "--probes", ",".join(probes))
    assert found["task"] == "foreign/copy" and found["status"] == "finished" and not found["problems"]
    # these probes need methods that this task does not define, and these readings long contexts, directions or a norm
    names = {"kl_to_references", "conserved", "qk_alignment/reference", "qk_alignment/score_reference"}
    names |= {"induction/icl_score_fixed", "induction/prefix_matching_by_gap"}
    assert {name.removesuffix("_error").removesuffix("_chance") for name in found["skipped"]} <= names
    given = {name.partition("/")[0] for name in found["final"] if "/" in name}
    assert given == probes.keys() - found["skipped"].keys()
    values = found["final"]["first_key/value"]
    assert len(values) == 2 and all(len(heads) == 2 and all(0 < v <= 1 for v in heads) for heads in values)
