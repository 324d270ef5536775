"""Whole matrices out of shards: each is assembled where it is computed, and its owner sends the pieces back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moga.optim.distributed.exchange import Like, exchange
from moga.optim.distributed.pieces import Grid
from moga.optim.distributed.plan import Share
from moga.optim.distributed.teams import Iteration, iterate

Compute = Callable[[list[list[Tensor]]], list[tuple[list[Tensor], list[Tensor]]]]


@dataclass(eq=False)
class Job:
    """What the owner of a share (or its team) needs of the others, and what it gives them.

    ``sent`` are this rank's pieces of the share, of tensors of the parameter's shape, and ``notes`` small tensors that
    go with them. Jobs with one ``key`` are computed in one call of ``compute``: from the whole tensors (and all notes)
    of each job, to whole tensors, cut again, and small ones for every rank, which look like ``back`` and ``small``.
    Where the work of shares may be split, ``iteration`` takes the place of ``compute``.
    """

    share: Share
    sent: list[Tensor]
    key: Any
    compute: Compute
    back: list[torch.dtype]
    small: list[Like]
    done: Callable[[list[Tensor], list[Tensor]], None]
    notes: tuple[Tensor, ...] = ()
    iteration: Iteration | None = None


def run(jobs: Sequence[Job], grid: Grid, group: Any) -> None:
    """Send, compute and send back, all jobs of a grid together: two all-to-alls, and those of the teams."""
    count, me, device = len(grid.ranks), grid.ranks.index(dist.get_rank()), jobs[0].sent[0].device
    outgoing: list[list[Tensor]] = [[] for _ in range(count)]
    incoming: list[list[Like]] = [[] for _ in range(count)]
    for job in jobs:
        for member in job.share.members:
            if job.share.sends(me, member):
                outgoing[member] += [*job.sent, *job.notes]
        if me in job.share.members:
            for i in job.share.senders(me):
                incoming[i] += [Like(job.share.piece(i).shape, one.dtype) for one in job.sent]
                incoming[i] += [Like(tuple(one.shape), one.dtype) for one in job.notes]
    received = [iter(part) for part in exchange(outgoing, incoming, group, device)]
    mine = [job for job in jobs if me in job.share.members]
    wholes = {id(job): _assembled(job, me, received, device) for job in mine}
    results = _computed([job for job in mine if job.iteration is None], wholes)
    split = [(job, job.iteration) for job in jobs if job.iteration is not None]
    shares = [(job.share.team, steps, wholes.get(id(job), [])) for job, steps in split]
    found = iterate(shares, me, partial(exchange, group=group, device=device), count)
    results.update((id(split[i][0]), ([one], [])) for i, one in found.items())
    _return(jobs, results, me, count, group, device)


def _assembled(job: Job, me: int, received: Sequence[Any], device: torch.device) -> list[Tensor]:
    wholes = [torch.empty(job.share.shape, dtype=one.dtype, device=device) for one in job.sent]
    notes: list[Tensor] = []
    for i in job.share.senders(me):
        for whole in wholes:
            job.share.piece(i).of(whole).copy_(next(received[i]))
        notes += [next(received[i]) for _ in job.notes]
    return wholes + notes


def _computed(mine: Sequence[Job], wholes: dict[int, list[Tensor]]) -> dict[int, tuple[list[Tensor], list[Tensor]]]:
    together: dict[Any, list[Job]] = {}
    for job in mine:
        together.setdefault(job.key, []).append(job)
    results: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for same in together.values():
        found = same[0].compute([wholes.pop(id(job)) for job in same])
        results.update((id(job), result) for job, result in zip(same, found, strict=True))
    return results


def _return(
    jobs: Sequence[Job],
    results: dict[int, tuple[list[Tensor], list[Tensor]]],
    me: int,
    count: int,
    group: Any,
    device: torch.device,
) -> None:
    outgoing: list[list[Tensor]] = [[] for _ in range(count)]
    incoming: list[list[Like]] = [[] for _ in range(count)]
    for job in jobs:
        incoming[job.share.owner] += [Like(job.share.piece(me).shape, dtype) for dtype in job.back] + job.small
        if job.share.owner == me:
            whole, small = results[id(job)]
            for i in range(count):
                outgoing[i] += [job.share.piece(i).of(one) for one in whole] + small
    received = [iter(part) for part in exchange(outgoing, incoming, group, device)]
    for job in jobs:
        found = [next(received[job.share.owner]) for _ in (*job.back, *job.small)]
        job.done(found[: len(job.back)], found[len(job.back) :])
