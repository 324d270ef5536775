"""DDP: every rank steps alike, with the spectral work on each or spread over all."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed.cases import decayed
from distributed.cases_models import Network, check
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import moga
from moga.optim.distributed import whole


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


def alike(recipe: str) -> None:
    """Every rank has the same weights, and with owners those of every rank by itself."""
    plain, spread = run(recipe, "none"), run(recipe, "owners")
    for model in (plain, spread):
        for weight in model.parameters():
            parts = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, weight.detach())
            assert all(torch.equal(part, weight) for part in parts)
    check(spread, plain, 1e-5 if recipe == "shampoo" else 1e-6)


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
    expected = {2: [[7200], [648, 490, 63]], 3: [[7200], [648], [490, 63]], 4: [[7200], [648], [490], [63]]}
    assert [sorted(rank, reverse=True) for rank in costs] == expected[dist.get_world_size()]
