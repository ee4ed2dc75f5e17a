"""The state of PyTorch and of a model while it is watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from stagelens.base import UsageError, untouched_buffers, untouched_rng


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs compiled functions as they were written, and PyTorch's encoder layers without their fused kernel."""
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        yield


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Uncompiled, in evaluation mode, without gradients. Modes, buffers and random states are left as found."""
    modes = [(module, module.training) for module in model.modules()]
    with untouched_rng(), untouched_buffers(model), torch.no_grad(), uncompiled():
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def within_embeddings(model: nn.Module) -> Iterator[None]:
    """Checks the indices that reach every `nn.Embedding`: on a GPU a wrong one would end the process.

    Raises an error with the index and the size of the table: too many tokens, or too many positions.
    """

    def check(path: str, table: nn.Embedding, args: tuple[Any, ...]) -> None:
        given = args[0] if args and isinstance(args[0], Tensor) and args[0].numel() else None
        if given is None or given.is_floating_point():
            return
        least, most, rows = int(given.min()), int(given.max()), table.num_embeddings
        if least < 0 or most >= rows:
            raise UsageError(
                f"the batch gives index {most if most >= rows else least} to the embedding {path!r}, which has {rows} "
                f"rows; give tokens from 0 to {rows - 1}, or shorter sequences if the rows are positions"
            )

    tables = [(path, one) for path, one in model.named_modules() if isinstance(one, nn.Embedding)]
    handles = [one.register_forward_pre_hook(partial(check, path)) for path, one in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def twice_differentiable() -> AbstractContextManager[Any]:
    """With gradients, attention uses torch's plain kernel: the fused ones have no second derivatives."""
    return sdpa_kernel(SDPBackend.MATH) if torch.is_grad_enabled() else nullcontext()
