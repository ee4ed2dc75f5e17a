"""Updates the pinned data of `tests/project`. README.md explains when to do that.

python tests/project/pin.py golden [SERIES ...]
python tests/project/pin.py surface
python tests/project/pin.py detector
python tests/project/pin.py runs 0.2.0
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))


def pin_golden(*changed: str) -> None:
    """Adds new tasks and new series, and replaces the series named `changed`. Any other difference is an error."""
    import torch

    from kit.store import ENVIRONMENT
    from project import golden

    torch.set_num_threads(1)
    with TemporaryDirectory() as store:
        os.environ[ENVIRONMENT] = store
        pinned, found = golden.load(), golden.measure()
    if wrong := list(golden.unexpected(pinned, found, changed)):
        sys.exit("\n".join(["nothing is written; name the series that are meant to change:", *wrong]))
    golden.save(found)


def pin_surface() -> None:
    from project import schemas, surface

    surface.save(surface.measure())
    schemas.save()
    print("now run `python docs/reference_pages.py`: the page about JSON shows the schemas")  # noqa: T201


def pin_detector() -> None:
    """Writes what the detector finds. If that changed, `DETECTOR` has to be raised first."""
    from project import detector
    from stagelens.runs import DETECTOR

    found = detector.measure()
    if detector.FILE.exists():
        number, pinned = detector.load()
        if number == DETECTOR and (wrong := list(detector.differences(pinned, found))):
            sys.exit("\n".join(["nothing is written; raise DETECTOR in runs/manifest.py first:", *wrong]))
    detector.save(found)


def pin_runs(version: str) -> None:
    from project.write_runs import FOLDER, write_runs

    folder = FOLDER / version
    if folder.exists():
        sys.exit(f"{folder} exists: runs of an older version are never written again; give another name")
    write_runs(folder)


PARTS = {"golden": pin_golden, "surface": pin_surface, "detector": pin_detector, "runs": pin_runs}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(str(__doc__))
    PARTS[sys.argv[1]](*sys.argv[2:])
