"""Iterations for polar factors whose rows are shared among ranks, all matrices of all teams in step with each other.

A step ``X <- (a I + b A + c A^2) X`` with ``A = X X^T`` of ``X`` (short, long) gives the rows ``r`` of the next X as

    a X_r + (b A_r + c A_r A) X,    A_r = X_r X^T,

so a rank that has X computes them from rows alone, and no sum goes over ranks: every number is the sum of the same
products as on one rank. A team puts the rows of A together, then those of X: short^2 and short long numbers. All
matrices take each step at the same time; one after another, a rank with parts of two would keep two teams waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from moga.geometry.newton_schulz import Coefficients
from moga.optim.distributed.balance import Part
from moga.optim.distributed.exchange import Like

Swap = Callable[[list[list[Tensor]], list[list[Like]]], Callable[[], list[Iterator[Tensor]]]]


class Iteration(NamedTuple):
    """From a whole tensor to matrices X (..., short, long), the steps, and back: ``end`` gets the tensor too."""

    begin: Callable[[Tensor], list[Tensor]]
    rows: Sequence[Coefficients]
    end: Callable[[Tensor, list[Tensor]], Tensor]


class Member:
    """What this rank does in a team: its rows of every matrix of a share."""

    def __init__(self, team: Sequence[Part], iteration: Iteration, whole: Tensor, me: int) -> None:
        self.team, self.iteration, self.whole, self.me = team, iteration, whole, me
        self.X = iteration.begin(whole)

    def gram_rows(self) -> list[Tensor]:
        """Of ``A = X X^T``."""
        return [X[..., part, :] @ X.mT for X, part in self._parts()]

    def next_rows(self, turn: int, own: Sequence[Tensor], whole: Sequence[Tensor]) -> list[Tensor]:
        """Of the X after a step, from the own rows of A and (where c is not 0) all of A."""
        a, b, c = self.iteration.rows[turn]
        return [
            a * X[..., part, :] + (b * A_r + c * (A_r @ A) if c else b * A_r) @ X
            for (X, part), A_r, A in zip(self._parts(), own, whole, strict=True)
        ]

    def is_last(self, turn: int) -> bool:
        """After the last step only the owner needs all rows."""
        return turn + 1 == len(self.iteration.rows)

    def _parts(self) -> Iterator[tuple[Tensor, slice]]:
        [own] = [part for part in self.team if part.rank == self.me]
        return ((X, own.of(X.shape[-2])) for X in self.X)


def iterate(
    shares: Sequence[tuple[Sequence[Part], Iteration, Sequence[Tensor]]], me: int, swap: Swap, count: int
) -> dict[int, Tensor]:
    """The result of each share of which this rank is the owner, by its place in ``shares``.

    ``shares`` are all shares of all teams, the same on every rank but for the whole tensor, which is there where this
    rank is of the team. ``swap`` sends to every rank of ``count``, and returns what waits for what they sent.

    >>> steps = Iteration(lambda whole: [whole], [(1.5, -0.5, 0.0)], lambda whole, factors: factors[0])
    >>> iterate([([Part(0, 0.0, 1.0)], steps, [torch.tensor([[0.5, 0.0]])])], 0, lambda out, in_: list, 1)
    {0: tensor([[0.6875, 0.0000]])}
    """
    members = {i: Member(team, steps, whole[0], me) for i, (team, steps, whole) in enumerate(shares) if whole}
    for turn in range(max((len(steps.rows) for _, steps, _ in shares), default=0)):
        talking = [steps.rows[turn] for team, steps, _ in shares if len(team) > 1 and turn < len(steps.rows)]
        going = [member for member in members.values() if turn < len(member.iteration.rows)]
        own = [member.gram_rows() for member in going]
        whole = _together(going, own, swap, count) if any(c for _, _, c in talking) else own
        rows = [member.next_rows(turn, *found) for member, *found in zip(going, own, whole, strict=True)]
        found = _together(going, rows, swap, count, turn) if talking else rows
        for member, X in zip(going, found, strict=True):
            member.X = X
    owned = {i: member for i, member in members.items() if member.team[0].rank == me}
    return {i: member.iteration.end(member.whole, member.X) for i, member in owned.items()}


def _together(
    members: Sequence[Member], rows: Sequence[list[Tensor]], swap: Swap, count: int, turn: int | None = None
) -> list[list[Tensor]]:
    """The matrices of which every rank of a team has rows: on all of them, after the last ``turn`` on the owner."""
    outgoing: list[list[Tensor]] = [[] for _ in range(count)]
    incoming: list[list[Like]] = [[] for _ in range(count)]
    for member, own in zip(members, rows, strict=True):
        getting = _getting(member, turn)
        for part in member.team:
            if part.rank == member.me:
                continue
            if part.rank in getting:
                outgoing[part.rank] += own
            if member.me in getting:
                incoming[part.rank] += [_like(part, X, one) for X, one in zip(member.X, own, strict=True)]
    received = swap(outgoing, incoming)()
    return [_joined(member, own, received, turn) for member, own in zip(members, rows, strict=True)]


def _getting(member: Member, turn: int | None) -> list[int]:
    ranks = [part.rank for part in member.team]
    return ranks[:1] if turn is not None and member.is_last(turn) else ranks


def _like(part: Part, X: Tensor, own: Tensor) -> Like:
    rows = part.of(X.shape[-2])
    return Like((*own.shape[:-2], rows.stop - rows.start, own.shape[-1]), own.dtype)


def _joined(member: Member, own: list[Tensor], received: Sequence[Iterator[Tensor]], turn: int | None) -> list[Tensor]:
    if member.me not in _getting(member, turn):
        return own
    parts = [own if part.rank == member.me else [next(received[part.rank]) for _ in own] for part in member.team]
    return [torch.cat(same, -2) if len(same) > 1 else same[0] for same in zip(*parts, strict=True)]
