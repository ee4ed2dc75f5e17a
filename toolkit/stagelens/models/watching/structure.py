"""Structure: which modules of a watched model are its blocks, projections, embedding and unembedding.

Nothing is guessed from names. A module plays a part if what it computed in one pass says so: the projection of values
is the linear map whose output is the values, the unembedding is the one whose output is the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

CLOSE = 1e-4  # relative to the largest entry; two ways to compute one tensor round differently


@dataclass
class Heard:
    """The first tensor that went into each module and came out of it, by path, in the order of the calls' ends."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def hearing(modules: Mapping[str, nn.Module]) -> Iterator[Heard]:
    """Stores inputs and outputs of `modules` while the block lasts."""
    heard = Heard()

    def hear(path: str) -> Callable[..., None]:
        def ended(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG001
            given = first_tensor((*args, *kwargs.values()))
            made = first_tensor(output)
            if given is not None and made is not None and path not in heard.inputs:
                heard.inputs[path], heard.outputs[path] = given.detach().clone(), made.detach().clone()

        return ended

    handles = [module.register_forward_hook(hear(path), with_kwargs=True) for path, module in modules.items()]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def first_tensor(value: Any) -> Tensor | None:
    """Returns the first tensor in `value`: itself, or of a tuple, list or mapping."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((x for x in map(first_tensor, value) if x is not None), None)
    return None


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have the same entries, up to rounding."""
    if a.shape != b.shape:
        return False
    a, b = a.float(), b.to(a.device).float()
    return bool((a - b).abs().max() <= CLOSE * b.abs().max().clamp(min=torch.finfo(torch.float32).tiny))


@dataclass(frozen=True)
class Linear:
    """A parameter that is the matrix W [out, in] of a linear map x W^T + b, or its transpose."""

    parameter: str  # its path
    transposed: bool = False

    def matrix(self, model: nn.Module) -> Tensor:
        """Returns W [out, in] as it is now."""
        weight = model.get_parameter(self.parameter)
        return weight.mT if self.transposed else weight

    def moved(self, block: str, other: str) -> Linear:
        """Returns the same parameter of another block."""
        return replace(self, parameter=other + self.parameter.removeprefix(block))


@dataclass(frozen=True)
class Structure:
    """The parts of a model that one pass showed. Those of blocks are of the first block."""

    embedding: Linear | None = None  # its matrix is [token, d_model]
    unembedding: Linear | None = None
    final_norm: str | None = None
    branches: tuple[str, str] | None = None  # children of a block that write to the residual stream: attention, MLP
    heads: Mapping[str, tuple[Linear, Tensor]] = field(default_factory=dict)  # W_Q ...: matrix, and rows [head, d_head]


def find_structure(
    model: nn.Module,
    blocks: Sequence[str],
    attention: str,
    tokens: Tensor | None,
    run: Callable[[], tuple[Any, Mapping[str, Tensor]]],
) -> Structure:
    """Returns the parts that play a role in a pass.

    Args:
        blocks: The paths of the blocks, in order; empty if there are none.
        attention: The path of the first layer's attention.
        run: Makes the pass. Returns the logits, and `hook_q`, `hook_k`, `hook_v`, `hook_z` of the first layer.
    """
    modules = dict(model.named_modules())
    first = f"{blocks[0]}." if blocks else "*"
    heads_at = {path: module for path, module in modules.items() if path.startswith(first)}
    around = {
        path: module
        for path, module in modules.items()
        if path and not list(module.children()) and not any(path.startswith(f"{block}.") for block in blocks)
    }
    ends = {path: modules[path] for path in (*blocks[:1], *blocks[-1:])}
    with hearing({**around, **ends, **heads_at}) as heard:
        logits, caught = run()
    linears = {path: one for path in heard.inputs if (one := linear_of(path, modules[path], heard))}
    inside = {path: one for path, one in linears.items() if path in heads_at}
    embeddings = [path for path in heard.inputs if isinstance(modules[path], nn.Embedding)]
    takes_tokens = (path for path in embeddings if tokens is not None and same(heard.inputs[path], tokens))
    makes_logits = (path for path in linears if isinstance(logits, Tensor) and same(heard.outputs[path], logits))
    embedding, unembedding = next(takes_tokens, None), next(makes_logits, None)
    return Structure(
        embedding=Linear(f"{embedding}.weight") if embedding else None,
        unembedding=linears[unembedding] if unembedding else None,
        final_norm=final_norm(blocks[-1], around, heard) if blocks else None,
        branches=branches(blocks[0], attention, heard) if blocks else None,
        heads=head_matrices(attention, modules[attention], caught, inside, heard) if blocks else {},
    )


def linear_of(path: str, module: nn.Module, heard: Heard) -> Linear | None:
    """Returns the weight of a module, if what it computed shows that it is a linear map."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    x, y = heard.inputs[path], heard.outputs[path]
    if not isinstance(weight, nn.Parameter) or weight.ndim != 2 or not x.is_floating_point():
        return None
    offset = bias.detach().float() if isinstance(bias, Tensor) else 0.0
    for transposed in (False, True):
        matrix = (weight.mT if transposed else weight).detach().float()  # [out, in]
        if matrix.shape == (y.shape[-1], x.shape[-1]) and same(x.float() @ matrix.mT + offset, y):
            return Linear(f"{path}.weight", transposed)
    return None


def head_matrices(
    path: str, module: nn.Module, caught: Mapping[str, Tensor], linears: Mapping[str, Linear], heard: Heard
) -> dict[str, tuple[Linear, Tensor]]:
    """Returns the matrices that make queries, keys and values, and the one that takes z, with the rows of each head.

    The rows of W_O are its input features.
    """
    if "hook_z" not in caught:
        return {}
    z = caught["hook_z"]
    n_heads, d_head = z.shape[2:]
    own = torch.arange(n_heads * d_head).view(n_heads, d_head)
    if isinstance(module, nn.MultiheadAttention):  # it has its matrices itself
        if module.in_proj_weight is None:
            return {}
        fused = Linear(f"{path}.in_proj_weight")
        parts = {f"W_{name}": (fused, own + i * own.numel()) for i, name in enumerate("QKV")}
        return {**parts, "W_O": (Linear(f"{path}.out_proj.weight"), own)}
    made = {f"W_{name.upper()}": caught[f"hook_{name}"] for name in "qkv"}
    found = {name: projection(x, i, n_heads, linears, heard) for i, (name, x) in enumerate(made.items())}
    taking = (one for name, one in linears.items() if same(heard.inputs[name], z.flatten(2)))
    output = next(taking, None)
    found["W_O"] = None if output is None else (output, own)
    return {
        name: (one[0], one[1].repeat_interleave(n_heads // len(one[1]), dim=0))  # grouped keys: once for each head
        for name, one in found.items()
        if one is not None
    }


def final_norm(last: str, around: Mapping[str, nn.Module], heard: Heard) -> str | None:
    """Returns the path of the module that normalizes the last block's output: it takes it and keeps its shape."""
    stream = heard.outputs.get(last)
    for path, module in around.items():
        vectors = all(parameter.ndim <= 1 for parameter in module.parameters())
        if stream is not None and path in heard.inputs and vectors and same(heard.inputs[path], stream):
            return path if heard.outputs[path].shape == stream.shape else None
    return None


def layouts(size: int, n_heads: int, n_key_heads: int, d_head: int, part: int) -> Iterator[Tensor]:
    """Yields int [head, d_head]: the rows of a projection of `size` rows that may make queries, keys or values.

    `part` is 0, 1 or 2. The rows of the three are a module's own, or fused: one after the other, or head by head.
    """
    counts = (n_heads, n_key_heads, n_key_heads)
    if size == counts[part] * d_head:
        yield torch.arange(size).view(-1, d_head)
    if size == sum(counts) * d_head:
        start = sum(counts[:part]) * d_head
        yield torch.arange(start, start + counts[part] * d_head).view(-1, d_head)
        if n_heads == n_key_heads:
            yield torch.arange(size).view(n_heads, 3, d_head)[:, part]


def projection(
    made: Tensor, part: int, n_heads: int, linears: Mapping[str, Linear], heard: Heard
) -> tuple[Linear, Tensor] | None:
    """Returns the linear map that made `made` [batch, position, head, d_head], and its rows [head, d_head].

    Only position 0 is compared: rotary positions leave it as it is. Grouped keys may have been repeated for each head.
    """
    n_key_heads = made.shape[2]
    d_head = made.shape[3]
    divisors = [n for n in range(n_key_heads, 0, -1) if n_key_heads % n == 0] if part else [n_heads]
    for path, linear in linears.items():
        out = heard.outputs[path]
        if out.ndim != 3 or out.shape[:2] != made.shape[:2]:
            continue
        for groups in divisors:
            for rows in layouts(out.shape[-1], n_heads, groups, d_head, part):
                rows = rows.repeat_interleave(made.shape[2] // len(rows), dim=0)
                if same(out[:, 0, rows], made[:, 0]):
                    return linear, rows
    return None


def branches(block: str, attention: str, heard: Heard) -> tuple[str, str] | None:
    """Returns the names of the two parts of a block whose outputs add to the residual stream: attention and MLP.

    They are children of the block with resid_pre + attn_out + mlp_out = resid_post. None if there are none.
    """
    prefix = f"{block}."
    names = [path.removeprefix(prefix) for path in heard.outputs if path.startswith(prefix)]
    children = [name for name in names if "." not in name]
    attn = attention.removeprefix(prefix).split(".")[0]
    before, after = heard.inputs.get(block), heard.outputs.get(block)
    if before is None or after is None or attn not in children:
        return None
    attn_out = heard.outputs[f"{prefix}{attn}"]
    for name in children:
        out = heard.outputs[f"{prefix}{name}"]
        if name != attn and out.shape == attn_out.shape == before.shape and same(before + attn_out + out, after):
            return attn, name
    return None
