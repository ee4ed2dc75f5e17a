"""Check of a task: it creates tensors only on the device on which it runs."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stagelens.base import derive, generator, untouched_rng
from stagelens.experiments import Task, move

__tracebackhide__ = True  # pytest shows the line of the plugin that failed, not these

META = "meta"  # the device of tensors with a shape but no numbers; here it takes the place of an accelerator
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def check_task_device(task: Task, n: int = 2) -> None:
    """Fails if `task` creates or uses a tensor on another device than the one on which it runs.

        def test_it_runs_on_any_device():
            check_task_device(MyTask(MyTask.Config()))

    Model and `n` sequences are put on the `meta` device, so no accelerator is needed. Loss and gradient may make
    tensors there only, since they run at every step. Metrics, references, directions and conserved quantities may
    prepare tensors on the CPU. They must not mix the two devices, and must return tensors on the model's device.
    """
    with untouched_rng():
        torch.manual_seed(derive(task.seed, "init"))
        model = task.build_model().to(META)
    batch = move(task.sample(n, generator(task.seed, "eval")), META)
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))  # noqa: ARG005
    try:
        for strict in (False, True):  # in its first loss a task may create tensors that it caches
            with _Watch(strict):
                loss = task.loss(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
    finally:
        handle.remove()
    if loss.shape:
        raise AssertionError(f"{task.id}: the loss has shape {tuple(loss.shape)}; a single number was expected")
    with _Watch(False), torch.no_grad():
        results: dict[str, Any] = {f"metric {name!r}": v for name, v in task.metrics(outputs[-1], batch).items()}
        results |= {f"reference {name!r}": predict(batch) for name, predict in task.references().items()}
        results |= {f"conserved {name!r}": v for name, v in task.conserved(model).items()}
    for name, value in results.items():
        if isinstance(value, Tensor) and value.device.type != META:
            raise AssertionError(f"{task.id}: {name} is on {value.device}; it should be where the model is")


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks every operation: no mix of devices; if `strict`, no result on another device either."""

    def __init__(self, strict: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.strict = strict

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        elsewhere = [t for t in given if t.device.type != META and t.ndim > 0]  # a single number may be anywhere
        if elsewhere and any(t.device.type == META for t in given) and func not in MOVES:
            raise AssertionError(f"{func} mixes a tensor on {elsewhere[0].device} with the model's device at {_here()}")
        result = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.device.type != META]
        if made and self.strict:
            raise AssertionError(f"{func} makes a tensor on {made[0].device} at {_here()}; give it device=...")
        return result


def _here() -> str:
    """Returns file:line of the innermost code outside of torch and this file."""
    torch_folder = str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith((torch_folder, __file__))]
    return f"{frames[-1].filename}:{frames[-1].lineno}"
