"""What probes carry from one measurement to the next, stored in the run directory of a user's own loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, make_folder, writing
from stagelens.recording import Probe

FOLDER = "probes"  # in the run directory


class ProbeStates:
    """The files with the states of probes, one for each probe that has a state.

    A state may be as large as the model: `weight_norms` carries the parameters of the first measurement. So a file is
    written only if the state changed since it was written.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._written: dict[str, Any] = {}

    def save(self, probes: Mapping[str, Probe]) -> None:
        """Writes the states of `probes`. Call it before the measurement is written: then no reading lacks its state."""
        for name, probe in probes.items():
            tensors = {key: (value, value._version) for key, value in probe.state.items()}
            if not tensors or _same(tensors, self._written.get(name, {})):
                continue
            make_folder(self._folder, "give another directory with runs=")
            with writing(self._file(name)) as aside:
                torch.save(probe.state, aside)
            self._written[name] = tensors

    def load(self, probes: Mapping[str, Probe]) -> dict[str, dict[str, Tensor]]:
        """Returns the state of each probe: the stored one, or its own if none is stored."""
        return {name: self._load(name) or probe.state for name, probe in probes.items()}

    def _load(self, name: str) -> dict[str, Tensor]:
        file = self._file(name)
        if not file.exists():
            return {}
        try:
            state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        except Exception:
            raise EnvironmentFault(
                f"{file} cannot be read; restore it, or delete it: probe {name!r} then starts anew"
            ) from None
        return state

    def _file(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.pt"


def _same(one: Mapping[str, tuple[Tensor, int]], other: Mapping[str, tuple[Tensor, int]]) -> bool:
    """Returns True if two states have the same tensor objects, none of which was changed in place."""
    return one.keys() == other.keys() and all(
        tensor is other[key][0] and version == other[key][1] for key, (tensor, version) in one.items()
    )
