"""Projections: the matrices that make queries, keys and values, and the one that takes z."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stagelens.base import UsageError

CLOSE = 1e-4  # relative to the largest entry; two ways to compute one tensor round differently


@dataclass(frozen=True)
class Used:
    """A call of the module at `path`: the first tensor that it took, and the first that it gave."""

    path: str
    given: Tensor
    made: Tensor


@dataclass(frozen=True)
class Linear:
    """A parameter that is the matrix W [out, in] of a linear map x W^T + b, or its transpose."""

    parameter: str  # its path
    transposed: bool = False

    def matrix(self, model: nn.Module) -> Tensor:
        """Returns W [out, in] as it is now."""
        weight = model.get_parameter(self.parameter.lstrip("."))  # the module may be the model itself
        return weight.mT if self.transposed else weight


Heads = Mapping[str, tuple[Linear, Tensor]]  # by W_Q, W_K, W_V, W_O: the matrix, and its rows int [head, d_head]
Linears = Sequence[tuple[Used, Linear]]


def same(a: Tensor, b: Tensor) -> bool:
    """Returns True if two tensors of one shape have the same entries, up to the rounding of their dtypes."""
    if a.shape != b.shape or a.numel() == 0:
        return False
    half = [torch.finfo(x.dtype).eps for x in (a, b) if x.dtype in (torch.bfloat16, torch.float16)]
    near = max([CLOSE, *(2 * eps for eps in half)])
    a, b = a.float(), b.to(a.device).float()
    return bool((a - b).abs().max() <= near * b.abs().max().clamp(min=torch.finfo(torch.float32).tiny))


def proportional(a: Tensor, b: Tensor) -> bool:
    """Returns True if `b` is `a` times a positive number, up to rounding."""
    if a.shape != b.shape:
        return False
    a, b = a.float(), b.to(a.device).float()
    factor = (a * b).sum() / (a * a).sum().clamp(min=torch.finfo(torch.float32).tiny)
    return bool(factor > 0) and same(a * factor, b)


def increasing(a: Tensor, b: Tensor) -> bool:
    """Returns True if the entries of `b` along the last dimension are in the order of those of `a` (a softcap)."""
    return a.shape == b.shape and bool((b.gather(-1, a.argsort(dim=-1)).diff(dim=-1) >= 0).all())


def linear_of(used: Used, module: nn.Module) -> Linear | None:
    """Returns the weight of a module, if what it computed shows that it is a linear map."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    x, y = used.given, used.made
    if not isinstance(weight, nn.Parameter) or weight.ndim != 2 or not x.is_floating_point() or x.ndim < 2:
        return None
    offset = bias.detach().float() if isinstance(bias, Tensor) else 0.0
    for transposed in (False, True):
        matrix = (weight.mT if transposed else weight).detach().float()  # [out, in]
        if matrix.shape == (y.shape[-1], x.shape[-1]) and same((x.float() @ matrix.mT + offset).to(y.dtype), y):
            return Linear(f"{used.path}.weight", transposed)
    return None


def find_heads(path: str, module: nn.Module, caught: Mapping[str, Tensor], linears: Linears) -> Heads:
    """Returns the matrices of one layer's heads that can be identified.

    Args:
        path: Of the attending module.
        module: The attending module.
        caught: `hook_q`, `hook_k`, `hook_v`, `hook_z` of the layer at the first and last position,
            [batch, 2, head, d_head], or nothing.
        linears: The linear maps that the pass used. The rows of W_O are its input features.
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
    found: dict[str, list[Match]] = {}
    for part, name in enumerate("qkv"):
        made = caught[f"hook_{name}"]
        found[f"W_{name.upper()}"] = projections(made, part, n_heads, linears)
        if not found[f"W_{name.upper()}"] and name != "v":  # some models scale queries (OPT) or keys (DeBERTa-v2)
            found[f"W_{name.upper()}"] = projections(made, part, n_heads, linears, proportional)
    found["W_O"] = [(used.path, linear, own) for used, linear in linears if same(used.given, z.flatten(2))]
    if not found["W_O"] and len(z) > 1 and any(same(used.given, heads_first(z).flatten(2)) for used, _ in linears):
        raise UsageError(
            f"{path!r} folds heads into the batch with the heads first, [head * batch, position, d_head]; fold them as "
            "[batch * head, position, d_head]"
        )
    chosen = {name: only(matches, path) for name, matches in found.items()}
    return {
        name: (one[0], one[1].repeat_interleave(n_heads // len(one[1]), dim=0))  # grouped keys: once for each head
        for name, one in chosen.items()
        if one is not None
    }


def heads_first(z: Tensor) -> Tensor:
    """Returns `z` [batch, position, head, d_head] as it is if the heads come first where they are folded."""
    n_heads = z.shape[2]
    return z.transpose(1, 2).flatten(0, 1).view(n_heads, len(z), z.shape[1], -1).permute(1, 2, 0, 3)


Match = tuple[str, Linear, Tensor]


def only(matches: Sequence[Match], near: str) -> tuple[Linear, Tensor] | None:
    """Returns the match that is nearest to the module at `near`; None if there is none, or two are as near.

    Two modules match if their outputs are equal, as all zeros are. Then it is unknown which one is used.
    """

    def shared(path: str) -> int:
        pairs = zip(path.split("."), near.split("."), strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(path.count("."), near.count(".")) + 1)

    nearest = max((shared(path) for path, *_ in matches), default=0)
    found = [(linear, rows) for path, linear, rows in matches if shared(path) == nearest]
    alike = all(linear == found[0][0] and torch.equal(rows, found[0][1]) for linear, rows in found)
    return found[0] if found and alike else None


def projections(
    made: Tensor, part: int, n_heads: int, linears: Linears, equal: Callable[[Tensor, Tensor], bool] = same
) -> list[Match]:
    """Returns the linear maps that can have made `made` [batch, 2, head, d_head], with their rows [head, d_head].

    `part` is 0, 1 or 2: queries, keys or values. Only position 0 is compared: rotary positions leave it as it is.
    Grouped keys may have been repeated for each head. `equal` compares what a map made with `made`.
    """
    d_head = made.shape[3]
    divisors = [n for n in range(n_heads, 0, -1) if n_heads % n == 0]
    found: list[Match] = []
    for used, linear in linears:
        if used.made.ndim != 3 or len(used.made) != len(made):
            continue
        for groups in divisors:
            for rows in layouts(used.made.shape[-1], n_heads, groups, d_head, part):
                whole = rows.repeat_interleave(max(1, made.shape[2] // len(rows)), dim=0)
                if equal(used.made[:, 0, whole], made[:, 0]):
                    found.append((used.path, linear, whole))
    return found


def layouts(size: int, n_heads: int, n_key_heads: int, d_head: int, part: int) -> Iterator[Tensor]:
    """Yields int [head, d_head]: the rows of a projection of `size` rows that may make queries, keys or values.

    The rows of the three are a module's own, or fused: one after the other, or by group, the queries of a group first.
    """
    counts = (n_heads, n_key_heads, n_key_heads)
    if size == counts[part] * d_head:
        yield torch.arange(size).view(-1, d_head)
    if size == sum(counts) * d_head:
        start = sum(counts[:part]) * d_head
        yield torch.arange(start, start + counts[part] * d_head).view(-1, d_head)
        per_group = n_heads // n_key_heads
        if n_key_heads > 1:  # with one group, this is the layout before
            columns = (slice(per_group), slice(per_group, -1), slice(-1, None))[part]
            yield torch.arange(size).view(n_key_heads, per_group + 2, d_head)[:, columns].reshape(-1, d_head)
