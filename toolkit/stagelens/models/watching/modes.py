"""The state of PyTorch and of a model while it is watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from stagelens.base import untouched_buffers, untouched_rng


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


def twice_differentiable() -> AbstractContextManager[Any]:
    """With gradients, attention uses torch's plain kernel: the fused ones have no second derivatives."""
    return sdpa_kernel(SDPBackend.MATH) if torch.is_grad_enabled() else nullcontext()
