"""Whole matrices out of shards: each is assembled where it is computed, and its owner sends the pieces back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from moga.optim.distributed.balance import buckets
from moga.optim.distributed.exchange import Like, exchange
from moga.optim.distributed.pieces import Grid
from moga.optim.distributed.plan import Share
from moga.optim.distributed.teams import Iteration, Swap, iterate

# Bytes that a rank sends, and that it gets, in one call at most. Calls of less would cost more in waiting than in
# bytes; six times as much is held at a time.
BUCKET = 256 * 2**20

Wholes = dict[int, list[Tensor]]  # by id of the job
Results = dict[int, tuple[list[Tensor], list[Tensor]]]
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

    @property
    def load(self) -> int:
        """A bound, the same on every rank, on the bytes of it that a call brings to its owner or takes from there.

        Every rank counts as if it held the largest piece. Of that others get and send one at most, so no rank has more
        of a bucket than the owner with most.
        """
        there = self.share.most * sum(one.itemsize for one in self.sent) + sum(one.nbytes for one in self.notes)
        back = self.share.most * sum(one.itemsize for one in self.back) + sum(like.bytes for like in self.small)
        return len(self.share.place.grid.ranks) * max(there, back)


class Here(NamedTuple):
    """This rank's place in the grid, the number of ranks, its device, and how it talks to the others."""

    me: int
    ranks: int
    device: torch.device
    swap: Swap


def run(jobs: Sequence[Job], grid: Grid, group: Any) -> None:
    """Send, compute and send back: two all-to-alls for every bucket of jobs, and those of the teams.

    While a bucket is computed, the next one comes in and the one before goes back.
    """
    device = jobs[0].sent[0].device
    swap = partial(exchange, group=group, device=device)
    here = Here(grid.ranks.index(dist.get_rank()), len(grid.ranks), device, swap)
    bucket, *others = bucketed(jobs)
    fetched = _fetch(bucket, here)
    ended: Callable[[], object] = list
    for following in [*others, []]:
        wholes = fetched()
        fetched = _fetch(following, here) if following else dict
        results = _computed(bucket, wholes, here)
        ended()
        bucket, ended = following, _return(bucket, results, here)
    ended()


def bucketed(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of teams are one bucket: their work is even in all, not in parts, and they wait in every iteration."""
    shared = [job for job in jobs if job.iteration is not None]
    alone = [job for job in jobs if job.iteration is None]
    costs, owners = [job.share.cost for job in alone], [job.share.owner for job in alone]
    found = buckets(costs, owners, [job.load for job in alone], BUCKET)
    return [*filter(None, [shared]), *([alone[i] for i in bucket] for bucket in found)]


def _fetch(jobs: Sequence[Job], here: Here) -> Callable[[], Wholes]:
    """Send the pieces of each job to its owner and team; what is returned waits for those that come here."""
    outgoing: list[list[Tensor]] = [[] for _ in range(here.ranks)]
    incoming: list[list[Like]] = [[] for _ in range(here.ranks)]
    for job in jobs:
        for member in job.share.members:
            if job.share.sends(here.me, member):
                outgoing[member] += [*job.sent, *job.notes]
        if here.me in job.share.members:
            for i in job.share.senders(here.me):
                incoming[i] += [Like(job.share.piece(i).shape, one.dtype) for one in job.sent]
                incoming[i] += [Like(tuple(one.shape), one.dtype) for one in job.notes]
    arrive = here.swap(outgoing, incoming)

    def wholes() -> Wholes:
        received = arrive()
        return {id(job): _assembled(job, received, here) for job in jobs if here.me in job.share.members}

    return wholes


def _assembled(job: Job, received: Sequence[Any], here: Here) -> list[Tensor]:
    wholes = [torch.empty(job.share.shape, dtype=one.dtype, device=here.device) for one in job.sent]
    notes: list[Tensor] = []
    for i in job.share.senders(here.me):
        for whole in wholes:
            job.share.piece(i).of(whole).copy_(next(received[i]))
        notes += [next(received[i]) for _ in job.notes]
    return wholes + notes


def _computed(jobs: Sequence[Job], wholes: Wholes, here: Here) -> Results:
    """What this rank owns of a bucket. Matrices leave ``wholes`` as soon as they are computed."""
    together: dict[Any, list[Job]] = {}
    for job in jobs:
        if job.iteration is None and id(job) in wholes:
            together.setdefault(job.key, []).append(job)
    results: Results = {}
    for same in together.values():
        found = same[0].compute([wholes.pop(id(job)) for job in same])
        results.update((id(job), result) for job, result in zip(same, found, strict=True))
    split = [(job, job.iteration) for job in jobs if job.iteration is not None]
    shares = [(job.share.team, steps, wholes.pop(id(job), [])) for job, steps in split]
    iterated = iterate(shares, here.me, here.swap, here.ranks)
    return results | {id(split[i][0]): ([one], []) for i, one in iterated.items()}


def _return(jobs: Sequence[Job], results: Results, here: Here) -> Callable[[], None]:
    """Send the pieces of each result to their ranks; what is returned waits for those of this rank, and hands them on.

    Takes everything out of ``results``: what was computed is not kept beside what is under way.
    """
    outgoing: list[list[Tensor]] = [[] for _ in range(here.ranks)]
    incoming: list[list[Like]] = [[] for _ in range(here.ranks)]
    for job in jobs:
        incoming[job.share.owner] += [Like(job.share.piece(here.me).shape, dtype) for dtype in job.back] + job.small
        if job.share.owner == here.me:
            whole, small = results.pop(id(job))
            for i in range(here.ranks):
                outgoing[i] += [job.share.piece(i).of(one) for one in whole] + small
    arrive = here.swap(outgoing, incoming)

    def done() -> None:
        received = arrive()
        for job in jobs:
            found = [next(received[job.share.owner]) for _ in (*job.back, *job.small)]
            job.done(found[: len(job.back)], found[len(job.back) :])

    return done
