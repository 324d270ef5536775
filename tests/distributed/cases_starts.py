"""New weights of a sharded model: the parts of what one process draws."""

from __future__ import annotations

import torch
import torch.distributed as dist
from distributed.cases_models import ARRANGED, Network

import moga


def started(kind: str, recipe: str) -> None:
    """No shard repeats another, and the row of padding is zero. In one mesh the first rank's random state counts."""
    arrange, options = ARRANGED[kind]
    whole, sharded = Network(**options), Network(**options)
    arrange(sharded)
    for model, seed in ((whole, 5), (sharded, 5 if kind == "fsdp and tensor" else 5 + dist.get_rank())):
        model.embed.padding_idx = 2
        torch.manual_seed(seed)
        moga.initialize_(model, recipe, roles={"head.weight": "output"})
    for name, weight in whole.named_parameters():
        assert torch.equal(sharded.get_parameter(name).full_tensor(), weight), name
    assert whole.wide.weight.unique().numel() == whole.wide.weight.numel() and not whole.embed.weight[2].any()
