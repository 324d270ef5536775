"""What is sent: counted, and against the formulas of the documents."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from distributed.cases import line
from distributed.messages import ALL_REDUCE, ALL_TO_ALL, ROWS, Counter
from distributed.tensors import shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import moga

SHAPES = [(8, 12), (16, 4), (8, 12)]  # (out, in), which 1, 2 and 4 divide


def optimizer(update: dict[str, Any], layout: str, axis: int, nonfinite: str) -> moga.SteepestDescent:
    groups = []
    for out, in_ in SHAPES:
        shape = (out, in_) if layout == "out,in" else (in_, out)
        weight = nn.Parameter(shard(torch.randn(shape), line(), [Shard(axis)]))
        weight.grad = torch.randn_like(weight)
        groups.append({"params": [weight], "layout": layout, "scale": 1.0, **update})
    made = moga.SteepestDescent(groups, lr=0.1, nonfinite=nonfinite)
    made.step()  # state is made, and ranks compare their groups
    return made


def table() -> None:
    """Every row of the table: the kinds and the number of messages, and their bytes, for three matrices together."""
    ranks = dist.get_world_size()
    for row in ROWS:
        stored = row.layout.split(",").index(row.cut)
        made = optimizer(row.update, row.layout, stored, "propagate")
        with Counter() as counter:
            made.step()
        kinds = [kind for kind, _ in counter.sent]
        sent = torch.tensor(float(sum(size for _, size in counter.sent)))
        expected = float(sum(row.bytes(out, in_) for out, in_ in SHAPES))
        if ranks == 1:
            assert not kinds, row
            continue
        assert kinds == list(row.kinds), (row, kinds)
        if ALL_TO_ALL in kinds:
            dist.all_reduce(sent)
            expected *= (ranks - 1) / ranks
        assert sent == expected, (row, float(sent), expected)


def nonfinite() -> None:
    """The check is one number in one all-reduce, and nothing under "propagate"."""
    for word, expected in (("skip", [(ALL_REDUCE, 4)]), ("raise", [(ALL_REDUCE, 4)]), ("propagate", [])):
        made = optimizer({"norm": "sign"}, "out,in", 0, word)
        with Counter() as counter:
            made.step()
        assert counter.sent == (expected if dist.get_world_size() > 1 else []), (word, counter.sent)


def hybrid() -> None:
    """Of the ranks that hold the same piece one sends it: half a matrix to its owner, and three halves back."""
    mesh = init_device_mesh("cpu", (2, 2))
    weight = nn.Parameter(shard(torch.randn(8, 12), mesh, [Replicate(), Shard(0)]))
    weight.grad = torch.randn_like(weight)
    group = {"params": [weight], "norm": "spectral", "layout": "out,in", "scale": 1.0}
    made = moga.SteepestDescent([group], lr=0.1, nonfinite="propagate")
    made.step()
    with Counter() as counter:
        made.step()
    sent = torch.tensor(float(sum(size for _, size in counter.sent)))
    dist.all_reduce(sent)
    assert sent == 4 * 8 * 12 * (1 / 2 + 3 / 2)
