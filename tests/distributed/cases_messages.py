"""What is sent: counted, and against the formulas of the documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed.cases import cut_everywhere, decayed, line
from distributed.messages import ALL_REDUCE, ALL_TO_ALL, Counter, formulas
from distributed.tensors import shard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import moga
from moga.optim.distributed import owners

SHAPES = [(8, 12), (16, 4), (8, 12)]  # (out, in), which 1, 2 and 4 divide
COLUMNS = [(out, in_ / 2) for out, in_ in SHAPES]


def optimizer(
    update: dict[str, Any], layout: str, axes: Sequence[int], nonfinite: str, mesh: Any = None, **words: str
) -> moga.SteepestDescent:
    groups = []
    for out, in_ in SHAPES:
        shape = (out, in_) if layout == "out,in" else (in_, out)
        weight = nn.Parameter(shard(torch.randn(shape), mesh or line(), [Shard(axis) for axis in axes]))
        weight.grad = torch.randn_like(weight)
        groups.append({"params": [weight], "layout": layout, "scale": 1.0, **update})
    made = moga.SteepestDescent(groups, lr=0.1, nonfinite=nonfinite, **words)
    made.step()  # state is made, and ranks compare their groups
    return made


def table() -> None:
    """Every row of the table: the kinds and the number of messages, and their bytes, for three matrices together."""
    ranks = dist.get_world_size()
    for row in formulas.ROWS:
        stored = row.layout.split(",").index(row.cut)
        made = optimizer(row.update, row.layout, [stored], "propagate")
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
        made = optimizer({"norm": "sign"}, "out,in", [0], word)
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


def both() -> None:
    """Cut along both axes: rows are added up over the ranks of one axis of the mesh, each of them its own rows."""
    mesh = init_device_mesh("cpu", (2, 2))
    for norm, cut, sizes in (("row", "in", [(out / 2, in_) for out, in_ in SHAPES]), ("column", "out", COLUMNS)):
        row = formulas.row_of(norm, cut)
        made = optimizer(row.update, "out,in", [0, 1], "propagate", mesh)
        with Counter() as counter:
            made.step()
        assert counter.sent == [(ALL_REDUCE, sum(row.bytes(*size) for size in sizes))], (row, counter.sent)
    made = optimizer(formulas.row_of("column", "out").update, "out,in", [0, 0], "propagate", mesh)
    with Counter() as counter:
        made.step()  # both axes cut the columns: a sum over each
    assert counter.sent == [(ALL_REDUCE, 8 * sum(in_ for _, in_ in SHAPES))] * 2
    made = optimizer({"norm": "spectral"}, "out,in", [0, 1], "propagate", mesh)
    assert total(made) == 8 * sum(out * in_ for out, in_ in SHAPES) * 3 / 4


def total(made: moga.SteepestDescent) -> float:
    """The bytes of a step that go to other ranks, of all ranks together."""
    with Counter() as counter:
        made.step()
    sent = torch.tensor(float(sum(size for _, size in counter.sent)))
    dist.all_reduce(sent)
    return float(sent)


def teams() -> None:
    """Work that is shared by rows: two more messages for each iteration, and the bytes of the teams as settled."""
    ranks = dist.get_world_size()
    for polar, squares in (("quintic", True), ("cubic", False)):
        steps = moga.geometry.polar.POLAR[polar].steps
        update = {"norm": "spectral", "polar": polar}
        made = optimizer(update, "out,in", [0], "propagate", distribute="teams")
        with Counter() as counter:
            made.step()
        if ranks == 1:
            assert not counter.sent
            continue
        expected = 0.0
        for place in made._places.values():
            [share], (out, in_) = place.shares, place.weight.shape
            parts = [part.of(min(out, in_)) for part in share.team]
            rows = [part.stop - part.start for part in parts]
            expected += formulas.team_bytes(out, in_, rows, steps, ranks, squares)
        assert max(len(place.shares[0].team) for place in made._places.values()) > 1
        assert [kind for kind, _ in counter.sent] == list(formulas.team_kinds(steps, squares))
        assert total(made) == expected, (total(made), expected)


def buckets(recipe: str) -> None:
    """A bucket as large as the largest matrix needs: no call is larger; a step and all its bytes are the same."""
    names = ["seven", "ten", "stored (in, out)", "query, key, value", "interleaved"]
    twins = cut_everywhere(recipe, names, nonfinite="propagate", **decayed(recipe))
    twins.run(1)
    ranks = dist.get_world_size()
    owned = [place.weight for place in twins.spread._places.values() if place.shares]
    if ranks == 1:
        assert not owned
        return
    held = torch.tensor([float(weight.to_local().numel()) for weight in owned])
    dist.all_reduce(held, dist.ReduceOp.MAX)
    copies = 1 if recipe == "muon" else 3  # of the step, or of weight, gradient and an average, with a byte
    largest = ranks * (4 * copies * int(held.max()) + 1)
    counted = []
    for limit in (owners.BUCKET, largest):
        twins.fill(1)
        twins.plain.step()
        with mock.patch.object(owners, "BUCKET", limit), Counter() as counter:
            twins.spread.step()
        counted.append(counter)
    twins.check()
    one, many = counted
    assert many.largest <= largest < one.largest
    assert len(many.sent) > len(one.sent) == 2
    assert sum(size for _, size in many.sent) == sum(size for _, size in one.sent)


def one_by_one() -> None:
    """A bucket of a byte: each owner has one matrix in each, and what all ranks hold copies of comes to all in one."""
    ranks = dist.get_world_size()
    weights = [nn.Parameter(torch.randn(8, 12)) for _ in range(6)]
    group = {"params": weights, "norm": "spectral", "layout": "out,in", "scale": 1.0}
    made = moga.SteepestDescent([group], lr=0.1, distribute="owners")
    for weight in weights:
        weight.grad = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    made.step()
    with mock.patch.object(owners, "BUCKET", 1), Counter() as counter:
        made.step()
    assert len(counter.sent) == (2 * -(-6 // ranks) if ranks > 1 else 0)
    assert counter.largest == (4 * 8 * 12 * ranks if ranks > 1 else 0)


def under_way() -> None:
    """While a bucket is computed the next one comes in and the one before goes back; nothing else is under way."""
    made = optimizer({"norm": "spectral"}, "out,in", [0], "propagate")
    seen: list[str] = []
    exchange, compute = owners.exchange, owners._computed

    def sent(*arguments: Any, **words: Any) -> Callable[[], Any]:
        call, arrive = sum(one.startswith("sent") for one in seen), exchange(*arguments, **words)
        seen.append(f"sent {call}")
        return lambda: (seen.append(f"there {call}"), arrive())[1]

    def computed(*arguments: Any) -> Any:
        seen.append("computed")
        return compute(*arguments)

    with mock.patch.multiple(owners, BUCKET=1, exchange=sent, _computed=computed):
        made.step()
    if dist.get_world_size() == 2:  # two matrices on one rank, one on the other: calls 0 and 1 there, 2 and 3 back
        order = ["sent 0", "there 0", "sent 1", "computed", "sent 2", "there 1", "computed", "there 2", "sent 3"]
        assert seen == [*order, "there 3"], seen


def agreed() -> None:
    """Groups are compared before the first step, and once more if rates were 0 then: one number and its negative."""
    made = optimizer({"norm": "sign"}, "out,in", [0], "propagate")
    made._settled = []
    for lr, expected in ((0.0, 1), (0.0, 1), (0.1, 1), (0.1, 0), (0.0, 0)):
        made.param_groups[0]["lr"] = made.param_groups[1]["lr"] = made.param_groups[2]["lr"] = lr
        with Counter() as counter:
            made.step()
        assert counter.sent == [(ALL_REDUCE, 16)] * expected, (lr, counter.sent)
