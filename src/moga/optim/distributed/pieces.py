"""Where the shard of each rank lies in a parameter: boxes of a tensor, read from torch's mesh and placements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

SUPPORTED = "Shard(d), Replicate(), and what fully_shard after parallelize_module makes of two Shards of one axis"


class Piece(NamedTuple):
    """A box of a tensor: its first index and its size along every axis.

    >>> import torch
    >>> Piece((2, 0), (1, 3)).of(torch.arange(12).reshape(4, 3))
    tensor([[6, 7, 8]])
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    def of(self, whole: Tensor) -> Tensor:
        """The box of a whole tensor, as a view."""
        return whole[tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))]


@dataclass(frozen=True)
class Grid:
    """Ranks that hold one parameter: in the order of their process group, each with its coordinate in the mesh."""

    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor: asked without importing torch's module, which single processes never need."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds; a plain tensor itself."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def whole(tensor: Any) -> Tensor:
    """All of a tensor, from every rank that holds a part of it: a collective call where it is sharded."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def local_gradient(weight: Any) -> Tensor | None:
    """The shard of the gradient that belongs to this rank's shard of the parameter; sums that are open are closed."""
    grad = weight.grad
    if grad is None:
        return None
    if is_sharded(weight) and grad.placements != weight.placements:
        grad = grad.redistribute(placements=weight.placements)
    return local(grad)


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and length of a part, as torch.chunk cuts: every part but the last ones has ``ceil(size / parts)``.

    >>> [chunk(7, 4, i) for i in range(4)], chunk(3, 4, 3)
    ([(0, 2), (2, 2), (4, 2), (6, 1)], (3, 0))
    """
    longest = math.ceil(size / parts)
    start = min(index * longest, size)
    return start, min(longest, size - start)


def piece_at(shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]) -> Piece:
    """The box at one coordinate of the mesh. A strided placement is cut last: fully_shard cuts what it is given.

    >>> from torch.distributed.tensor import Replicate, Shard
    >>> piece_at((7, 5), (2, 2), (0, 1), (Replicate(), Shard(0)))
    Piece(start=(4, 0), shape=(3, 5))
    """
    start, size = [0] * len(shape), list(shape)
    for strided in (False, True):
        for parts, index, placement in zip(mesh, coordinate, placements, strict=True):
            if hasattr(placement, "dim") and hasattr(placement, "split_factor") == strided:
                offset, size[placement.dim] = chunk(size[placement.dim], parts, index)
                start[placement.dim] += offset
    return Piece(tuple(start), tuple(size))


def cut_axes(weight: Any) -> dict[int, list[int]]:
    """The axes of a parameter that are cut, each with the axes of the mesh that cut it; none of a plain tensor."""
    cut: dict[int, list[int]] = {}
    if is_sharded(weight):
        for i, placement in enumerate(weight.placements):
            if hasattr(placement, "dim") and weight.device_mesh.shape[i] > 1:
                cut.setdefault(placement.dim, []).append(i)
    return cut


def refusal(name: str | int, weight: Any) -> str:
    """Why a parameter cannot be updated: its shards are not the boxes that its placements say; "" if they are.

    Partial sums are no parameter, and ragged or interleaved shards have no box.
    """
    if not is_sharded(weight):
        return ""
    mesh = weight.device_mesh
    known = all(hasattr(one, "dim") or one.is_replicate() for one in weight.placements)
    if known and _strides_fit(weight) and own_piece(weight).shape == tuple(local(weight).shape):
        return ""
    return (
        f"parameter {name!r} of shape {tuple(weight.shape)} has placements {tuple(weight.placements)} on a mesh of "
        f"shape {tuple(mesh.shape)}, of which this rank holds {tuple(local(weight).shape)}; supported are {SUPPORTED}"
    )


def _strides_fit(weight: Any) -> bool:
    """Whether strided placements skip just the cuts of their axis later in the mesh; else they hold no box."""
    sizes, placements = weight.device_mesh.shape, weight.placements
    return all(
        one.split_factor == math.prod(sizes[j] for j in range(i + 1, len(sizes)) if placements[j].is_shard(one.dim))
        for i, one in enumerate(placements)
        if hasattr(one, "split_factor")
    )


def own_piece(weight: Any) -> Piece:
    """The box that this rank holds."""
    if not is_sharded(weight):
        return Piece((0,) * weight.ndim, tuple(weight.shape))
    mesh = weight.device_mesh
    return piece_at(weight.shape, mesh.shape, mesh.get_coordinate(), weight.placements)


def grid_of(weight: Any) -> Grid:
    """The ranks of a DTensor's mesh; of a plain parameter all ranks, each of which holds it whole."""
    if is_sharded(weight):
        return _grid_of_mesh(weight.device_mesh)
    count = dist.get_world_size()
    return Grid(tuple(range(count)), (count,), tuple((i,) for i in range(count)))


def _places(shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


@cache
def _grid_of_mesh(mesh: Any) -> Grid:
    places = {int(rank): place for rank, place in zip(mesh.mesh.flatten(), _places(mesh.shape), strict=True)}
    ranks = sorted(places)
    return Grid(tuple(ranks), tuple(mesh.shape), tuple(places[rank] for rank in ranks))
