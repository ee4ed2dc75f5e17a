"""How much of a head's keys and queries is along named directions: the mass over groups of directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from scipy.stats import beta
from torch import Tensor

from stagelens.base import UsageError
from stagelens.recording import ProbeContext, Reduced, Site
from stagelens_probes.group_mass import Masses
from stagelens_probes.positions import as_index, rows_of
from stagelens_probes.qk_alignment import KEYS, QUERIES
from stagelens_probes.scores import Moments


def of_directions(context: ProbeContext) -> bool:
    """Returns True if the task's groups are groups of directions. Raises UsageError if only some of them are."""
    found = {name: bool(group.directions) for name, group in context.groups.items()}
    if len(set(found.values())) > 1:
        raise UsageError(
            f"the groups {', '.join(name for name in found if found[name])} have directions and "
            f"{', '.join(name for name in found if not found[name])} have keys; give all of them the same"
        )
    return any(found.values())


def share_along(moment: Tensor, bases: Sequence[Tensor]) -> Tensor:
    """Returns the fraction of a second moment in each subspace and, last, outside of all: [head, group].

    `moment` is [head, d, d]. Each of `bases` is orthonormal, [d, rank]. A head whose vectors are all 0 has all of its
    mass outside.
    """
    along = torch.stack([(moment @ basis * basis).sum((-1, -2)) for basis in bases], dim=-1)  # [head, group]
    total = moment.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)  # [head, 1]
    share = torch.where(total == 0, 0.0, along.clamp(min=0) / total.clamp(min=torch.finfo(total.dtype).tiny))
    return torch.cat([share, (1 - share.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)


def mass_sparsity(mass: Tensor) -> Tensor:
    """Returns 1 - H / log n for the `mass` [head, n] of each head with entropy H: [head]."""
    entropy: Tensor = torch.special.entr(mass).sum(-1)
    return 1 - entropy / torch.tensor(mass.shape[-1], dtype=mass.dtype).log()


def direction_masses(activation: Tensor, site: Site, context: ProbeContext) -> Masses:
    """Returns `share_along` of keys, or of the queries of `ProbeContext.queries_at`, [batch, position, head, d].

    There is one sample. The chance level of a group of directions is rank / d_head, its mass for an isotropic head. The
    mass of a head that uses one random direction scatters around it, and rarely exceeds it by `random_margin`.
    """
    if site.hook == QUERIES:
        rows = rows_of(context.queries_at(site), activation.shape[1], context.n_inputs, repr(site.name))
        activation = activation[:, as_index(rows, activation.device)]
    moment = Moments.of(activation, centered=False).total
    bases = context.constant(("bases", moment.shape[-1]), lambda: _bases(context, moment.shape[-1]))
    mass = share_along(moment, bases)  # [head, group]
    chance = share_along(torch.eye(moment.shape[-1], dtype=moment.dtype, device=moment.device)[None], bases)
    margin = torch.tensor([random_margin(basis.shape[1], len(basis), len(bases)) for basis in bases] + [0.0])
    return Masses(mass[None], chance, torch.ones_like(chance[0]), margin=margin.to(chance))


def random_margin(rank: int, d: int, n_groups: int) -> float:
    """Returns by how much the mass of a random direction on one of n groups exceeds rank / d in 5% of all heads.

    The squared length of a random unit vector's part in a subspace of `rank` of d dimensions has the distribution
    Beta(rank / 2, (d - rank) / 2). Each of the groups has an equal part of the 5%.
    """
    return 0.0 if rank == d else float(beta.ppf(1 - 0.05 / n_groups, rank / 2, (d - rank) / 2)) - rank / d


def keys_with_queries(reduced: Reduced) -> dict[Site, tuple[Masses, Tensor]]:
    """Returns for each layer the mean of the masses and sparsities of its keys and its queries."""
    queries = {site.layer: found for site, found in reduced.items() if site.hook == QUERIES}
    both = {}
    for site, (masses, sparsity) in reduced.items():
        if site.hook == KEYS:
            other, other_sparsity = queries[site.layer]
            times = other.mass.shape[1] // masses.mass.shape[1]  # heads may share their keys
            mass = (masses.mass.repeat_interleave(times, dim=1) + other.mass) / 2
            both[site] = replace(masses, mass=mass), (sparsity + other_sparsity) / 2
    return both


def _bases(context: ProbeContext, d_head: int) -> list[Tensor]:
    """Returns an orthonormal basis of each group of directions, [d_head, rank]."""
    bases = []
    for name, group in context.groups.items():
        if unknown := [one for one in group.directions if one not in context.directions]:
            known = ", ".join(context.directions) or "none"
            raise UsageError(f"group {name!r} names the direction {unknown[0]!r}; the task has {known}")
        named = [torch.as_tensor(context.directions[one]).detach().cpu().double() for one in group.directions]
        if wrong := [tuple(one.shape) for one in named if one.shape != (d_head,)]:
            raise UsageError(f"group {name!r} has a direction of shape {wrong[0]}; expected [{d_head}], d_head")
        bases.append(torch.linalg.qr(torch.stack(named, dim=-1)).Q)
    return bases
