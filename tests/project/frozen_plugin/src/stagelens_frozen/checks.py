# frozen: do not edit. Written against the import paths of stagelens 0.1.0, which later versions must keep.
"""The plugin's own tests, and what an analyst does with its runs: `python -m stagelens_frozen.checks FOLDER`."""

from __future__ import annotations

import sys

import numpy as np
import torch

import stagelens as sl
from stagelens.host import make_host
from stagelens.models import build_transformer
from stagelens.report import write_report
from stagelens.stages import detect_group
from stagelens.testing import check_claim, check_probe, check_task, check_task_device
from stagelens.testing.fixtures import host, lab
from stagelens.verifying import last_results
from stagelens_frozen.claims import Leaves
from stagelens_frozen.flow import Pitchfork
from stagelens_frozen.probes import Growth, Source, first_key
from stagelens_frozen.tasks import Copy, Regression


class Talkative:
    """A plugin can also be an object."""

    heard = 0

    @sl.hookimpl
    def stagelens_reading_recorded(self, step: float) -> None:
        self.heard += 1


def main(folder: str) -> None:
    for task in (Copy, Regression, Pitchfork):
        check_task(task)
    copy = Copy(Copy.Config())
    check_task_device(copy)
    for probe in (first_key, Growth):
        assert check_probe(probe)
    assert check_probe(Source, task=copy)
    assert check_claim(Leaves).verdict == "holds"
    assert callable(host) and callable(lab) and last_results("frozen") is not None

    talkative, plugins = Talkative(), make_host()
    plugins.manager.register(talkative)
    run = sl.run("frozen/regression", runs=folder, device="cpu", host=plugins, report=False)
    assert talkative.heard == len(run.timeline.steps) > 1
    assert write_report(run).exists()
    assert sl.load(run.folder).model_at(3)(torch.ones(2, 3)).shape == (2, 1)

    model = build_transformer(n_layers=2, n_heads=2, d_model=8, n_ctx=6, d_vocab=5, seed=0)
    recorder = sl.Recorder(model, probes=[first_key, "attention_sparsity"], batch=torch.randint(5, (4, 6)))
    recorder.measure(0, mine=1.0)
    assert recorder.timeline["first_key/value"].dims == ("step", "layer", "head")
    assert isinstance(recorder.timeline, sl.Timeline)

    steps = np.arange(100)
    curves = [np.where(steps < moved, 1.0, 0.2) + 1e-3 * np.sin(steps) for moved in (40, 50)]
    assert [stage.kind for stage in sl.detect_stages(steps, curves[0])].count("transition") == 1
    assert detect_group(steps, curves).transitions
    assert abs(sl.fit_law({"x": [1.0, 2.0, 4.0]}, [3.0, 6.0, 12.0]).exponents["x"].value - 1) < 1e-6


if __name__ == "__main__":
    main(sys.argv[1])
