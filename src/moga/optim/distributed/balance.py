"""Who computes which matrix: whole matrices to one rank each, or parts of their rows to a few ranks; and what when."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# The ranks of a team lie among as many consecutive ones, which is a node of most machines: a team sends much more than
# owners do, so it has to stay where links are fast.
NODE = 8

# A rank may have that much more than the mean, in units of the mean, where it saves to cut a matrix.
SLACK = 0.05


class Part(NamedTuple):
    """The rows from ``start`` to ``end`` of every matrix of a share, as fractions of their number, and their rank."""

    rank: int
    start: float
    end: float

    def of(self, size: int) -> slice:
        """Of that many rows.

        >>> [Part(0, 0.0, 0.4).of(7), Part(1, 0.4, 1.0).of(7)]
        [slice(0, 3, None), slice(3, 7, None)]
        """
        return slice(round(self.start * size), round(self.end * size))


def balanced(costs: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """A bin for each cost: the dearest first, each to the bin that is filled least, for its size.

    >>> balanced([3, 5, 3, 4, 3], [1, 1, 1])
    [2, 0, 2, 1, 1]
    """
    filled = [(0.0, i) for i in range(len(sizes))]
    bins = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        level, one = heapq.heappop(filled)
        bins[i] = one
        heapq.heappush(filled, (level + costs[i] / sizes[one], one))
    return bins


def buckets(costs: Sequence[float], owners: Sequence[int], loads: Sequence[int], limit: int) -> list[list[int]]:
    """What is under way together: of every owner its next shares, the dearest first, as many as ``limit`` allows.

    An owner has at most ``limit`` of the ``loads`` in a bucket, or the largest load where that is more. Owners fill
    each bucket alike, so that they have about the same work in it.

    >>> buckets([4, 1, 2, 2], owners=[0, 1, 1, 1], loads=[8, 2, 4, 4], limit=6)
    [[0, 2, 3], [1]]
    """
    limit = max([limit, *loads])
    found: list[list[int]] = []
    last = dict.fromkeys(owners, 0)
    filled = dict.fromkeys(owners, 0)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owner = owners[i]
        if filled[owner] + loads[i] > limit:
            last[owner], filled[owner] = last[owner] + 1, 0
        filled[owner] += loads[i]
        if last[owner] == len(found):
            found.append([])
        found[last[owner]].append(i)
    return found


def teams(costs: Sequence[float], splits: Sequence[bool], ranks: int) -> list[tuple[Part, ...]]:
    """The ranks that compute each share: one, or several where its work is cut to even out that of the ranks.

    Nodes are balanced first, with whole shares, then the ranks of each node. What does not split counts as it is.

    >>> teams([3.0, 1.0], [True, True], 2)
    [(Part(rank=0, start=0.0, end=0.6666666666666666), Part(rank=1, start=0.6666666666666666, end=1.0)), \
(Part(rank=1, start=0.0, end=1.0),)]
    """
    nodes = [range(first, min(first + NODE, ranks)) for first in range(0, ranks, NODE)]
    found: list[tuple[Part, ...]] = [()] * len(costs)
    members: list[list[int]] = [[] for _ in nodes]
    for i, where in enumerate(balanced(costs, [len(node) for node in nodes])):
        members[where].append(i)
    for node, own in zip(nodes, members, strict=True):
        loads = dict.fromkeys(node, 0.0)
        mean = sum(costs[i] for i in own) / len(node)
        for i in sorted(own, key=lambda i: (splits[i], -costs[i], i)):
            found[i] = _team(costs[i], splits[i], loads, mean)
    return found


def _team(cost: float, splits: bool, loads: dict[int, float], mean: float) -> tuple[Part, ...]:
    """The least loaded rank alone if it has room for all of it, else the least loaded ranks, each up to the mean."""
    nearest = sorted(loads, key=lambda rank: (loads[rank], rank))[: None if splits else 1]
    parts: list[Part] = []
    done = 0.0
    for rank in nearest:
        room = max(0.0, mean - loads[rank])
        fits = cost * (1 - done) <= room + SLACK * mean
        end = 1.0 if fits or rank == nearest[-1] else done + room / cost
        loads[rank] += cost * (end - done)
        parts += [Part(rank, done, end)] if end > done else []
        done = end
        if done == 1.0:
            break
    return tuple(parts)
