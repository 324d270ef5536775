"""What is settled before the first step: the route of every sharded parameter, its pieces, and who computes what."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moga.geometry.layout import parse_layout
from moga.optim.checks import named
from moga.optim.distributed.balance import Part, balanced, teams
from moga.optim.distributed.exchange import device_of, group_of
from moga.optim.distributed.pieces import (
    Grid,
    Piece,
    chunk,
    cut_axes,
    grid_of,
    is_sharded,
    own_piece,
    piece_at,
    refusal,
)
from moga.optim.distributed.routes import axes_of, cost_of, is_iterated, moves_by_direction, reach_of, route_of
from moga.optim.matrices import Group
from moga.optim.names import RECIPE, STORED

NUMBERS = ("lr", "initial_lr", "scale", "momentum", "lookahead", "weight_decay", "betas", "eps")
AGREED = (*RECIPE, *STORED, *NUMBERS, "decays", "lr_scale", "decay_scale", "state_dtype", "rounding", "polar_dtype")


@dataclass(eq=False)
class Place:
    """A parameter, and how its step is taken on this rank."""

    name: str
    weight: Any
    reach: str
    route: str
    grid: Grid
    piece: Piece
    shares: list[Share] = field(default_factory=list)  # on the route "owner"

    def piece_of(self, rank: int) -> Piece:
        """The piece of a rank of the grid."""
        return self.piece if not is_sharded(self.weight) else self._pieces[rank]

    @cached_property
    def _pieces(self) -> list[Piece]:
        shape, placements = self.weight.shape, self.weight.placements
        return [piece_at(shape, self.grid.shape, at, placements) for at in self.grid.coordinates]

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """The shape of the largest piece: that of the first rank of every cut."""
        shape, mesh = tuple(self.weight.shape), self.grid.shape
        return (
            piece_at(shape, mesh, [0] * len(mesh), self.weight.placements).shape if is_sharded(self.weight) else shape
        )

    @cached_property
    def replicated(self) -> list[int]:
        """The axes of the mesh along which ranks hold the same piece."""
        cutting = {axis for axes in cut_axes(self.weight).values() for axis in axes}
        return [axis for axis in range(len(self.grid.shape)) if axis not in cutting]

    def joined(self, group: Group) -> tuple[int, ...]:
        """The axes of the mesh along which the parts of one row or column lie."""
        _, out, in_ = axes_of(parse_layout(group["layout"]), self.weight.ndim)
        cut = cut_axes(self.weight)
        return tuple(i for axis in sorted((in_ if self.reach == "row" else out) & set(cut)) for i in cut[axis])


@dataclass(eq=False)
class Share:
    """What has one owner: a parameter, or of a stack of matrices those from ``start`` on, ``count`` of them.

    ``team`` are the ranks that compute it, the owner first; more than one only where the work is split by rows.
    """

    place: Place
    start: int
    count: int
    cost: float
    splits: bool = False
    team: tuple[Part, ...] = ()

    @property
    def owner(self) -> int:
        """The rank that sends the step back, by its place in the grid."""
        return self.team[0].rank

    @property
    def members(self) -> list[int]:
        """The ranks of the team, in the order of their rows."""
        return [part.rank for part in self.team]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole share, as a tensor."""
        return (self.count, *self.place.weight.shape[1:])

    @property
    def most(self) -> int:
        """The number of entries that a rank holds at most."""
        first, *rest = self.place.largest
        return min(first, self.count) * math.prod(rest)

    def piece(self, rank: int) -> Piece:
        """What a rank holds of the share, counted from the beginning of the share."""
        piece = self.place.piece_of(rank)
        first = max(piece.start[0], self.start)
        count = max(0, min(piece.start[0] + piece.shape[0], self.start + self.count) - first)
        return Piece((first - self.start, *piece.start[1:]), (count, *piece.shape[1:]))

    def of_shard(self) -> slice:
        """The part of this rank's shard that belongs to the share."""
        first = max(0, self.start - self.place.piece.start[0])
        return slice(first, max(first, self.start + self.count - self.place.piece.start[0]))

    def sends(self, rank: int, to: int) -> bool:
        """Whether a member takes its piece from that rank: of those that hold the same, the one nearest to it."""
        at, home = self.place.grid.coordinates[rank], self.place.grid.coordinates[to]
        return all(at[axis] == home[axis] for axis in self.place.replicated)

    def senders(self, to: int) -> list[int]:
        """The ranks that send to a member of the team."""
        return [rank for rank in range(len(self.place.grid.ranks)) if self.sends(rank, to)]


def shares_of(place: Place, group: Group, split: bool = False) -> list[Share]:
    """The matrices of a stack are shared out where each moves by itself, else the parameter is one share.

    With ``split`` the shares of iterated updates may be computed by several ranks.
    """
    first, ranks = place.weight.shape[0] if place.weight.ndim else 1, len(place.grid.ranks)
    apart = parse_layout(group["layout"]).stack and moves_by_direction(group)
    parts = max(1, min(first, ranks)) if apart else 1
    bounds = [chunk(first, parts, i) for i in range(parts)]
    cost = cost_of(group, place.weight) / max(first, 1)
    splits = split and is_iterated(group) and place.weight.numel() > 0
    return [Share(place, start, count, cost * count, splits) for start, count in bounds if count or not apart]


def settle(groups: Sequence[Group], distribute: str, **words: Any) -> dict[Tensor, Place]:
    """The places of all parameters that are sharded or, unless ``distribute`` is "none", have an owner.

    Raises ValueError for placements that are not supported, and on every rank if ranks were given other parameters,
    other groups, or other ``words`` for the whole optimizer.
    """
    spread = distribute != "none" and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    words = {"distribute": distribute, **words}
    places: dict[Tensor, Place] = {}
    said: dict[Grid, list[str]] = {}
    refused: list[str] = []
    owned: dict[Grid, list[Share]] = {}
    for i, group in enumerate(groups):
        reach = reach_of(group)
        for name, weight in named(group):
            route = route_of(group, weight, reach, spread)
            if not (is_sharded(weight) or route == "owner"):
                continue
            grid = grid_of(weight)
            places[weight] = place = Place(str(name), weight, reach, route, grid, own_piece(weight))
            refused.append(refusal(name, weight))
            said.setdefault(grid, []).append(f"{_said(i, group, place)}, {words}; {refused[-1]}")
            if route == "owner":
                place.shares = shares_of(place, group, distribute == "teams")
                owned.setdefault(grid, []).extend(place.shares)
    for grid, lines in said.items():
        _agree(grid, lines)  # first: a rank that raised alone would leave the others waiting
    if any(refused):
        raise ValueError(next(filter(None, refused)))
    for grid, shares in owned.items():
        costs, count = [one.cost for one in shares], len(grid.ranks)
        if distribute == "teams":
            found = teams(costs, [one.splits for one in shares], count)
        else:
            found = [(Part(owner, 0.0, 1.0),) for owner in balanced(costs, [1] * count)]
        for share, team in zip(shares, found, strict=True):
            share.team = team
    return places


def rates_compared(groups: Sequence[Group], places: Mapping[Tensor, Place]) -> bool:
    """Whether ranks, if there are others, have compared rates that count. The same answer on ranks that agree.

    torch.distributed.checkpoint makes the state with lr = 0 and puts the rates back then.

    >>> rates_compared([{"lr": 0.0}, {"lr": 0.1}], {torch.ones(1): None}), rates_compared([{"lr": 0.0}], {})
    (True, True)
    """
    return not places or any(group["lr"] for group in groups)


def _said(i: int, group: Group, place: Place) -> str:
    words = {key: float(word) if isinstance(word := group.get(key), Tensor) else word for key in AGREED}
    placements = getattr(place.weight, "placements", ())
    return f"{place.name} of shape {tuple(place.weight.shape)}, {placements}, in group {i} with {words}"


def _agree(grid: Grid, lines: list[str]) -> None:
    """Raises ValueError on every rank unless all ranks of a grid say the same: else they would wait for each other."""
    group = group_of(grid.ranks)
    digest = int.from_bytes(hashlib.blake2b("\n".join(lines).encode(), digest_size=7).digest(), "big")
    extremes = torch.tensor([digest, -digest], device=device_of(group))
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    if int(extremes.sum()) == 0:
        return
    everywhere: list[Any] = [None] * len(grid.ranks)
    dist.all_gather_object(everywhere, lines, group)
    first = everywhere[0]
    rank, other = next((r, other) for r, other in zip(grid.ranks, everywhere, strict=True) if other != first)
    a, b = next(((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if a != b))
    raise ValueError(
        f"the groups of this optimizer differ between ranks; the first difference is, on rank {grid.ranks[0]}: {a}; on "
        f"rank {rank}: {b}. Make the same groups in the same order on every rank"
    )
