"""Saves a HookedTransformer so that `stagelens probe` can measure it later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

CONFIG = "config.json"
LEFT_OUT = ("device", "tokenizer_name")  # a checkpoint can be loaded on any device, and needs no tokenizer


def config_json(model: Any) -> dict[str, Any]:
    """Returns `model.cfg` of a HookedTransformer as values that JSON has, which `from_config` takes.

    `model.cfg.to_dict()` is not JSON: it holds dtypes and devices.
    """
    values = model.cfg.to_dict() if hasattr(model.cfg, "to_dict") else dict(vars(model.cfg))
    found = {key: str(value) if isinstance(value, torch.dtype) else value for key, value in values.items()}
    return {key: value for key, value in found.items() if key not in LEFT_OUT and _is_json(value)}


def save_checkpoint(model: Any, folder: str | Path, step: int) -> Path:
    """Writes the weights of a HookedTransformer as `step_STEP.safetensors`, and `config.json` next to it.

        for step in range(1000):
            ...  # your training step
            if step % 100 == 0:
                save_checkpoint(model, "my_training", step)

    `stagelens probe my_training` makes a timeline of what it wrote. Returns the path of the weights.
    """
    from safetensors.torch import save_file

    path = Path(folder) / f"step_{step}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_json(model), indent=1, default=str)
    (path.parent / CONFIG).write_text(text + "\n", encoding="utf-8")
    weights = {name: values.detach().contiguous().clone() for name, values in model.state_dict().items()}
    save_file(weights, path)
    return path


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
