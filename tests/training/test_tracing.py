"""Tracing: the same numbers at every call, by fewer operations, and no more than the function allows."""

from __future__ import annotations

import torch
from torch import Tensor

from stagelens.training.flatten_graph import traced


def names(function) -> list[str]:
    """The operations of a traced function."""
    return [str(node.target) for node in function.__self__.graph.nodes if node.op == "call_function"]


def check(function, *inputs: Tensor, fixed=()):
    """`function`, traced; it agrees with itself untraced, on these inputs and on others."""
    quick = traced(function, inputs, fixed)
    for scale in (1.0, -2.5):
        others = [x if index in fixed else scale * x for index, x in enumerate(inputs)]
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(quick(*others), function(*others))
    return quick


def test_what_does_not_depend_on_the_inputs_is_computed_once():
    def function(x: Tensor) -> Tensor:
        return x @ (torch.eye(3) - torch.arange(3.0) / 3) + torch.ones_like(x)

    assert names(check(function, torch.randn(3, 3))) == ["aten.mm.default", "aten.add.Tensor"]


def test_nor_is_what_depends_on_fixed_inputs_alone():
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * y.exp().sum(0)

    x, y = torch.randn(2, 3), torch.randn(4, 3)
    assert names(check(function, x, y, fixed=[1])) == ["aten.mul.Tensor"]
    assert len(names(check(function, x, y))) == 3


def test_a_chain_of_views_is_one_operation_and_a_view_that_changes_nothing_none():
    def function(x: Tensor) -> Tensor:
        return x[:, 1:].transpose(0, 1).unsqueeze(0).expand(2, -1, -1).exp() + x.view(3, 4)[None, :, :3].mT.view(
            1, 3, 3
        )

    found = names(check(function, torch.randn(3, 4)))
    assert sorted(found) == [
        "aten.add.Tensor",
        "aten.as_strided.default",
        "aten.as_strided.default",
        "aten.exp.default",
    ]


def test_gradients_inside_a_function_are_traced_with_it():
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = (x[1:].tanh() * y).square().sum()
        return loss.detach(), [torch.autograd.grad(loss, x)[0].clone()]

    check(function, torch.randn(4, 3), torch.randn(3, 3))


def test_random_numbers_are_drawn_at_every_call():
    quick = traced(lambda x: x + torch.rand(3), [torch.zeros(3)])
    assert not torch.equal(quick(torch.zeros(3)), quick(torch.zeros(3)))


def test_what_is_changed_in_place_starts_anew_at_every_call():
    def function(x: Tensor) -> Tensor:
        total = torch.zeros(2, 3)
        total[0] += x
        return total

    check(function, torch.randn(3))


def test_what_cannot_be_traced_is_used_as_it_is():
    def function(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    assert traced(function, [torch.ones(2)]) is function
