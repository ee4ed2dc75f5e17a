"""The exact loss of a model with hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def exact_with_hooks(exact: Tensor, hooked: Tensor, plain: Tensor) -> Tensor:
    """Returns the exact loss plus what the hooks on the model change in it, a scalar.

    A loss that is computed from the parameters alone does not see hooks, so ablations and patches would have no
    effect. Their effect is measured on the sequences of the evaluation batch and added:

        exact = expected_loss(model.W)                  # over the distribution, from the parameters
        hooked = squared_error(model(x), y)             # on the batch, by calling the model
        plain = squared_error(x @ model.W.T, y)         # on the same batch, by the formula that hooks cannot change
        return exact_with_hooks(exact, hooked, plain)

    Without hooks `hooked` equals `plain`, up to rounding, and the result is the exact loss.
    """
    return exact + (hooked - plain)
