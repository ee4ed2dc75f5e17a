"""How a model is called on a batch, and what of its output are the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from stagelens.base import UsageError

Forward = Callable[[Any, Any], Any]  # calls a model on a batch and returns logits: (model, batch) -> logits


def call_model(model: nn.Module, batch: Any) -> Any:
    """Returns the logits of `model` on a batch: a tensor, keyword arguments in a mapping, or arguments in a tuple."""
    if isinstance(batch, Mapping):
        return logits_of(model(**batch))
    if isinstance(batch, tuple | list):
        return logits_of(model(*batch))
    return logits_of(model(batch))


def logits_of(output: Any, strict: bool = True) -> Any:
    """Returns the logits in a model's output: itself, its `logits`, or the first tensor with dimensions in a tuple.

    None for a model without a head, which gives hidden states only, and, unless `strict`, for anything else.
    """
    logits = output if isinstance(output, Tensor) else _named(output, "logits")
    if isinstance(output, tuple | list) and logits is None:
        logits = next((one for one in output if isinstance(one, Tensor) and one.ndim), None)
    if isinstance(logits, Tensor) and (logits.ndim or not strict):
        return logits
    if not strict or isinstance(getattr(output, "last_hidden_state", None), Tensor):
        return None
    raise UsageError(
        f"the model returned {described(output)} without logits; give forward=function(model, batch) that "
        "returns logits [batch, position, token]"
    )


def loss_of(output: Any) -> Tensor | None:
    """Returns the loss in a model's output: its `loss`, or the first number in a tuple; None if there is none."""
    loss = _named(output, "loss")
    if isinstance(output, tuple | list) and loss is None:
        loss = next((one for one in output if isinstance(one, Tensor) and not one.ndim), None)
    return loss if isinstance(loss, Tensor) else None


def _named(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def described(output: Any) -> str:
    """Returns what `output` is, for an error: its shape if it is a tensor, otherwise its type."""
    return f"a tensor of shape {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def tokens_of(batch: Any) -> Tensor | None:
    """Returns the tokens [batch, position] of a batch: the first integer tensor in it; None if there are none."""
    if isinstance(batch, Mapping):
        named = [batch[name] for name in ("input_ids", "tokens") if name in batch]
        return next((found for one in [*named, *batch.values()] if (found := tokens_of(one)) is not None), None)
    if isinstance(batch, tuple | list):
        return next((found for one in batch if (found := tokens_of(one)) is not None), None)
    if isinstance(batch, Tensor) and batch.ndim == 2 and not (batch.is_floating_point() or batch.is_complex()):
        return batch
    return None


def name_of_tokens(batch: Any) -> str | None:
    """Returns the name of the tokens in a batch that is a mapping; None for other batches."""
    tokens = tokens_of(batch)
    named = batch.items() if isinstance(batch, Mapping) else ()
    return next((name for name, value in named if value is tokens), None)


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside `torch.compile`, DataParallel and DistributedDataParallel."""
    while True:
        wrapped = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = getattr(model, "module" if wrapped else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_sharded(model: nn.Module) -> bool:
    """Returns True if the parameters are split over processes: by FSDP, tensor parallelism or DeepSpeed's ZeRO-3."""
    kinds = {type(parameter).__name__ for parameter in model.parameters()} | {
        type(one).__name__ for one in model.modules()
    }
    split = any(hasattr(parameter, "ds_id") for parameter in model.parameters())  # of DeepSpeed
    return split or not kinds.isdisjoint(("DTensor", "FlatParameter", "FullyShardedDataParallel"))
