"""DDP: every rank steps alike, with the spectral work on each or spread over all; and work that teams share."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed.cases import cut_everywhere, decayed
from distributed.cases_models import Network, check
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import moga
from moga.optim.distributed import plan, whole
from moga.optim.distributed.balance import Part
from moga.optim.distributed.teams import Member


def run(recipe: str, distribute: str, steps: int = 5) -> nn.Module:
    """Training on other tokens on each rank; the model afterwards."""
    model = DistributedDataParallel(Network())
    roles = {"module.head.weight": "output"}
    optimizer = moga.optimizer(model, recipe, lr=0.02, roles=roles, distribute=distribute, **decayed(recipe))
    for seed in range(steps):
        generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
        tokens, targets = torch.randint(11, (2, 12), generator=generator)
        nn.functional.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.module


def alike(recipe: str, distribute: str) -> None:
    """Every rank has the same weights, and with owners or teams those of every rank by itself."""
    plain, spread = run(recipe, "none"), run(recipe, distribute)
    for model in (plain, spread):
        for weight in model.parameters():
            parts = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, weight.detach())
            assert all(torch.equal(part, weight) for part in parts)
    check(spread, plain, 1e-5 if distribute == "teams" else 1e-6)  # training carries roundings of gradients on


def once() -> None:
    """Each matrix is computed on one rank, and the cost is spread as evenly as whole matrices can be."""
    computed: list[torch.Tensor] = []
    direct = whole.scaled

    def counted(function: Any, group: Any, tensors: Any) -> Any:
        computed.extend(tensors)
        return direct(function, group, tensors)

    with mock.patch.object(whole, "scaled", counted):
        run("muon", "owners", steps=1)
    costs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(costs, [one.numel() * min(one.shape) for one in computed])
    if dist.get_world_size() == 1:
        assert costs == [[]]
        return
    # (7, 3), (10, 7), (72, 10), (3, 72): the dearest first, each to the rank with the least
    assert sorted(cost for rank in costs for cost in rank) == [63, 490, 648, 7200]
    expected = {2: [[7200], [648, 490, 63]], 3: [[7200], [490, 63], [648]], 4: [[7200], [490], [648], [63]]}
    assert [sorted(rank, reverse=True) for rank in costs] == expected[dist.get_world_size()]


POLAR = [
    "seven",
    "three rows",
    "query, key, value",
    "stored (in, out)",
    "interleaved",
    "experts",
    "convolution",
    "large",
    "tall",
]


def everywhere(costs: Any, splits: Any, ranks: int) -> list[tuple[Part, ...]]:
    """Every share that splits on every rank, in parts of different sizes; owners in turn."""
    bounds = [(i / ranks) ** 1.5 for i in range(ranks + 1)]
    turned = [tuple(Part((i + j) % ranks, *bounds[j : j + 2]) for j in range(ranks)) for i in range(len(costs))]
    return [team if split else (Part(team[0].rank, 0.0, 1.0),) for team, split in zip(turned, splits, strict=True)]


def teams(polar: str, where: str = "everywhere") -> None:
    """Ten steps of matrices whose rows are computed on several ranks equal those of one process."""
    update = {**dict.fromkeys(("input", "output", "vector"), "adam"), "hidden": {"norm": "spectral", "polar": polar}}
    twins = cut_everywhere(update, POLAR, distribute="teams", weight_decay=0.1)
    with mock.patch.object(plan, "teams", everywhere if where == "everywhere" else plan.teams):
        twins.spread.make_state()
    twins.run(10)
    twins.check()


def narrow() -> None:
    """Products in bfloat16, of which other rows together are rounded otherwise: to a few of its last bits."""
    twins = cut_everywhere("muon", POLAR, distribute="teams", polar_dtype="bfloat16")
    twins.run(2)
    twins.check(2**-7)


def wrong_rows() -> None:
    """A planted fault, rows that several ranks take and others that none takes, is found."""
    direct = Member._parts

    def first(self: Member) -> Any:
        return ((X, slice(0, rows.stop - rows.start)) for X, rows in direct(self))

    with mock.patch.object(Member, "_parts", first):
        if dist.get_world_size() > 1:
            with pytest.raises(AssertionError, match="large/first"):
                teams("quintic")


def words() -> None:
    """Ranks that were given other words find out."""
    weight = nn.Parameter(torch.ones(2, 3))
    made = moga.optimizer(
        [("w", weight)], "muon", lr=0.1, roles={"w": "hidden"}, distribute="owners" if dist.get_rank() else "teams"
    )
    weight.grad = torch.ones_like(weight)
    if dist.get_world_size() > 1:
        with pytest.raises(ValueError, match="'distribute': 'teams'.*; on rank 1: .*'distribute': 'owners'"):
            made.step()


def memory() -> None:
    """State takes the memory of the shard alone, made by the optimizer or loaded from a whole state."""
    for recipe in ("muon", "spel", "adamw"):
        twins = cut_everywhere(recipe, ["seventy-two"], **decayed(recipe))
        for word in ("made", "loaded"):
            twins.run(1)
            for weight in twins.sharded.values():
                for value in twins.spread.state[weight].values():
                    if value.ndim:
                        part = value.to_local()
                        assert part.untyped_storage().nbytes() == part.numel() * part.element_size(), (recipe, word)
            twins.spread.load_state_dict(twins.plain.state_dict())
