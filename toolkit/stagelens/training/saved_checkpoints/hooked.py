"""Checkpoints of a HookedTransformer: one model, which each checkpoint's weights are loaded into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, UsageError, parse_json, read_text
from stagelens.training.saved_checkpoints.weights import load_weights, misfit

CONFIG = "config.json"
COUNTS = ("n_layers", "num_experts")  # of a config; each one has tensors of its own


class Hooked:
    """Loads checkpoints of the model that the config next to the `first` one describes."""

    def __init__(self, first: Path) -> None:
        self._first = first
        self._model: Any = None
        self.warnings: list[str] = []

    def load(self, path: Path) -> Any:
        """Returns the model with the weights in `path`. It is the same object each time."""
        if self._model is None:
            self._model = build(config_beside(self._first), self._first)
        fill(self._model, path)
        return self._model

    def release(self, model: Any) -> None:
        """Does nothing: the next checkpoint is loaded into the same model."""

    def limits(self, model: Any) -> tuple[int | None, int | None]:
        """Returns the number of tokens in the vocabulary (None: the inputs are continuous), and of positions."""
        return model.cfg.d_vocab or None, int(model.cfg.n_ctx)

    def batch(self, tokens: Tensor, random: bool) -> tuple[Any, Any]:
        """Returns the batch that the model is called on, and its loss; None on random tokens."""
        return tokens, None if random else next_token_loss

    def tokenizer_folders(self) -> list[Path]:
        """Returns the directories that may contain a tokenizer."""
        return [self._first.parent, self._first.parent.parent]


def build(config: Path, checkpoint: Path) -> Any:
    """Returns the model that `config` describes: TransformerLens' own config, or arguments of `build_transformer`.

    The model is first built without memory and compared with the weights: a valid config may describe a model that
    would take hours to build.
    """
    from stagelens.models import from_config  # needs HookedTransformer, which checkpoints of other models do not

    try:
        values = parse_json(read_text(config))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{config} cannot be read ({' '.join(str(error).split())}); restore it") from None
    if not isinstance(values, dict):
        raise UsageError(f"{config} is not the config of a HookedTransformer; {checkpoint} needs one next to it")
    weights = load_weights(checkpoint)
    for key in COUNTS:
        if isinstance(values.get(key), int) and values[key] > len(weights):
            much = f"{key} = {str(values[key])[:20]}"
            raise UsageError(f"{config} says {much}, but {checkpoint} has only {len(weights)} tensors; restore it")
    try:
        sketch = from_config(values, device="meta")
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:150]
        raise UsageError(
            f"{config} is not the config of a HookedTransformer ({reason}); stagelens.models.save_checkpoint writes one"
        ) from None
    if what := misfit(weights, sketch):
        raise UsageError(f"{config} does not fit {checkpoint}: there {what}; save the config of that model")
    return from_config(values)


def fill(model: Any, path: Path) -> None:
    """Loads the weights in `path` into `model`."""
    weights = load_weights(path)
    if what := misfit(weights, model):
        raise UsageError(f"{path} is of another architecture than its series: {what}; probe it on its own")
    ours = model.state_dict()
    model.load_state_dict({name: value for name, value in weights.items() if name in ours}, strict=False)


def config_beside(path: Path) -> Path:
    """Returns the config in the checkpoint's directory or in the one above."""
    for folder in (path.parent, path.parent.parent):
        if (folder / CONFIG).is_file():
            return folder / CONFIG
    raise UsageError(
        f"{path} has no {CONFIG} next to it; write both with stagelens.models.save_checkpoint(model, folder, step)"
    )


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the next tokens, in nats."""
    logits = model(tokens)  # [batch, position, d_vocab]
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
