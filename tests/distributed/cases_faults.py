"""What goes wrong on one rank is seen on all, and faults that are planted are found."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed.cases import SOME, Twins, cut_everywhere, line, relative
from distributed.cases_models import Network, on_line
from distributed.tensors import groups_of, shard, weights
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import moga
from moga.optim.distributed import shards
from moga.optim.distributed.routes import local_group

STORED_BY_ROWS = ["seven", "three rows", "query, key, value", "interleaved"]
NAMES = ["seven", "stored (in, out)", "query, key, value", "gain"]


def twins(**options: Any) -> Twins:
    return Twins("moga-row", NAMES, line(), lambda name, value: [Shard(0)], **options)


def spoil(made: Twins) -> None:
    """A NaN in the first entry, which rank 0 alone holds."""
    made.fill(0)
    for weight in (made.whole["seven"], made.sharded["seven"]):
        grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
        if isinstance(weight, DTensor) and dist.get_rank():
            continue
        grad[0, 0] = torch.nan


def skip() -> None:
    """Every rank drops the same steps, and counts them."""
    made = twins()
    made.run(2)
    spoil(made)
    made.plain.step()
    made.spread.step()
    made.check()
    made.run(2)
    made.check()
    assert made.spread.skipped == made.plain.skipped == 1


def raises() -> None:
    """Every rank raises; the one that holds the entry knows the name. No weight moves."""
    made = twins(nonfinite="raise")
    made.run(1)
    spoil(made)
    before = [weight.full_tensor() for weight in made.sharded.values()]
    expected = "another rank holds NaN" if dist.get_rank() else "gradient of seven holds NaN"
    with pytest.raises(FloatingPointError, match=expected):
        made.spread.step()
    assert all(torch.equal(w.full_tensor(), old) for w, old in zip(made.sharded.values(), before, strict=True))


def propagate() -> None:
    """Without a check the NaN goes where it goes in one process: its row, and not further."""
    made = twins(nonfinite="propagate")
    spoil(made)
    made.plain.step()
    made.spread.step()
    for name, weight in made.whole.items():
        torch.testing.assert_close(made.sharded[name].full_tensor(), weight, equal_nan=True)
    assert made.whole["seven"].isnan().sum() == 5


def local_fan() -> None:
    """The scale of a shard's own sizes instead of the matrix's: on more than one rank it is found."""

    def wrong(group: Any, weight: Any, piece: Any, reach: str) -> Any:
        own = local_group(group, weight, piece, reach)
        if group["layout"] != "out,in" or not isinstance(own["scale"], float):
            return own
        fan = [max(1, size) for size in piece.shape]
        return {**own, "scale": own["scale"] * moga.norm("row").scale(*fan) / moga.norm("row").scale(*weight.shape)}

    made = cut_everywhere("moga-row", SOME)
    with mock.patch.object(shards, "local_group", wrong):
        made.run(1)
    wrongly = {name for name, size in made.differences().items() if size > 1e-6}
    cut_along_in = {f"{name}/{cut}" for name in STORED_BY_ROWS for cut in ("second", "last")}
    assert wrongly == (cut_along_in if ranks() > 1 else set()), wrongly


def missing_sum() -> None:
    """Rows that are normalised by the part that is here: found."""
    made = cut_everywhere("moga-row", SOME)
    with mock.patch.object(shards, "_over", lambda groups, tensors, largest=False: tensors):
        made.run(1)
    assert any(size > 1e-6 for size in made.differences().values()) == (ranks() > 1)


def ranks() -> int:
    return dist.get_world_size()


def sharded(recipe: str, names: list[str], lr: Any, **words: Any) -> moga.SteepestDescent:
    """An optimizer of this rank's own."""
    parameters = {name: nn.Parameter(shard(value, line(), [Shard(0)])) for name, value in weights(names).items()}
    return moga.SteepestDescent(groups_of(recipe, parameters), lr=lr, **words)


def disagreement() -> None:
    """Ranks with other groups: an error on every rank that shows both, instead of a wait for ever or of drift."""
    first = dist.get_rank() == 0
    for made, text in (
        (sharded("moga-row", [*NAMES[1:], NAMES[0]] if first else NAMES, 0.1), "0: stored .*; on rank 1: seven "),
        (sharded("moga-row" if first else "moga-column", NAMES, 0.1), "0: .*'norm': 'row'.*; on rank 1: .*'column'"),
        (sharded("moga-row", NAMES, 0.1 if first else 0.2), "0: .*'lr': 0.1,.*; on rank 1: .*'lr': 0.2,"),
        (sharded("moga-row", NAMES, torch.tensor(0.5 if first else 0.5000001)), r"0: .*'lr': 0.5,.*; .*'lr': 0.500000"),
        (sharded("moga-row", NAMES, 0.1, nonfinite="skip" if first else "propagate"), "0: .*'skip'.*; .*'propagate'"),
        (sharded("moga-row", NAMES, 0.1, maximize=first), "0: .*'maximize': True.*; .*'maximize': False"),
    ):
        if ranks() > 1:
            with pytest.raises(ValueError, match=f"differ between ranks; .* on rank {text}.* Make the same groups"):
                made.step()
        else:
            made.step()


def rates() -> None:
    """Ranks with other rates, of which checkpoints have made the state with lr = 0 before: at the next step."""
    model = Network()
    on_line(model)
    made = moga.optimizer(model, "moga-row", lr=0.2 if dist.get_rank() else 0.1, roles={"head.weight": "output"})
    get_state_dict(model, made)
    assert all(made.state.values())
    if ranks() > 1:
        with pytest.raises(ValueError, match="on rank 0: .*'lr': 0.1,.*; on rank 1: .*'lr': 0.2,"):
            made.step()


def fewer() -> None:
    """A rank that lacks a parameter."""
    made = sharded("moga-row", NAMES[: 3 if dist.get_rank() else 4], 0.1)
    if ranks() > 1:
        with pytest.raises(ValueError, match=r"on rank 0: gain .*; on rank 1: nothing more"):
            made.step()


def placements() -> None:
    """A parameter that is a sum over ranks, or whose shards are interleaved or no boxes of its shape."""
    part = torch.ones(2, 3)
    for weight, text in (
        (
            DTensor.from_local(part, line(), [_StridedShard(0, split_factor=2)], run_check=False),
            r"'w' of shape .* has placements \(_StridedShard\(.*supported are Shard\(d\), Replicate\(\), and",
        ),
        (DTensor.from_local(part, line(), [Partial()]), r"'w' of shape \(2, 3\) has placements \(Partial\(sum\),\)"),
        (
            DTensor.from_local(part, line(), [Shard(0)], shape=(2 * ranks() + 1, 3), stride=(3, 1)),
            r"supported are Shard\(d\), Replicate\(\), and",
        ),
    ):
        made = moga.optimizer([("w", nn.Parameter(weight))], "moga-row", lr=0.1, roles={"w": "hidden"})
        with pytest.raises(ValueError, match=text):
            made.step()


def replicas() -> None:
    """Stochastic rounding: ranks that hold the same entries round them alike, and the sum is unbiased."""
    value = torch.ones(64, 8, dtype=torch.bfloat16)
    for place in (Replicate(), Shard(0)):
        weight = nn.Parameter(shard(value.clone(), line(), [place]))
        made = moga.optimizer([("w", weight)], "signsgd", lr=2**-10, roles={"w": "hidden"}, rounding="stochastic")
        for _ in range(4):
            weight.grad = torch.ones_like(weight)
            made.step()
        here = weight.to_local().float()
        parts = [torch.empty_like(here) for _ in range(ranks())] if place.is_replicate() else [here]
        if place.is_replicate():
            dist.all_gather(parts, here)
        moved = 1 - weight.full_tensor().float().mean()
        assert all(torch.equal(part, here) for part in parts)
        assert abs(moved - 4 * 2**-10) < 6e-4  # six standard errors of 512 entries that step by 2^-8 or not
    one = nn.Parameter(value.clone())
    twin = nn.Parameter(shard(value.clone(), line(), [Shard(0)]))
    for weight in (one, twin):  # a whole matrix is rounded on its owner: with the bits of one process
        made = moga.optimizer([("w", weight)], "hyperp", lr=2**-9, roles={"w": "hidden"}, rounding="stochastic")
        for seed in range(2):
            grad = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
            weight.grad = grad if weight is one else shard(grad, line(), [Shard(0)])
            made.step()
    assert relative(twin, one) <= (2**-7 if ranks() > 1 else 0)
    assert (twin.full_tensor() != one).float().mean() < 0.02


def hang() -> None:
    """Rank 0 waits for a message that rank 1 never sends."""
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(1000)


def abort() -> None:
    """Goes well, but its process aborts when it ends."""
    atexit.register(os.abort)


def part_of_the_ranks() -> None:
    """Parameters on a mesh of two of three ranks, also after all groups were destroyed and made again."""
    for again in (False, True):
        if again:
            rank, world = dist.get_rank(), ranks()
            dist.destroy_process_group()
            store = f"file://{Path(sys.argv[3]) / 'store again'}"
            dist.init_process_group("gloo", store, rank=rank, world_size=world)
        mesh = DeviceMesh("cpu", [0, 1])
        if dist.get_rank() < 2:
            made = Twins("muon", NAMES, mesh, lambda name, value: [Shard(0)])
            made.run(2)
            made.check()
