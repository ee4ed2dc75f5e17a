"""Specimens: files of every kind that stagelens writes or reads, their readers, and a judge of the readers' answers.

A reader returns what it read, as text or bytes. For a damaged file it must return the same, or raise an error of one
line. Other numbers, a traceback or a hang fail the test.
"""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stagelens as sl
from kit.fuzz.calls import TooLong, call, fault_of, stopped_after
from kit.tasks import Decay, Regression, Repeats, host_with, run, weights
from kit.written_runs import staircase
from stagelens.base.errors import StagelensError
from stagelens.base.plain import json_text

LIMIT = 20.0  # seconds
TASKS = """
import stagelens as sl
from kit.tasks import Decay, Regression, Repeats

@sl.hookimpl
def stagelens_register_tasks():
    return [Decay, Regression, Repeats]
"""
REPORTED = "reported"  # in place of what was read, if an error of one line reports the damage
SAME = "same"

Reader = Callable[[], str | bytes]


class Fault(Exception):
    """A reader returned wrong content, raised another error, or did not end."""


@dataclass(frozen=True)
class Snapshot:
    """A plugin that copies the run's folder when `step` is recorded, as a `kill -9` at that moment would leave it."""

    step: float
    to: Path

    @sl.hookimpl
    def stagelens_reading_recorded(self, run: Any, step: float) -> None:
        if step >= self.step and not self.to.exists():
            shutil.copytree(run.folder, self.to)


def make_world(folder: Path) -> None:
    """Writes undamaged specimens: finished and killed runs, flows, a sweep, a curve, a grid, saved checkpoints."""
    from safetensors.torch import save_file

    from stagelens.models import build_transformer

    runs = folder / "runs"
    (folder / "damaged_tasks.py").write_text(TASKS, encoding="utf-8")
    run(Regression, runs, name="ended", report=True, settings={"steps": 60})
    run(Regression, runs, name="other", seed=1, settings={"steps": 60})
    run(Repeats, runs, name="attending", report=True)
    run(Repeats, folder / "aside", name="attending", seed=1)
    run(Decay, runs, name="flow", report=True)
    killing = host_with(Snapshot(20, runs / "killed"))
    run(Regression, folder / "aside", killing, name="killed", settings={"steps": 60})
    sl.sweep(Decay, {"time": [1.0, 2.0, 3.0]}, runs=runs, name="swept", executor=_Here())
    steps = np.arange(0, 200, 4)
    curve = staircase(steps, [60, 130], [1, 0.5, 0.1])
    lines = [f"{step},{value}" for step, value in zip(steps, curve, strict=True)]
    (folder / "curve.csv").write_text("\n".join(["step,loss", *lines, ""]), encoding="utf-8")
    grid = "time: [1.0, 2.0]\npoints: 20:40:10\nrtol,atol: [[1.0e-6, 1.0e-7]]\n"
    (folder / "grid.yaml").write_text(grid, encoding="utf-8")
    sizes = {"n_layers": 1, "n_heads": 2, "d_model": 4, "n_ctx": 5, "d_vocab": 6}
    (folder / "series").mkdir()
    (folder / "series" / "config.json").write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    for step in (1, 2):
        weights_then = dict(build_transformer(**sizes, seed=step).state_dict())
        save_file(weights_then, folder / "series" / f"{step}.safetensors", metadata={"format": "pt"})


class _Here:
    """An executor that does its jobs in this process."""

    def run(self, jobs: Any) -> Iterator[Any]:
        from stagelens.sweeps.executors.work import perform

        for job in jobs:
            yield job, perform(job)


def readers_of_run(
    name: str, task: type[Any], steps: Sequence[int | None] = (), heavy: bool = True
) -> dict[str, Reader]:
    """Returns the readers of a run, and of the model at `steps`; `resume` comes last because it writes."""
    runs = Path("runs")

    def opened() -> sl.Run:
        return sl.load(name, runs, task=task)

    readers: dict[str, Reader] = {
        "summary": lambda: json_text(opened().summary()),
        "dataset": lambda: _numbers(opened()),
        "stages": lambda: json_text(opened().stages().to_dicts()),
        "repr": lambda: repr([opened(), opened().command, opened().phases, opened().checkpoints]),
        "show": _cli("show", name),
        "show --json": _cli("show", name, "--json"),
        "stages --json": _cli("stages", name, "--json"),
        "compare --json": _cli("compare", name, "other", "--json"),
        "export csv": _cli("export", name, "--format", "csv", "-o", "out.csv", file="out.csv"),
    }
    readers |= {f"model at {step}": lambda step=step: _model(opened(), step) for step in steps}
    if heavy:
        readers |= {
            "runs": lambda: _listed(name),
            "compare html": _cli("compare", name, "other", "-o", "out.html", file="out.html"),
            "export netcdf": _cli("export", name, "--format", "netcdf", "-o", "out.nc", file="out.nc"),
            "export parquet": _cli("export", name, "--format", "parquet", "-o", "out.pq", file="out.pq"),
            "report": _cli("report", name, "-o", "out.html", file="out.html"),
            "report of two": _cli("report", name, "other", "-o", "out.html", file="out.html"),
        }
    return readers | {"resume": lambda: _resumed(name, task)}


def readers_of_file(kind: str) -> dict[str, Reader]:
    """Returns the readers of files outside of runs."""
    if kind == "csv":
        return {"stages": _cli("stages", "curve.csv", "--json")}
    if kind == "yaml":
        sweep = _cli("sweep", "small/decay", "--grid", "grid.yaml", "--dry-run", "--json")
        return {"sweep": lambda: found if (found := sweep()) == REPORTED else json_text(json.loads(found)["table"])}
    if kind == "sweep":
        return {"compare": _cli("compare", "swept", "--json"), "api": lambda: json_text(sl.compare("swept").to_dict())}
    return {"probe": _probed}


def judge(reader: Reader, whole: str | bytes | None) -> str:
    """Returns how `reader` ends on a damaged file: `same`, `reported` (an error), or what is wrong.

    `whole` is the right answer; None accepts any.
    """
    try:
        with stopped_after(LIMIT):
            found = reader()
    except Fault as fault:
        return str(fault)
    except StagelensError as error:
        return REPORTED if len(str(error)) > 10 and "\n" not in str(error) else f"no line: {str(error)[:300]!r}"
    except TooLong:
        return f"more than {LIMIT:g} s"
    except Exception as defect:
        where = traceback.extract_tb(defect.__traceback__)[-1]
        return f"{type(defect).__name__}: {defect}"[:300] + f" ({Path(where.filename).name}:{where.lineno})"
    if found == REPORTED:
        return REPORTED
    return SAME if whole is None or found == whole else f"other content: {_difference(found, whole)}"


def read(reader: Reader) -> str | bytes:
    """Returns what `reader` returns for an undamaged file."""
    found = reader()
    assert found != REPORTED
    return found


def _cli(*words: str, file: str = "") -> Reader:
    """Returns a reader that runs a command and returns its output or the file that it wrote."""

    def read() -> str | bytes:
        if file:
            Path(file).unlink(missing_ok=True)
        ended = call(["--plugin-dir", "damaged_tasks.py", *words, "--runs", "runs"], LIMIT)
        if fault := fault_of(words, ended):
            raise Fault(fault)
        if ended.code:
            return REPORTED
        return Path(file).read_bytes() if file else ended.out

    return read


def _listed(name: str) -> str | bytes:
    """Returns the row of a run in the catalogue, which leaves out runs that cannot be read."""
    rows = [row for row in json.loads(_cli("runs", "--json")()) if row["name"] == name]
    return json_text(rows) if rows else REPORTED


def _resumed(name: str, task: type[Any]) -> bytes:
    """Returns the weights and the timeline at the end of a resumed run."""
    again = run(task, Path("runs"), name=name, resume=True, settings=SETTINGS.get(task, {}))
    parts = [_numbers(again)]
    if again.checkpoints:
        parts += [tensor.numpy().tobytes() for _, tensor in sorted(weights(again).items())]
    return b"".join(parts)


SETTINGS: Mapping[Any, Mapping[str, Any]] = {Regression: {"steps": 60}}


def _probed() -> str:
    shutil.rmtree("probed", ignore_errors=True)
    words = ["probe", "series", "--probes", "weight_norms", "--runs", "probed", "--name", "p", "--json"]
    ended = call(words, LIMIT)
    if fault := fault_of(words, ended):
        raise Fault(fault)
    if ended.code:
        return REPORTED
    answer = json.loads(ended.out)
    return json_text({key: answer[key] for key in ("final", "status", "step")})


def _numbers(run: sl.Run) -> bytes:
    dataset = run.timeline.dataset
    parts = [repr(list(dataset)).encode(), run.timeline.steps.tobytes()]
    return b"".join([*parts, *(dataset[name].values.tobytes() for name in dataset)])


def _model(run: sl.Run, step: int | None) -> bytes:
    return b"".join(tensor.detach().numpy().tobytes() for _, tensor in sorted(run.model_at(step).state_dict().items()))


def _difference(found: str | bytes, whole: str | bytes) -> str:
    at = next((at for at, (one, other) in enumerate(zip(found, whole, strict=False)) if one != other), 0)
    return f"{found[at : at + 80]!r} for {whole[at : at + 80]!r}"
