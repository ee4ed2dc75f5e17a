"""`--compile`: the training step is compiled with torch.compile, and the probes measure as without it."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from kit.tasks import Decay, Repeats, run
from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens.experiments.training import Training
from stagelens.models import build_transformer

EAGER = "aot_eager"
compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler: g++ or clang++"
)


class Small(Repeats):
    """Two tiny layers with dropout, read at the last position. The compiled graph does not depend on the size."""

    id = "small/compiled"

    def build_model(self):
        return build_transformer(
            n_layers=2, n_heads=2, d_model=8, n_ctx=5, d_vocab=4, d_mlp=8, dropout=self.config.dropout, seed=self.seed
        )

    def loss(self, model, batch):
        return cross_entropy(self.answers(model, batch[:, :-1])[:, -1], batch[:, -1])

    def queries(self):
        return slice(-1, None)


@pytest.fixture
def without_code(monkeypatch):
    """Uses a backend that traces with dynamo and autograd but runs eager kernels. `make stress` generates code too."""
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic, options: whole(loss, dynamic=dynamic, backend=EAGER))


@compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # the compiler's own
def test_the_compiled_step_trains_as_the_plain_one_and_probes_see_the_model(tmp_path, without_code):
    assert_compiled_trains_as_plain(tmp_path)


def assert_compiled_trains_as_plain(tmp_path):
    plain = run(Small, tmp_path, name="plain")
    compiled = run(Small, tmp_path, name="compiled", compile=True)
    assert compiled.status == "finished", compiled.manifest.error
    assert plain.manifest.compile_seconds is None
    assert 0 < compiled.manifest.compile_seconds <= compiled.manifest.seconds
    assert list(compiled.timeline) == list(plain.timeline)
    for name in plain.timeline:
        torch.testing.assert_close(
            torch.from_numpy(compiled.timeline.series(name).copy()),
            torch.from_numpy(plain.timeline.series(name).copy()),
            rtol=1e-4,
            atol=1e-5,
            equal_nan=True,  # there is no training loss before the first step
        )

    training = Training(Small(Small.Config()))  # compiled already in this process
    training.compile()
    seen = []
    training.model.add_hook("blocks.0.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.shape))
    training.advance(0)
    assert seen == [(4, 2, 5, 5)]


def test_without_a_compiler_one_line_reports_it(tmp_path, monkeypatch):
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(EnvironmentFault, match=r"needs a C\+\+ compiler, and none was found; install g\+\+ or clang"):
        run(Small, tmp_path, compile=True)
    assert not list(tmp_path.iterdir())


def test_a_flow_has_no_step_to_compile(tmp_path):
    with pytest.raises(UsageError, match="'small/decay' is a flow, which has no training step; run it without"):
        run(Decay, tmp_path, compile=True)
